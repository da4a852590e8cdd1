// best.cpp: greedy decoding wants one id of a whole vocabulary. Each chunk of the head leaves its largest logit, while they
// are in cache; at the end one chunk is searched for it.
#include "program.h"

namespace er {

bool Program::reserve_best(const Job& job) {
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    if (in.op != OP_LINEAR || in.epilogue == EPI_GLU || in.outs[0].out != logits_) continue;
    const int n = job.batch.n_outputs, step = chunk_tiles(in, n);
    const size_t chunks = size_t((tile_count(in.outs[0].weight) + step - 1) / step);
    return grow(reinterpret_cast<void**>(&tops_), &tops_bytes_, chunks * n * sizeof(float)) &&
           grow(reinterpret_cast<void**>(&best_), &best_bytes_, n * sizeof(int32_t));
  }
  return true;
}

// out is [n][ldo], its column 0 the first row of the tiles.
void Program::top_of_rows(const Instr& in, int n, int tile, int tiles, const float* out, int64_t ldo, float* tops) const {
  const Weight& w = *in.outs[0].weight;
  const int64_t r0 = int64_t(tile) * w.linear->tile_rows, end = r0 + int64_t(tiles) * w.linear->tile_rows;
  const int64_t rows = (end < w.n_rows ? end : w.n_rows) - r0;  // the last tile may go on past the matrix
  for (int t = 0; t < n; t++) tops[t] = isa_->ops->top(out + t * ldo, int(rows));
}

void Program::find_best(const Job& job) {
  const int n = job.batch.n_outputs;
  const Instr* head = code_;
  while (head->op != OP_LINEAR || head->epilogue == EPI_GLU || head->outs[0].out != logits_) head++;
  const Weight& w = *head->outs[0].weight;
  const int step = chunk_tiles(*head, n), chunks = (tile_count(&w) + step - 1) / step;
  for (int t = 0; t < n; t++) {
    int top = 0;
    for (int c = 0; c < chunks && top >= 0; c++) {
      const float x = tops_[int64_t(c) * n + t];
      if (x != x) top = -1;
      else if (x > tops_[int64_t(top) * n + t]) top = c;
    }
    best_[t] = -1;
    if (top < 0) continue;
    const float* logits = token(logits_, t);
    int64_t r = int64_t(top) * step * w.linear->tile_rows;
    while (logits[r] != tops_[int64_t(top) * n + t]) r++;
    best_[t] = int32_t(r);
  }
}

}  // namespace er

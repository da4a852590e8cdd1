// best.cpp: sampling mostly wants one id, or a few, of a whole vocabulary. Each chunk of the head leaves its largest logit, while
// they are in cache; at the end the few chunks are searched that can hold what is wanted. The others' logits are not looked at.
#include "largest.h"
#include "program.h"

namespace er {

struct Program::Head {
  int64_t n_rows;
  int chunks, chunk_rows;
};

Program::Head Program::head_of(const Job& job) const {
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    if (in.op != OP_LINEAR || in.epilogue == EPI_GLU || in.outs[0].out != logits_) continue;
    const Weight& w = *in.outs[0].weight;
    const int step = chunk_tiles(in, job.batch.n_outputs);
    return {w.n_rows, (tile_count(&w) + step - 1) / step, step * w.linear->tile_rows};
  }
  return {0, 0, 0};
}

bool Program::reserve_best(const Job& job) {
  const size_t n = size_t(job.batch.n_outputs), k = size_t(job.batch.want_top);
  return grow((void**)&tops_, &tops_bytes_, size_t(head_of(job).chunks) * n * sizeof(float)) &&
         grow((void**)&best_, &best_bytes_, n * sizeof(int32_t)) && grow((void**)&top_, &top_bytes_, 2 * n * k * sizeof(int32_t)) &&
         grow((void**)&ranking_, &ranking_bytes_, k * sizeof(uint64_t));
}

// out is [n][ldo], its column 0 the first row of the tiles.
void Program::top_of_rows(const Instr& in, int n, int tile, int tiles, const float* out, int64_t ldo, float* tops) const {
  const Weight& w = *in.outs[0].weight;
  const int64_t r0 = int64_t(tile) * w.linear->tile_rows, end = r0 + int64_t(tiles) * w.linear->tile_rows;
  const int64_t rows = (end < w.n_rows ? end : w.n_rows) - r0;  // the last tile may go on past the matrix
  for (int t = 0; t < n; t++) tops[t] = isa_->ops->top(out + t * ldo, int(rows));
}

void Program::find_best(const Job& job) {
  const Head head = head_of(job);
  const int n = job.batch.n_outputs;
  for (int t = 0; t < n; t++) {
    int top = 0;
    for (int c = 0; c < head.chunks && top >= 0; c++) {
      const float x = tops_[int64_t(c) * n + t];
      if (x != x) top = -1;
      else if (x > tops_[int64_t(top) * n + t]) top = c;
    }
    best_[t] = -1;
    if (top < 0) continue;
    const float* logits = token(logits_, t);
    int64_t r = int64_t(top) * head.chunk_rows;
    while (logits[r] != tops_[int64_t(top) * n + t]) r++;
    best_[t] = int32_t(r);
  }
}

// The k largest are in chunks whose largest is among the k largest of those.
void Program::find_top(const Job& job) {
  const Head head = head_of(job);
  const int n = job.batch.n_outputs, k = job.batch.want_top;
  int32_t* ids = top_;
  float* values = reinterpret_cast<float*>(top_ + int64_t(n) * k);
  for (int t = 0; t < n; t++, ids += k, values += k) {
    const float* logits = token(logits_, t);
    Largest chunks{ranking_, k, 0};
    bool finite = true;
    for (int c = 0; c < head.chunks; c++) {
      const float x = tops_[int64_t(c) * n + t];
      finite = finite && x == x;
      chunks.push(key_of(x, c));
    }
    const float floor = chunks.size < k ? -__builtin_inff() : tops_[int64_t(key_id(ranking_[0])) * n + t];
    Largest found{ranking_, finite ? k : 0, 0};
    for (int c = 0; c < head.chunks && finite; c++) {
      if (tops_[int64_t(c) * n + t] < floor) continue;
      const int64_t r0 = int64_t(c) * head.chunk_rows, end = r0 + head.chunk_rows < head.n_rows ? r0 + head.chunk_rows : head.n_rows;
      for (int64_t r = r0; r < end; r++)
        if (logits[r] >= floor) found.push(key_of(logits[r], r));
    }
    found.sort();
    for (int i = 0; i < k; i++) {
      ids[i] = i < found.size ? int32_t(key_id(ranking_[i])) : -1;
      values[i] = i < found.size ? logits[ids[i]] : -__builtin_inff();
    }
  }
}

}  // namespace er

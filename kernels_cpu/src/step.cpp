// step.cpp: a batch of few tokens as a step without barriers (relay.h): how each phase is cut, computed and committed.
// Shared memory is written by commits alone. Late threads may read floats that have changed meanwhile, which spoils only
// what they will not commit; so quantized input, which holds indexes, is always a thread's own.
#include <cstring>
#include "program.h"

namespace er {

// Long enough that a thread that kept its core is done; nearly nothing against a time slice.
constexpr int64_t PATIENCE_NS = 20 * 1000;

// The batch's sizes decide the cut; the number of chunks is returned.
int Program::cut(const Instr& in, const Job& job, Cut& c) const {
  const int n = count(in, job);
  c = {&in, 1, false, {0}};
  if (in.op == OP_ATTENTION) return job.n_items;
  if (in.op == OP_ROPE_KV) {
    const int all = n * (in.n_heads + in.n_kv), step = all / (pool_->size() * 2);
    c.step = step < 1 ? 1 : step > FEW * in.n_heads ? FEW * in.n_heads : step;
    return (all + c.step - 1) / c.step;
  }
  if (is_moe(in)) return expert_chunks(in, n);
  if (in.op != OP_LINEAR) return n;
  c.step = chunk_tiles(in, n);
  int total = 0;
  for (int i = 0; i < MAX_OUTS; i++) {
    if (i < (in.epilogue == EPI_GLU ? 1 : in.n_outs)) total += (tile_count(in.outs[i].weight) + c.step - 1) / c.step;
    c.first[i + 1] = total;
  }
  return total + (in.pre.sum >= 0 ? n : 0);
}

// About twice what the dearest chunk of a phase takes on a slow machine: doing it again any sooner would be waste.
int64_t Program::patience(const Instr& in, const Job& job, const Cut& c, int longest) const {
  int64_t ns = 0;
  if (in.op == OP_LINEAR || is_moe(in)) {
    const Weight& w = *in.outs[0].weight;
    const int tiles = is_moe(in) ? expert_step(in, count(in, job)) : c.step;
    const int64_t bytes = int64_t(tiles) * int64_t(w.linear->tile_bytes(int(w.n_cols))) * (in.epilogue == EPI_GLU ? 2 : 1);
    ns = bytes / 5 * (8 + count(in, job)) / 8;
  } else if (in.op == OP_ATTENTION) {
    int64_t seen = in.window > 0 && in.window < longest ? in.window : longest;
    if (seen > PAGE * SPLIT_PAGES) seen = PAGE * SPLIT_PAGES;
    for (int i = 0; i < job.n_items; i++) {
      const int64_t cost = seen * in.head_dim * (job.items[i].q1 - job.items[i].q0 + 8) / 8;
      ns = cost > ns ? cost : ns;
    }
  }
  return ns < PATIENCE_NS ? PATIENCE_NS : ns > 100 * 1000 * 1000 ? 100 * 1000 * 1000 : ns;
}

static void compute_chunk(const Step& s, int phase, uint64_t number, int chunk, int thread) {
  const Job& job = static_cast<const Job&>(s);
  job.program->compute(job, phase, number, chunk, thread);
}

static void commit_chunk(const Step& s, int phase, int chunk, int thread) {
  const Job& job = static_cast<const Job&>(s);
  job.program->commit(job, phase, chunk, thread);
}

// Most steps find a plan of their sizes in the job already.
bool Program::plan_step(Job& job) {
  int longest = 0;
  for (int r = 0; r < job.batch.n_rows; r++) {
    const int seen = job.batch.n_past[r] + job.batch.row_start[r + 1] - job.batch.row_start[r];
    longest = seen > longest ? seen : longest;
  }
  longest = (longest + 511) / 512 * 512;
  const int32_t sizes[5] = {job.batch.n_tokens, job.batch.n_outputs, job.n_items, longest, job.n_merges};
  if (job.cuts && memcmp(sizes, job.planned, sizeof sizes) == 0) return pool_->relay().reserve(job.most);
  const int room = 2 * n_code_;  // attention may take two phases
  if (!job.cuts) job.cuts = static_cast<Cut*>(malloc(room * (sizeof(Cut) + 2 * sizeof(int32_t))));
  if (!job.cuts) return false;
  int32_t* chunks = reinterpret_cast<int32_t*>(job.cuts + room);
  int32_t* patient = chunks + room;
  int n = 0;
  job.most = 0;
  for (int i = 0; i < n_code_; i++) {
    if (count(code_[i], job) == 0) continue;
    chunks[n] = cut(code_[i], job, job.cuts[n]);
    patient[n] = int32_t(patience(code_[i], job, job.cuts[n], longest));
    job.most = chunks[n] > job.most ? chunks[n] : job.most;
    n++;
    if (code_[i].op != OP_ATTENTION || job.n_merges == 0) continue;
    job.cuts[n] = {&code_[i], 1, true, {0}};
    chunks[n] = job.n_merges;
    patient[n++] = PATIENCE_NS;
  }
  job.n_phases = n;
  job.chunks = chunks;
  job.patience = patient;
  job.compute = compute_chunk;
  job.commit = commit_chunk;
  memcpy(job.planned, sizes, sizeof sizes);
  return pool_->relay().reserve(job.most);
}

static void copy(float* to, const float* from, int64_t n) { memcpy(to, from, sizeof(float) * size_t(n)); }

int Program::matrix_of(const Cut& cut, int chunk) {
  for (int i = 0; i < MAX_OUTS; i++)
    if (chunk < cut.first[i + 1]) return i;
  return -1;  // past them: a sum
}

// Heads of a chunk to be turned: row by row, KV head by KV head, of each all tokens. So a thread writes lines of K, which hold a
// dimension of all of a page's tokens, that no other writes, and attends to them next if it can (Job::plan_attention).
template <class F> void Program::each_head(const Instr& in, const Job& job, const Cut& cut, int chunk, const F& f) const {
  const int heads = in.n_heads + in.n_kv, group = in.n_heads / in.n_kv, all = job.batch.n_tokens * heads;
  const int end = (chunk + 1) * cut.step < all ? (chunk + 1) * cut.step : all;
  int i = chunk * cut.step, r = job.row_of(i / heads);
  for (; i < end; r++) {
    const int t0 = job.batch.row_start[r], n = job.batch.row_start[r + 1] - t0;
    for (int k = i - t0 * heads; i < end && k < n * heads; i++, k++) {
      const int kv = k / (n * (1 + group)), t = t0 + k / (1 + group) % n, j = k % (1 + group);
      f(t, j ? kv * group + j - 1 : in.n_heads + kv);
    }
  }
}

// Lines that will be written, which others have read: they come while the products are computed.
static void own(const void* from, size_t bytes) {
  const char* at = static_cast<const char*>(from);
  for (size_t i = 0; i < bytes; i += 64) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(at[i]));
#else
    __builtin_prefetch(at + i, 1);
#endif
  }
}

void Program::compute(const Job& job, int phase, uint64_t number, int chunk, int thread) {
  Lane& lane = lanes_[thread];
  const Cut& cut = job.cuts[phase];
  const Instr& in = *cut.in;
  const BatchView& b = job.batch;
  float* out = result(lane);
  if (in.op == OP_LINEAR) return compute_linear(in, job, cut, number, chunk, lane);
  if (is_moe(in)) return void(compute_experts(in, job, number, chunk, lane));
  if (in.op == OP_MOE_SUM) return sum_experts(in, job, chunk, out, lane);
  if (in.op == OP_EMBED) return embed_row(in, b.tokens[chunk], out);
  if (in.op == OP_TOKENWISE) return prologue(in.pre, chunk, lane);
  if (in.op == OP_ROPE_KV) {
    const uint8_t* last = nullptr;
    each_head(in, job, cut, chunk, [&](int t, int h) {
      if (h >= in.n_heads) {
        const KvShape& shape = kv_->layers[in.layer].shape;
        const uint8_t* keys = page_of(in, job, t) + size_t(h - in.n_heads) * shape.k_bytes;
        if (keys != last) own(keys, shape.k_bytes);
        last = keys;
      }
      rotate_head(in, job, t, h, lane, out);
      out += in.head_dim;
    });
  } else if (in.op == OP_ATTENTION) {
    const int64_t width = int64_t(in.n_heads) * in.head_dim;
    if (cut.merge) merge(in, job.merges[chunk], out, width, lane);
    else attend(in, job, job.items[chunk], out, width, out, lane);
  }
}

// Memory would lie idle while a thread prepares its input: it brings the first weights meanwhile, as much as does not make the
// thread wait. Returns how far it came.
static const uint8_t* fetch(const uint8_t* weights, const uint8_t* end) {
  enum { LINES = 128 };
  for (int i = 0; i < LINES && weights < end; i++, weights += 64) __builtin_prefetch(weights, 0, 2);
  return weights;
}

// One column meets STREAMS or two tiles at a time, whose beginnings their kernel does not fetch.
static void fetch_streams(const uint8_t* weights, int tiles, size_t tile_bytes) {
  const size_t bytes = tile_bytes < STREAM_AHEAD ? tile_bytes : size_t(STREAM_AHEAD);
  const int streams = tiles >= STREAMS ? int(STREAMS) : tiles >= 2 ? 2 : 1;
  for (int i = 0; i < streams; i++, weights += tile_bytes) fetch(weights, weights + bytes);
}

void Program::compute_linear(const Instr& in, const Job& job, const Cut& cut, uint64_t number, int chunk, Lane& lane) {
  const int n = count(in, job), which = matrix_of(cut, chunk);
  if (which < 0) {
    const int t = chunk - cut.first[MAX_OUTS];
    if (lane.number != number || lane.token != t) prologue(in.pre, t, lane);
    lane.number = number;
    return;
  }
  uint8_t* acts[N_ACTS];
  private_acts(in, n, lane, acts);
  const Weight& w = *in.outs[which].weight;
  const int tile = (chunk - cut.first[which]) * cut.step, left = tile_count(&w) - tile, tiles = left < cut.step ? left : cut.step;
  const int64_t rows = int64_t(tiles) * w.linear->tile_rows;
  if (lane.prepared != number) {
    const size_t tile_bytes = w.linear->tile_bytes(int(w.n_cols));
    const uint8_t *weights = w.data + size_t(tile) * tile_bytes, *end = weights + size_t(tiles) * tile_bytes;
    if (n == 1) fetch_streams(weights, tiles, tile_bytes);
    for (int t = 0; t < n; t++) {
      if (n > 1) weights = fetch(weights, end);
      quantize_token(in, n, t, acts, lane);
    }
    index_acts(in, n, acts, lane);
    lane.prepared = lane.number = number;
  }
  const int buffer = in.epilogue == EPI_GLU ? in.out : in.outs[which].out;
  for (int t = 0; t < n; t++) own(token(buffer, t) + int64_t(tile) * w.linear->tile_rows, size_t(rows) * sizeof(float));
  linear_tiles(in, which, n, tile, tiles, acts, result(lane), rows, lane);
  if (wants_tops(buffer, job)) top_of_rows(in, n, tile, tiles, result(lane), rows, lane.tops);
}

void Program::commit(const Job& job, int phase, int chunk, int thread) {
  Lane& lane = lanes_[thread];
  const Cut& cut = job.cuts[phase];
  const Instr& in = *cut.in;
  const int hd = in.head_dim;
  const float* from = result(lane);
  switch (in.op) {
    case OP_LINEAR: commit_linear(in, job, cut, chunk, lane); break;
    case OP_EMBED: copy(token(in.out, chunk), from, in.outs[0].weight->n_cols); break;
    case OP_TOKENWISE:
      copy(token(in.out, chunk), lane.value, in.pre.width);
      if (in.pre.sum >= 0) copy(token(in.pre.sum, chunk), lane.sum, in.pre.width);
      break;
    case OP_GATHER: copy(token(in.out, chunk), token(in.pre.a, job.batch.outputs[chunk]), in.pre.width); break;
    case OP_ROPE_KV:
      each_head(in, job, cut, chunk, [&](int t, int h) {
        if (h < in.n_heads) copy(token(in.out, t) + h * hd, from, hd);
        else store_head(in, job, t, h - in.n_heads, from);
        from += hd;
      });
      break;
    case OP_ATTENTION: commit_attention(in, job, cut, chunk, from); break;
    case OP_MOE_UP: case OP_MOE_DOWN: commit_experts(in, job, chunk, lane); break;
    case OP_MOE_SUM: copy(token(in.out, chunk), from, in.pre.width); break;
    default: break;
  }
}

void Program::commit_attention(const Instr& in, const Job& job, const Cut& cut, int chunk, const float* from) {
  const Item& item = job.items[cut.merge ? 0 : chunk];
  if (!cut.merge && item.split >= 0)
    return copy(parts_ + item.part * part_floats(in.head_dim), from, (item.q1 - item.q0) * part_floats(in.head_dim));
  const Merge m = cut.merge ? job.merges[chunk] : Merge{item.row, item.kv_head, item.q0, item.q1, 0, 1};
  const int hd = in.head_dim, group = in.n_heads / in.n_kv, t0 = job.batch.row_start[m.row];
  for (int q = m.q0; q < m.q1; q++) {
    const int t = q / group, at = (m.kv_head * group + q % group) * hd;
    copy(token(in.out, t0 + t) + at, from + int64_t(t) * in.n_heads * hd + at, hd);
  }
}

void Program::commit_linear(const Instr& in, const Job& job, const Cut& cut, int chunk, Lane& lane) {
  const int which = matrix_of(cut, chunk);
  if (which < 0) return copy(token(in.pre.sum, chunk - cut.first[MAX_OUTS]), lane.sum, in.pre.width);
  const int tile_rows = in.outs[which].weight->linear->tile_rows;
  const int tile = (chunk - cut.first[which]) * cut.step, left = tile_count(in.outs[which].weight) - tile;
  const int64_t rows = int64_t(left < cut.step ? left : cut.step) * tile_rows;
  const int buffer = in.epilogue == EPI_GLU ? in.out : in.outs[which].out;
  for (int t = 0; t < count(in, job); t++) copy(token(buffer, t) + int64_t(tile) * tile_rows, result(lane) + t * rows, rows);
  if (wants_tops(buffer, job)) copy(tops_ + int64_t(chunk) * count(in, job), lane.tops, count(in, job));
}

}  // namespace er

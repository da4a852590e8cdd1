// phases.cpp: what a chunk of each phase computes, and the walk through the phases of a long batch, where each ends with a
// barrier. Every phase writes only buffers it does not read, so a chunk can be computed twice with the same result.
#include <cstring>
#include "program.h"

namespace er {

constexpr uint64_t BARRIERS = ~uint64_t(0);  // a number that no phase of a relay has

// Few tokens: every thread prepares the input for itself, which is cheaper than another barrier.
bool Program::inline_prologue(const Instr& in, int n) const { return n == 1 || int64_t(n) * in.pre.width <= INLINE_FLOATS; }

int Program::tile_count(const Weight* w) { return int((w->n_rows + w->linear->tile_rows - 1) / w->linear->tile_rows); }

// At least 8 chunks a thread, of 64 rows at most unless that makes more than 256. Many columns meet two tiles at a time, one column
// four or two.
int Program::chunk_tiles(const Instr& in, int n) const {
  int tiles = 0;
  const int parts = in.epilogue == EPI_GLU ? 1 : in.n_outs;
  for (int i = 0; i < parts; i++) tiles += tile_count(in.outs[i].weight);
  const int even = tiles / (pool_->size() * 8), most = 64 / in.outs[0].weight->linear->tile_rows;
  const int least = tiles / (pool_->size() * 256);
  const int step = even < 1 ? 1 : even <= most ? even : least > most ? least : most;
  if (n == 1 && step > 1) return step < STREAMS ? 2 : step / STREAMS * STREAMS;
  return n > ONE_BY_ONE ? (step + 1) / 2 * 2 : step;
}

bool Program::uses_act(const Instr& in, Act act) {
  for (int i = 0; i < in.n_outs; i++)
    if (in.outs[i].weight->linear->act == act) return true;
  return false;
}

void Program::embed_row(const Instr& in, int32_t id, float* out) const {
  const Weight& w = *in.outs[0].weight;
  const int K = int(w.n_cols), rows = w.linear->tile_rows;
  w.linear->unpack_row(w.data + size_t(id / rows) * w.linear->tile_bytes(K), id % rows, K, out);
  if (in.scale != 1.0f) isa_->ops->scale(out, in.scale, K, out);
}

// The results lie in the lane's vectors, or in the input where nothing changes it.
void Program::prologue(const Prologue& p, int t, Lane& lane) {
  const FloatOps& f = *isa_->ops;
  float* value = vectors(lane);
  float* normed = value + (max_width_ + 15) / 16 * 16;
  const float* x = token(p.a, t);
  if (p.b >= 0) {
    const float* b = token(p.b, t);
    if (p.norm_b) {
      f.rms_norm(b, p.norm_b, p.width, p.group_b, p.eps_b, value);
      b = value;
    }
    f.add(x, b, p.width, value);
    x = value;
  }
  if (p.scale != 1.0f) {
    f.scale(x, p.scale, p.width, value);
    x = value;
  }
  if (p.norm_n) f.rms_norm(x, p.norm_n, p.width, p.group_n, p.eps_n, normed);
  lane.sum = x;
  lane.value = p.norm_n ? normed : x;
  lane.token = t;
}

void Program::quantize_token(const Instr& in, int n, int t, uint8_t* const* acts, Lane& lane) {
  prologue(in.pre, t, lane);
  for (int a = 0; a < N_ACTS; a++)
    if (uses_act(in, Act(a))) isa_->linear.quantize(Act(a), lane.value, 0, in.pre.width, n, t, t + 1, acts[a]);
}

// Tokens t0..t1 of many: what computes anything leaves it in rows beside each other, and all are quantized together.
void Program::quantize_tokens(const Instr& in, int n, int t0, int t1, uint8_t* const* acts, Lane& lane) {
  const int width = in.pre.width;
  const bool as_it_is = !computes(in.pre);
  for (int t = t0; t < t1 && !as_it_is; t++) {
    if (t + 1 < n) bring(token(in.pre.a, t + 1), width);
    if (t + 1 < n && in.pre.b >= 0) bring(token(in.pre.b, t + 1), width);
    prologue(in.pre, t, lane);
    memcpy(result(lane) + int64_t(t - t0) * width, lane.value, sizeof(float) * width);
    if (in.pre.sum >= 0) memcpy(token(in.pre.sum, t), lane.sum, sizeof(float) * width);
  }
  // Where row 0 would lie.
  const float* x = as_it_is ? token(in.pre.a, 0) : result(lane) - int64_t(t0) * width;
  for (int a = 0; a < N_ACTS; a++)
    if (uses_act(in, Act(a))) isa_->linear.quantize(Act(a), x, as_it_is ? ld_[in.pre.a] : width, width, n, t0, t1, acts[a]);
}

void Program::index_acts(const Instr& in, int n, const uint8_t* const* acts, const Lane& lane) const {
  for (int a = 0; a < N_ACTS; a++)
    if (uses_act(in, Act(a))) isa_->linear.index(Act(a), acts[a], in.pre.width, n, lane.scratch);
}

void Program::private_acts(const Instr& in, int n, const Lane& lane, uint8_t** acts) const {
  uint8_t* at = lane.scratch + private_at_;
  for (int a = 0; a < N_ACTS; a++) {
    acts[a] = at;
    if (uses_act(in, Act(a))) at += (isa_->linear.act_bytes(Act(a), in.pre.width, n) + 127) / 64 * 64;
  }
}

void Program::run_tiles(const LinearOut& o, int n, int tile, int tiles, const uint8_t* const* acts, float* out, int64_t ldo,
                        Lane& lane) {
  const Weight& w = *o.weight;
  const Linear& l = *w.linear;
  const int K = int(w.n_cols);
  l.run(w.data + size_t(tile) * l.tile_bytes(K), tiles, acts[l.act], K, n, out, ldo, lane.scratch);
  if (!o.bias) return;
  const int64_t r0 = int64_t(tile) * l.tile_rows;
  const int64_t rows = r0 + int64_t(tiles) * l.tile_rows < w.n_rows ? int64_t(tiles) * l.tile_rows : w.n_rows - r0;
  for (int t = 0; t < n; t++) isa_->ops->add(out + t * ldo, o.bias + r0, int(rows), out + t * ldo);
}

// Many columns meet the epilogue while they are in cache, where kernels know how.
bool Program::run_fused(const Instr& in, const LinearOut& o, int n, int tile, int tiles, const uint8_t* const* acts, float* out,
                        int64_t ldo, Lane& lane) {
  const Linear& l = *o.weight->linear;
  const int K = int(o.weight->n_cols);
  After after = {};
  if (!l.run_after || o.bias) return false;
  if (in.epilogue == EPI_RESIDUAL) {
    after.add = token(in.residual, 0) + tile * l.tile_rows;
    after.ld_add = ld_[in.residual];
  } else if (in.epilogue == EPI_GLU && (in.glu == GLU_SILU || in.glu == GLU_GELU) && in.outs[1].weight->linear == &l &&
             !in.outs[1].bias) {
    after.up = in.outs[1].weight->data + size_t(tile) * l.tile_bytes(K);
    after.glu = in.glu;
  } else {
    return false;
  }
  return l.run_after(o.weight->data + size_t(tile) * l.tile_bytes(K), tiles, acts[l.act], K, n, out, ldo, lane.scratch, after);
}

// Matrix `which`, or gate and up, with the epilogue; out is [n][ldo], its column 0 the first row of the tiles.
void Program::linear_tiles(const Instr& in, int which, int n, int tile, int tiles, const uint8_t* const* acts, float* out, int64_t ldo,
                           Lane& lane) {
  const LinearOut& o = in.outs[which];
  const int r0 = tile * o.weight->linear->tile_rows, rows = tiles * o.weight->linear->tile_rows;
  if (run_fused(in, o, n, tile, tiles, acts, out, ldo, lane)) return;
  if (in.epilogue == EPI_GLU) {
    float* gate = units(lane);
    float* up = gate + int64_t(n) * rows;
    run_tiles(o, n, tile, tiles, acts, gate, rows, lane);
    run_tiles(in.outs[1], n, tile, tiles, acts, up, rows, lane);
    for (int t = 0; t < n; t++) isa_->ops->glu(gate + int64_t(t) * rows, up + int64_t(t) * rows, rows, in.glu, out + t * ldo);
    return;
  }
  run_tiles(o, n, tile, tiles, acts, out, ldo, lane);
  if (in.epilogue == EPI_RESIDUAL)
    for (int t = 0; t < n; t++) isa_->ops->add(out + t * ldo, token(in.residual, t) + r0, rows, out + t * ldo);
  else if (in.epilogue == EPI_SOFTCAP)
    for (int t = 0; t < n; t++) isa_->ops->softcap(out + t * ldo, rows, in.softcap);
}

// Query head h, or KV head h - n_heads: normed and turned, into `out`.
const float* Program::rotate_head(const Instr& in, const Job& job, int t, int h, Lane& lane, float* out) {
  const FloatOps& f = *isa_->ops;
  const int hd = in.head_dim;
  const bool query = h < in.n_heads;
  const float* x = query ? token(in.q, t) + h * hd : token(in.k, t) + (h - in.n_heads) * hd;
  if (const float* norm = query ? in.q_norm : in.k_norm) {
    f.rms_norm(x, norm, hd, hd, query ? in.eps_q : in.eps_k, vectors(lane));
    x = vectors(lane);
  }
  if (in.rope >= 0) f.rope(x, hd, in.n_rot, in.interleaved != 0, job.ropes[in.rope] + int64_t(t) * job.tables[in.rope].n_rot, out);
  else memcpy(out, x, sizeof(float) * hd);
  return out;
}

uint8_t* Program::page_of(const Instr& in, const Job& job, int t, int* slot) const {
  const BatchView& b = job.batch;
  const int r = job.row_of(t), pos = b.n_past[r] + t - b.row_start[r];
  if (slot) *slot = pos % PAGE;
  return kv_->data + size_t(b.pages[int64_t(r) * b.max_pages + pos / PAGE]) * kv_->page_bytes + kv_->layers[in.layer].offset;
}

void Program::store_head(const Instr& in, const Job& job, int t, int kv_head, const float* k) {
  int slot;
  uint8_t* page = page_of(in, job, t, &slot);
  isa_->ops->write_kv(kv_->layers[in.layer].shape, page, kv_head, slot, k, token(in.v, t) + kv_head * in.head_dim);
}

// out: the row's first token. parts: the item's.
void Program::attend(const Instr& in, const Job& job, const Item& item, float* out, int64_t ld_out, float* parts, Lane& lane) {
  const KvLayer& layer = kv_->layers[in.layer];
  AttnJob a = {};
  a.q = token(in.q, job.batch.row_start[item.row]);
  a.ld_q = ld_[in.q];
  a.out = out;
  a.ld_out = ld_out;
  a.pool = kv_->data + layer.offset;
  a.page_stride = kv_->page_bytes;
  a.pages = job.batch.pages + int64_t(item.row) * job.batch.max_pages;
  a.kv = layer.shape;
  a.kv_head = item.kv_head;
  a.group = in.n_heads / in.n_kv;
  a.q0 = item.q0;
  a.q1 = item.q1;
  a.n_past = job.batch.n_past[item.row];
  a.window = in.window;
  a.scale = in.scale;
  a.softcap = in.softcap;
  a.scratch = lane.scratch;
  a.parts = item.split < 0 ? nullptr : parts;
  a.split = item.split;
  a.sinks = in.sinks;
  isa_->ops->attention(a);
}

void Program::merge(const Instr& in, const Merge& m, float* out, int64_t ld_out, Lane& lane) {
  const int hd = in.head_dim, group = in.n_heads / in.n_kv, n = m.q1 - m.q0;
  for (int q = m.q0; q < m.q1; q++)
    isa_->ops->merge_parts(kv_->layers[in.layer].shape, parts_ + (m.part + q - m.q0) * part_floats(hd), n * part_floats(hd), m.n_splits,
                           in.sinks ? in.sinks + m.kv_head * group + q % group : nullptr, vectors(lane), out + q / group * ld_out + (m.kv_head * group + q % group) * hd);
}

// A phase whose chunks are tokens, a few of them each where there are many.
template <class F> void Program::each_token(int n, int thread, const F& f) {
  const int step = n >= 32 * pool_->size() ? 4 : 1;
  pool_->next_phase((n + step - 1) / step);
  for (int c; (c = pool_->claim(thread)) >= 0;)
    for (int t = c * step; t < (c + 1) * step && t < n; t++) f(t);
}

void Program::linear(const Instr& in, const Job& job, int thread) {
  Lane& lane = lanes_[thread];
  const int n = count(in, job), step = chunk_tiles(in, n), parts = in.epilogue == EPI_GLU ? 1 : in.n_outs;
  const bool mine = inline_prologue(in, n);
  int first[MAX_OUTS + 1] = {0};
  for (int i = 0; i < parts; i++) first[i + 1] = first[i] + (tile_count(in.outs[i].weight) + step - 1) / step;
  uint8_t* acts[N_ACTS] = {act_[ACT_Q8], act_[ACT_F32]};
  if (mine) {
    private_acts(in, n, lane, acts);
  } else {
    const int together = n >= 8 * TOGETHER * pool_->size() ? TOGETHER : n >= 32 * pool_->size() ? 4 : 1;
    pool_->next_phase((n + together - 1) / together);
    for (int c; (c = pool_->claim(thread)) >= 0;)
      quantize_tokens(in, n, c * together, n < (c + 1) * together ? n : (c + 1) * together, acts, lane);
  }
  pool_->next_phase(first[parts]);
  if (mine)
    for (int t = 0; t < n; t++) {
      quantize_token(in, n, t, acts, lane);
      if (in.pre.sum >= 0 && t % pool_->size() == thread) memcpy(token(in.pre.sum, t), lane.sum, sizeof(float) * in.pre.width);
    }
  index_acts(in, n, acts, lane);
  for (int c; (c = pool_->claim(thread)) >= 0;) {
    int which = 0;
    while (c >= first[which + 1]) which++;
    const int tile = (c - first[which]) * step, left = tile_count(in.outs[which].weight) - tile, tiles = left < step ? left : step;
    const int buffer = in.epilogue == EPI_GLU ? in.out : in.outs[which].out;
    float* out = buffers_[buffer] + tile * in.outs[which].weight->linear->tile_rows;
    linear_tiles(in, which, n, tile, tiles, acts, out, ld_[buffer], lane);
    if (wants_tops(buffer, job)) top_of_rows(in, n, tile, tiles, out, ld_[buffer], tops_ + int64_t(c) * n);
  }
}

// Long prefills would make more chunks than is worth claiming, were each of them one head.
void Program::rope_kv(const Instr& in, const Job& job, int thread) {
  Lane& lane = lanes_[thread];
  const int heads = in.n_heads + in.n_kv, hd = in.head_dim;
  each_token(job.batch.n_tokens, thread, [&](int t) {
    if (t + 1 < job.batch.n_tokens) {
      bring(token(in.q, t + 1), int64_t(in.n_heads) * hd);
      bring(token(in.k, t + 1), int64_t(in.n_kv) * hd);
      bring(token(in.v, t + 1), int64_t(in.n_kv) * hd);
    }
    for (int h = 0; h < in.n_heads; h++) rotate_head(in, job, t, h, lane, token(in.out, t) + h * hd);
    for (int h = in.n_heads; h < heads; h++) store_head(in, job, t, h - in.n_heads, rotate_head(in, job, t, h, lane, result(lane)));
  });
}

void Program::run_phases(const Job& job, int thread) {
  Lane& lane = lanes_[thread];
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    const int n = count(in, job);
    if (n == 0) continue;
    const auto rows = [&](auto&& body) { each_token(n, thread, body); };
    switch (in.op) {
      case OP_EMBED: rows([&](int t) { embed_row(in, job.batch.tokens[t], token(in.out, t)); }); break;
      case OP_TOKENWISE:
        rows([&](int t) {
          prologue(in.pre, t, lane);
          memcpy(token(in.out, t), lane.value, sizeof(float) * in.pre.width);
          if (in.pre.sum >= 0) memcpy(token(in.pre.sum, t), lane.sum, sizeof(float) * in.pre.width);
        });
        break;
      case OP_LINEAR: linear(in, job, thread); break;
      case OP_ROPE_KV: rope_kv(in, job, thread); break;
      case OP_ATTENTION:
        pool_->next_phase(job.n_items);
        for (int c; (c = pool_->claim(thread)) >= 0;) {
          const Item& item = job.items[job.n_items - 1 - c];  // later queries see more: start with the dear ones
          attend(in, job, item, token(in.out, job.batch.row_start[item.row]), ld_[in.out], nullptr, lane);
        }
        break;
      case OP_GATHER:
        rows([&](int t) { memcpy(token(in.out, t), token(in.pre.a, job.batch.outputs[t]), sizeof(float) * in.pre.width); });
        break;
      case OP_MOE_UP: case OP_MOE_DOWN:
        pool_->next_phase(expert_chunks(in, n));
        lane.group = -1;
        for (int c; (c = pool_->claim(thread)) >= 0;)
          if (compute_experts(in, job, BARRIERS, c, lane)) commit_experts(in, job, c, lane);
        break;
      case OP_MOE_SUM: rows([&](int t) { sum_experts(in, job, t, token(in.out, t), lane); }); break;
      default: break;
    }
  }
}

}  // namespace er

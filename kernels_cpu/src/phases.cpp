// phases.cpp: what the threads do in each phase. Every phase writes only buffers it does not read, so a chunk can be
// computed twice with the same result.
#include <cstring>
#include "program.h"

namespace er {

void Program::embed(const Instr& in, int thread) {
  const Weight& w = *in.outs[0].weight;
  const int K = int(w.n_cols), rows = w.linear->tile_rows;
  const size_t tile_bytes = w.linear->tile_bytes(K);
  pool_->next_phase(batch_.n_tokens);
  for (int t; (t = pool_->claim(thread)) >= 0;) {
    const int64_t id = batch_.tokens[t];
    float* out = token(in.out, t);
    w.linear->unpack_row(w.data + size_t(id / rows) * tile_bytes, int(id % rows), K, out);
    if (in.scale != 1.0f) isa_->ops->scale(out, in.scale, K, out);
  }
}

const float* Program::prologue(const Prologue& p, int t, bool store_sum, int thread) {
  const FloatOps& f = *isa_->ops;
  float* value = reinterpret_cast<float*>(scratch_[thread] + vectors_at_);
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
  if (p.sum >= 0 && store_sum) memcpy(token(p.sum, t), x, sizeof(float) * p.width);
  if (!p.norm_n) return x;
  f.rms_norm(x, p.norm_n, p.width, p.group_n, p.eps_n, normed);
  return normed;
}

void Program::tokenwise(const Instr& in, int thread) {
  pool_->next_phase(count(in));
  for (int t; (t = pool_->claim(thread)) >= 0;) memcpy(token(in.out, t), prologue(in.pre, t, true, thread), sizeof(float) * in.pre.width);
}

void Program::gather(const Instr& in, int thread) {
  pool_->next_phase(batch_.n_outputs);
  for (int i; (i = pool_->claim(thread)) >= 0;) memcpy(token(in.out, i), token(in.pre.a, batch_.outputs[i]), sizeof(float) * in.pre.width);
}

void Program::quantize_token(const Instr& in, int t, bool store_sum, uint8_t* const* acts, int thread) {
  const float* x = prologue(in.pre, t, store_sum, thread);
  for (int a = 0; a < N_ACTS; a++)
    if (uses_act(in, Act(a))) isa_->linear.quantize(Act(a), x, 0, in.pre.width, count(in), t, t + 1, acts[a]);
}

void Program::linear(const Instr& in, int thread) {
  const int n = count(in), step = chunk_tiles(in);
  const bool mine = inline_prologue(in);
  const int parts = in.epilogue == EPI_GLU ? 1 : in.n_outs;
  int first[MAX_OUTS + 1] = {0};
  for (int i = 0; i < parts; i++) first[i + 1] = first[i] + (tile_count(in.outs[i].weight) + step - 1) / step;
  uint8_t* acts[N_ACTS];
  uint8_t* at = scratch_[thread] + private_at_;
  for (int a = 0; a < N_ACTS; a++) {
    acts[a] = mine ? at : act_[a];
    if (mine && uses_act(in, Act(a))) at += (isa_->linear.act_bytes(Act(a), in.pre.width, n) + 127) / 64 * 64;
  }
  if (!mine) {
    pool_->next_phase(n);
    for (int t; (t = pool_->claim(thread)) >= 0;) quantize_token(in, t, true, acts, thread);
  }
  pool_->next_phase(first[parts]);
  if (mine)
    for (int t = 0; t < n; t++) quantize_token(in, t, t % pool_->size() == thread, acts, thread);
  for (int c; (c = pool_->claim(thread)) >= 0;) {
    int which = 0;
    while (c >= first[which + 1]) which++;
    const int tile = (c - first[which]) * step, left = tile_count(in.outs[which].weight) - tile;
    const int tiles = left < step ? left : step;
    if (in.epilogue == EPI_GLU) glu_chunk(in, tile, tiles, acts, thread);
    else linear_chunk(in, which, tile, tiles, acts, thread);
  }
}

void Program::run_tiles(const Instr& in, const LinearOut& o, int tile, int tiles, const uint8_t* const* acts, float* out, int64_t ldo,
                        int thread) {
  const Weight& w = *o.weight;
  const Linear& l = *w.linear;
  const int K = int(w.n_cols), n = count(in);
  l.run(w.data + size_t(tile) * l.tile_bytes(K), tiles, acts[l.act], K, n, out, ldo, scratch_[thread]);
  if (!o.bias) return;
  const int64_t r0 = int64_t(tile) * l.tile_rows;
  const int64_t rows = r0 + int64_t(tiles) * l.tile_rows < w.n_rows ? int64_t(tiles) * l.tile_rows : w.n_rows - r0;
  for (int t = 0; t < n; t++) isa_->ops->add(out + t * ldo, o.bias + r0, int(rows), out + t * ldo);
}

void Program::linear_chunk(const Instr& in, int which, int tile, int tiles, const uint8_t* const* acts, int thread) {
  const LinearOut& o = in.outs[which];
  const int r0 = tile * o.weight->linear->tile_rows, rows = tiles * o.weight->linear->tile_rows;
  const int64_t ldo = ld_[o.out];
  float* out = buffers_[o.out] + r0;
  run_tiles(in, o, tile, tiles, acts, out, ldo, thread);
  const int n = count(in);
  if (in.epilogue == EPI_RESIDUAL)
    for (int t = 0; t < n; t++) isa_->ops->add(out + t * ldo, token(in.residual, t) + r0, rows, out + t * ldo);
  else if (in.epilogue == EPI_SOFTCAP)
    for (int t = 0; t < n; t++) isa_->ops->softcap(out + t * ldo, rows, in.softcap);
}

void Program::glu_chunk(const Instr& in, int tile, int tiles, const uint8_t* const* acts, int thread) {
  const int rows = tiles * in.outs[0].weight->linear->tile_rows, n = count(in);
  float* gate = reinterpret_cast<float*>(scratch_[thread] + glu_at_);
  float* up = gate + int64_t(n) * rows;
  run_tiles(in, in.outs[0], tile, tiles, acts, gate, rows, thread);
  run_tiles(in, in.outs[1], tile, tiles, acts, up, rows, thread);
  const int r0 = tile * in.outs[0].weight->linear->tile_rows;
  for (int t = 0; t < n; t++) isa_->ops->glu(gate + int64_t(t) * rows, up + int64_t(t) * rows, rows, in.glu, token(in.out, t) + r0);
}

// Chunk = one head of one token: query heads first, then KV heads.
void Program::rope_kv(const Instr& in, int thread) {
  const FloatOps& f = *isa_->ops;
  const KvLayer& layer = kv_->layers[in.layer];
  const int heads = in.n_heads + in.n_kv, hd = in.head_dim;
  float* tmp = reinterpret_cast<float*>(scratch_[thread] + vectors_at_);
  // Long prefills would make more chunks than is worth claiming one by one.
  const int step = batch_.n_tokens > 16 ? heads : 1, all = batch_.n_tokens * heads;
  pool_->next_phase((all + step - 1) / step);
  for (int c; (c = pool_->claim(thread)) >= 0;) {
    for (int i = c * step; i < (c + 1) * step && i < all; i++) {
      const int t = i / heads, h = i % heads;
      const bool query = h < in.n_heads;
      const float* x = query ? token(in.q, t) + h * hd : token(in.k, t) + (h - in.n_heads) * hd;
      float* out = query ? token(in.out, t) + h * hd : tmp + hd;
      if (const float* norm = query ? in.q_norm : in.k_norm) {
        f.rms_norm(x, norm, hd, hd, query ? in.eps_q : in.eps_k, tmp);
        x = tmp;
      }
      if (in.rope >= 0)
        f.rope(x, hd, in.n_rot, in.interleaved != 0, tables_[in.rope].cs + int64_t(batch_.positions[t]) * in.n_rot, out);
      else memcpy(out, x, sizeof(float) * hd);
      if (query) continue;
      const int r = row_of(t), pos = batch_.n_past[r] + t - batch_.row_start[r], head = h - in.n_heads;
      uint8_t* page = kv_->data + size_t(batch_.pages[int64_t(r) * batch_.max_pages + pos / PAGE]) * kv_->page_bytes + layer.offset;
      f.write_kv(layer.shape, page, head, pos % PAGE, out, token(in.v, t) + head * hd);
    }
  }
}

int Program::row_of(int t) const {
  int lo = 0, hi = batch_.n_rows - 1;
  while (lo < hi) {
    const int mid = (lo + hi + 1) / 2;
    if (batch_.row_start[mid] <= t) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

void Program::attention(const Instr& in, int thread) {
  const KvLayer& layer = kv_->layers[in.layer];
  AttnJob job = {};
  job.ld_q = ld_[in.q];
  job.ld_out = ld_[in.out];
  job.pool = kv_->data + layer.offset;
  job.page_stride = kv_->page_bytes;
  job.kv = layer.shape;
  job.group = in.n_heads / in.n_kv;
  job.window = in.window;
  job.scale = in.scale;
  job.softcap = in.softcap;
  job.scratch = scratch_[thread];
  pool_->next_phase(n_items_);
  for (int c; (c = pool_->claim(thread)) >= 0;) {
    const Item& item = items_[n_items_ - 1 - c];  // later queries see more: start with the dear ones
    const int t0 = batch_.row_start[item.row];
    job.q = token(in.q, t0);
    job.out = token(in.out, t0);
    job.pages = batch_.pages + int64_t(item.row) * batch_.max_pages;
    job.kv_head = item.kv_head;
    job.q0 = item.q0;
    job.q1 = item.q1;
    job.n_past = batch_.n_past[item.row];
    isa_->ops->attention(job);
  }
}

}  // namespace er

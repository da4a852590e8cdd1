// float_ops.h: the float kernels one instruction set offers the executor. All of them are pure functions of one
// token (or one query): nothing depends on what else is in the batch.
#pragma once
#include <cstddef>
#include <cstdint>

namespace er {

constexpr int PAGE = 32;         // tokens in a KV page; base.py's PAGE_SIZE
constexpr int SPLIT_PAGES = 64;  // pages summed before a merge: part of the numeric contract
constexpr int TILE = 96;         // queries of a KV head that attention takes at a time

// GLU_OAI is gpt-oss's: gate and up are cut off at 7 (gate above only), gate * sigmoid(1.702 gate) * (up + 1).
enum Glu : int { GLU_SILU = 1, GLU_GELU = 2, GLU_OAI = 3 };
enum KvType : int { KV_F16 = 0, KV_F32 = 1, KV_Q8_0 = 2, KV_Q4R = 3, N_KV_TYPES = 4 };
constexpr int MAX_ROTATED = 1024;  // longest head of KV_Q4R

// One layer's part of a page: K of every KV head, then V of every KV head, in the type's own order (kv_float.h,
// kv_q8.h, kv_q4.h).
struct KvShape {
  int type;      // KvType
  int n_kv, head_dim, v_dim;  // v_dim = head_dim rounded up to 16 with zeros behind
  size_t k_bytes, v_bytes;  // of one KV head
};

inline KvShape kv_shape(int type, int n_kv, int head_dim) {
  KvShape s = {type, n_kv, head_dim, (head_dim + 15) / 16 * 16, 0, 0};
  const size_t scales = size_t((head_dim + 31) / 32) * PAGE * 2;
  if (type == KV_Q8_0) {
    s.k_bytes = size_t((head_dim + 3) / 4) * 4 * PAGE + scales;
    s.v_bytes = size_t(s.v_dim) * PAGE + scales;
  } else if (type == KV_Q4R) {
    s.k_bytes = size_t((head_dim + 7) / 8) * 4 * PAGE + scales;
    s.v_bytes = size_t(s.v_dim) / 2 * PAGE + scales;
  } else {
    const size_t item = type == KV_F16 ? 2 : 4;
    s.k_bytes = size_t(head_dim) * PAGE * item;
    s.v_bytes = size_t(s.v_dim) * PAGE * item;
  }
  return s;
}

// Queries q0..q1 of one row and KV head; query q is token q / group, head kv_head * group + q % group.
struct AttnJob {
  const float* q;            // [n_tokens][ld_q], the row's first token
  int64_t ld_q;
  float* out;                // [n_tokens][ld_out]
  int64_t ld_out;
  const uint8_t* pool;       // pages, this layer's part of page 0
  size_t page_stride;
  const int32_t* pages;      // the row's block table
  KvShape kv;
  int kv_head, group;
  int q0, q1;
  int n_past;                // position of the row's first token in its pages
  int window;                // 0: none
  float scale, softcap;
  uint8_t* scratch;          // 64-byte aligned, attn_scratch bytes
  float* parts;              // not null: compute `split` alone and leave it here, part_floats a query, instead of in out
  int split;
  const float* sinks;        // null, or of each head one more score, that of no token
};

// What a split leaves of a query: its maximum, then sixteen sums of exponentials, then weighed values.
constexpr int64_t part_floats(int head_dim) { return (head_dim + 15) / 16 * 16 + 32; }

struct FloatOps {
  // out may be x. `group` divides n; the weight has `group` values.
  void (*rms_norm)(const float* x, const float* w, int n, int group, float eps, float* out);
  void (*add)(const float* x, const float* y, int n, float* out);
  void (*scale)(const float* x, float s, int n, float* out);
  void (*glu)(const float* gate, const float* up, int n, int act, float* out);
  void (*softcap)(float* x, int n, float cap);
  // The largest of n values; NaN unless all are finite.
  float (*top)(const float* x, int n);
  // One head. cs: n_rot / 2 cosines, then n_rot / 2 sines.
  void (*rope)(const float* x, int head_dim, int n_rot, bool interleaved, const float* cs, float* out);
  // Slot `t` of a page. k: [head_dim], v: [head_dim].
  void (*write_kv)(const KvShape& s, uint8_t* page, int kv_head, int t, const float* k, const float* v);
  size_t (*attn_scratch)(int head_dim);
  void (*attention)(const AttnJob& job);
  // Fold one query's n_splits parts, `stride` floats apart, in order, then its head's sink if there is one. out: [head_dim].
  // tot: v_dim floats of scratch.
  void (*merge_parts)(const KvShape& s, const float* parts, int64_t stride, int n_splits, const float* sink, float* tot, float* out);
  // In place; all NaN if some value is NaN or the largest is infinite.
  void (*softmax)(float* x, int n);
  // out += s * x, rounded once
  void (*add_scaled)(const float* x, float s, int n, float* out);
};

}  // namespace er

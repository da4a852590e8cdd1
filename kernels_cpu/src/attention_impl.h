// attention_impl.h: attention over paged K and V with an online softmax (arXiv:1805.02867), page by page in order.
// A query's result depends on its own sequence alone: blocks of queries only share the loads.
#pragma once
#include "float_ops.h"
#include "vec16.h"

namespace er {
namespace ER_ISA {

#if defined(__AVX512F__)
enum { QUERY_BLOCK = 8 };
#else
enum { QUERY_BLOCK = 2 };  // a v16 is two or four registers here
#endif
constexpr float NEG_INF = -__builtin_inff();

ER_INL void store_part(float* p, v16 x, int n) { alignas(64) float t[16]; store(t, x); memcpy(p, t, size_t(n) * 4); }

// Relative error below 2e-7 on [-87, 88]; smaller arguments give exp(-87), NaN stays NaN (the operand order matters).
ER_INL v16 vexp(v16 x) {
  x = vmin(splat(88.0f), vmax(splat(-87.0f), x));
  const v16 n = round_even(mul(x, splat(1.44269504f)));
  const v16 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));  // x - n ln 2, in two parts
  v16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(mul(r, r), p, add(r, splat(1)));
  return mul(p, pow2i(n));
}
static float exp1(float x) { alignas(64) float t[16]; store(t, vexp(splat(x))); return t[0]; }

// cap * tanh(x / cap), tanh(y) = 1 - 2 / (1 + exp(2y))
ER_INL v16 softcap16(v16 x, float cap) {
  const v16 e = vexp(mul(x, splat(2.0f / cap)));
  return mul(splat(cap), sub(splat(1), div(splat(2), add(splat(1), e))));
}

struct KvF16 { using T = uint16_t; ER_INL v16 get(const T* p) { return load_f16(p); } ER_INL void put(T* p, v16 x) { store_f16(p, x); } };
struct KvF32 { using T = float; ER_INL v16 get(const T* p) { return load(p); } ER_INL void put(T* p, v16 x) { store(p, x); } };

template <class E> static void write_kv_as(const KvShape& s, uint8_t* page, int kv_head, int t, const float* k, const float* v) {
  using T = typename E::T;
  T* kp = (T*)(page + kv_head * s.k_bytes);
  T* vp = (T*)(page + s.n_kv * s.k_bytes + kv_head * s.v_bytes) + t * s.v_dim;
  for (int d = 0; d < s.head_dim; d += 16) {
    const int m = s.head_dim - d < 16 ? s.head_dim - d : 16;
    T tmp[16];
    E::put(tmp, m == 16 ? load(k + d) : load_part(k + d, m));
    for (int i = 0; i < m; i++) kp[(d + i) * PAGE + t] = tmp[i];
    E::put(tmp, m == 16 ? load(v + d) : load_part(v + d, m));
    memcpy(vp + d, tmp, sizeof tmp);
  }
}

static void write_kv(const KvShape& s, uint8_t* page, int kv_head, int t, const float* k, const float* v) {
  if (s.type == KV_F16) write_kv_as<KvF16>(s, page, kv_head, t, k, v);
  else write_kv_as<KvF32>(s, page, kv_head, t, k, v);
}

// Running state of a block of queries: maximum, per-lane sums of exponentials, weighted values.
struct Block {
  float* q;    // [QUERY_BLOCK][head_dim], scaled
  float* acc;  // [QUERY_BLOCK][v_dim] of the split in progress
  float* tot;  // [QUERY_BLOCK][v_dim] of the splits before
  alignas(64) float p[QUERY_BLOCK][PAGE];
  alignas(64) float l[QUERY_BLOCK][16], lt[QUERY_BLOCK][16];
  float m[QUERY_BLOCK], mt[QUERY_BLOCK];
  int first[QUERY_BLOCK], last[QUERY_BLOCK];  // visible positions, inclusive
};

template <class E, int N> static void scores(const Block& b, const typename E::T* k, int head_dim, v16 s[][2]) {
  for (int i = 0; i < N; i++) s[i][0] = s[i][1] = splat(0);
  for (int d = 0; d < head_dim; d++) {
    const v16 k0 = E::get(k + d * PAGE), k1 = E::get(k + d * PAGE + 16);
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
      const v16 x = splat(b.q[i * head_dim + d]);
      s[i][0] = fma(x, k0, s[i][0]);
      s[i][1] = fma(x, k1, s[i][1]);
    }
  }
}

// Exponentials of one query's page of scores; returns the factor by which earlier sums shrink.
static float softmax_page(Block& b, int i, int base, v16 s0, v16 s1, float softcap) {
  const int lo = b.first[i] - base, hi = b.last[i] + 1 - base;
  if (softcap > 0) { s0 = softcap16(s0, softcap); s1 = softcap16(s1, softcap); }
  float* p = b.p[i];
  const bool part = lo > 0 || hi < PAGE;
  if (part) {  // what lies outside may be another sequence's old bytes: drop it by selection, not arithmetic
    store(p, s0); store(p + 16, s1);
    for (int t = 0; t < PAGE; t++) if (t < lo || t >= hi) p[t] = NEG_INF;
    s0 = load(p); s1 = load(p + 16);
  }
  const float top = max16(vmax(s0, s1)), m = b.m[i] > top ? b.m[i] : top;
  s0 = vexp(sub(s0, splat(m))); s1 = vexp(sub(s1, splat(m)));
  store(p, s0); store(p + 16, s1);
  if (part) {
    for (int t = 0; t < PAGE; t++) if (t < lo || t >= hi) p[t] = 0;
    s0 = load(p); s1 = load(p + 16);
  }
  const float shrink = b.m[i] == NEG_INF ? 0.0f : exp1(b.m[i] - m);
  store(b.l[i], fma(load(b.l[i]), splat(shrink), add(s0, s1)));
  b.m[i] = m;
  return shrink;
}

// Values: two vectors of dimensions (or one) at a time for N queries; each is loaded once for all of them.
template <class E, int N, bool TWO> ER_INL void weigh(Block& b, const typename E::T* v, int v_dim, int d0, int t0, int t1, const float* shrink) {
  v16 x[N], y[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) {
    const float* acc = b.acc + i * v_dim + d0;
    x[i] = mul(load(acc), splat(shrink[i]));
    if (TWO) y[i] = mul(load(acc + 16), splat(shrink[i]));
  }
  v += t0 * v_dim + d0;
  for (int t = t0; t < t1; t++, v += v_dim) {
    const v16 v0 = E::get(v), v1 = TWO ? E::get(v + 16) : v0;
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
      const v16 p = splat(b.p[i][t]);
      x[i] = fma(p, v0, x[i]);
      if (TWO) y[i] = fma(p, v1, y[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) {
    float* acc = b.acc + i * v_dim + d0;
    store(acc, x[i]);
    if (TWO) store(acc + 16, y[i]);
  }
}

template <class E, int N> static void attend_page(Block& b, const AttnJob& job, int page, int t0, int t1) {
  const KvShape& s = job.kv;
  const uint8_t* base = job.pool + size_t(job.pages[page]) * job.page_stride;
  const auto* k = (const typename E::T*)(base + job.kv_head * s.k_bytes);
  const auto* v = (const typename E::T*)(base + s.n_kv * s.k_bytes + job.kv_head * s.v_bytes);
  v16 sc[N][2];
  scores<E, N>(b, k, s.head_dim, sc);
  float shrink[N];
  for (int i = 0; i < N; i++) {
    const bool sees = b.first[i] < (page + 1) * PAGE && b.last[i] >= page * PAGE;
    if (sees) shrink[i] = softmax_page(b, i, page * PAGE, sc[i][0], sc[i][1], job.softcap);
    else { shrink[i] = 1; memset(b.p[i], 0, sizeof b.p[i]); }
  }
  int d = 0;
  for (; d + 32 <= s.v_dim; d += 32) weigh<E, N, true>(b, v, s.v_dim, d, t0, t1, shrink);
  for (; d < s.v_dim; d += 16) weigh<E, N, false>(b, v, s.v_dim, d, t0, t1, shrink);
}

// Fold the finished split into the total: both sides shrink to the common maximum.
static void merge_split(Block& b, int n, int v_dim) {
  for (int i = 0; i < n; i++) {
    if (b.m[i] == NEG_INF) continue;
    const float m = b.mt[i] > b.m[i] ? b.mt[i] : b.m[i];
    const float x = b.mt[i] == NEG_INF ? 0.0f : exp1(b.mt[i] - m), y = exp1(b.m[i] - m);
    store(b.lt[i], fma(load(b.lt[i]), splat(x), mul(load(b.l[i]), splat(y))));
    for (int d = 0; d < v_dim; d += 16)
      store(b.tot + i * v_dim + d, fma(load(b.tot + i * v_dim + d), splat(x), mul(load(b.acc + i * v_dim + d), splat(y))));
    b.mt[i] = m;
  }
}

static void start_split(Block& b, int n, int v_dim) {
  for (int i = 0; i < n; i++) { b.m[i] = NEG_INF; store(b.l[i], splat(0)); }
  memset(b.acc, 0, size_t(n) * v_dim * 4);
}

template <class E, int N> static void attend_block(const AttnJob& job, int q0) {
  const KvShape& s = job.kv;
  Block b;
  b.q = (float*)job.scratch;
  b.acc = b.q + QUERY_BLOCK * s.v_dim;
  b.tot = b.acc + QUERY_BLOCK * s.v_dim;
  int from = 0x7fffffff, to = 0;
  for (int i = 0; i < N; i++) {
    const int tok = (q0 + i) / job.group, head = job.kv_head * job.group + (q0 + i) % job.group;
    const float* src = job.q + tok * job.ld_q + head * s.head_dim;
    for (int d = 0; d < s.head_dim; d++) b.q[i * s.head_dim + d] = src[d] * job.scale;
    b.last[i] = job.n_past + tok;
    b.first[i] = job.window > 0 && b.last[i] >= job.window ? b.last[i] - job.window + 1 : 0;
    from = b.first[i] < from ? b.first[i] : from;
    to = b.last[i] > to ? b.last[i] : to;
    b.mt[i] = NEG_INF;
    store(b.lt[i], splat(0));
  }
  memset(b.tot, 0, size_t(N) * s.v_dim * 4);
  const int p0 = from / PAGE, p1 = to / PAGE;
  start_split(b, N, s.v_dim);
  for (int p = p0; p <= p1; p++) {
    if (p > p0 && p % SPLIT_PAGES == 0) { merge_split(b, N, s.v_dim); start_split(b, N, s.v_dim); }
    const int t0 = p == p0 ? from % PAGE : 0, t1 = p == p1 ? to % PAGE + 1 : PAGE;
    attend_page<E, N>(b, job, p, t0, t1);
  }
  merge_split(b, N, s.v_dim);
  for (int i = 0; i < N; i++) {
    const int tok = (q0 + i) / job.group, head = job.kv_head * job.group + (q0 + i) % job.group;
    const float r = 1.0f / sum16(load(b.lt[i]));
    float* dst = job.out + tok * job.ld_out + head * s.head_dim;
    for (int d = 0; d < s.head_dim; d++) dst[d] = b.tot[i * s.v_dim + d] * r;
  }
}

template <class E> static void attention_as(const AttnJob& job) {
  int q = job.q0;
  for (; q + QUERY_BLOCK <= job.q1; q += QUERY_BLOCK) attend_block<E, QUERY_BLOCK>(job, q);
#if defined(__AVX512F__)
  for (; q + 4 <= job.q1; q += 4) attend_block<E, 4>(job, q);
  for (; q + 3 <= job.q1; q += 3) attend_block<E, 3>(job, q);
  for (; q + 2 <= job.q1; q += 2) attend_block<E, 2>(job, q);
#endif
  for (; q < job.q1; q++) attend_block<E, 1>(job, q);
}

static size_t attn_scratch(int head_dim, int) { return size_t(3) * QUERY_BLOCK * ((head_dim + 15) / 16 * 16) * 4 + 64; }

static void attention(const AttnJob& job) {
  if (job.kv.type == KV_F16) attention_as<KvF16>(job);
  else attention_as<KvF32>(job);
}

}  // namespace ER_ISA
}  // namespace er

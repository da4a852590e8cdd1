// attention_impl.h: attention over paged K and V with an online softmax (arXiv:1805.02867), page by page in order.
// A query's result depends on its own sequence alone: tiles of queries only share the loads. Per query and page: dot products
// over the dimensions in order, sums of exponentials per lane, values over the tokens in order; SPLIT_PAGES of them make a
// split, and splits are folded in order, whether one thread walks them all or each is computed apart.
#pragma once
#include "kv_float.h"
#include "kv_q4.h"
#include "kv_q8.h"
#include "simd_int.h"

namespace er {
namespace ER_ISA {

// Calls f(Int<N>, first query) for blocks of N queries that cover n.
template <class F> ER_INL void blocks(int n, const F& f) {
  int i = 0;
  for (; i + QUERY_BLOCK <= n; i += QUERY_BLOCK) f(q8::Int<QUERY_BLOCK>{}, i);
  if constexpr (QUERY_BLOCK > 2) {
    if (i + 4 <= n) { f(q8::Int<4>{}, i); i += 4; }
    if (i + 3 <= n) { f(q8::Int<3>{}, i); i += 3; }
    if (i + 2 <= n) { f(q8::Int<2>{}, i); i += 2; }
  }
  if (i < n) f(q8::Int<1>{}, i);
}

// acc[i] = acc[i] * shrink[i] (nothing, where `fresh`) + the sum over t of p[i][t] * v[t], for dimensions d0 and on.
template <class V, int N, int VECS>
ER_INL void weigh_part(const V& v, const float (*p)[PAGE], const float* shrink, bool fresh, float* acc, int v_dim, int d0, int t0, int t1) {
  v16 x[N][VECS];
  ER_UNROLL for (int i = 0; i < N; i++)
    ER_UNROLL for (int j = 0; j < VECS; j++)
      x[i][j] = fresh ? splat(0) : mul(load(acc + i * v_dim + d0 + 16 * j), splat(shrink[i]));
  for (int t = t0; t < t1; t++) {
    v16 y[VECS];
    ER_UNROLL for (int j = 0; j < VECS; j++) y[j] = V::get(v, t, d0 + 16 * j);
    V::ahead(v, t, d0);
    ER_UNROLL for (int i = 0; i < N; i++) {
      const v16 w = splat(p[i][t]);
      ER_UNROLL for (int j = 0; j < VECS; j++) x[i][j] = fma(w, y[j], x[i][j]);
    }
  }
  ER_UNROLL for (int i = 0; i < N; i++)
    ER_UNROLL for (int j = 0; j < VECS; j++) store(acc + i * v_dim + d0 + 16 * j, x[i][j]);
}
template <class V, int N>
static void weigh(const V& v, const float (*p)[PAGE], const float* shrink, bool fresh, float* acc, int v_dim, int t0, int t1) {
  int d = 0;
  for (; d + 16 * VECTORS <= v_dim; d += 16 * VECTORS) weigh_part<V, N, VECTORS>(v, p, shrink, fresh, acc, v_dim, d, t0, t1);
  if (d < v_dim) weigh_part<V, N, 1>(v, p, shrink, fresh, acc, v_dim, d, t0, t1);
}

// What a block of N queries sees of a page: tokens from..to, none if that is empty.
struct Span { int from, to; };
template <int N> ER_INL Span span_of(const Tile& t, int i0, int page) {
  const int from = t.first[i0] - page * PAGE, to = t.last[i0 + N - 1] + 1 - page * PAGE;  // later queries see later tokens
  return {from > 0 ? from : 0, to < PAGE ? to : PAGE};
}

// Scores of queries i0..i0+N with a page become weights, and its values part of their sums.
template <class V, int N>
ER_INL void fold_page(Tile& t, const AttnJob& job, int i0, int page, Span at, const V& v, float (*p)[PAGE]) {
  const int base = page * PAGE;
  if (job.softcap > 0)
    for (int i = 0; i < N * PAGE; i += 16) store(p[0] + i, softcap16(load(p[0] + i), job.softcap));
  if (t.first[i0 + N - 1] <= base && t.last[i0] + 1 >= base + PAGE) softmax_page<N, true>(t, p, i0, base);
  else softmax_page<N, false>(t, p, i0, base);
  weigh<V, N>(v, p, t.shrink, t.fresh[i0], t.acc + i0 * t.v_dim, t.v_dim, at.from, at.to);
  t.fresh[i0] = 0;
}

template <class K, class V, int N>
ER_INL void attend_page(Tile& t, const AttnJob& job, int i0, int page, const uint8_t* k, const uint8_t* next_k, const V& v) {
  const Span at = span_of<N>(t, i0, page);
  if (at.from >= at.to) return;
  K::template scores<N>(t.q + i0 * t.v_dim, k, next_k, t.head_dim, at.from, at.to, t.p);
  fold_page<V, N>(t, job, i0, page, at, v, t.p);
}

// The same for all queries of a tile. Full blocks take turns in two rooms for scores: a block's are made before those of the
// block before are folded, so that the one's long chains hide behind the other's products.
template <class K, class V>
static void attend_blocks(Tile& t, const AttnJob& job, int page, const uint8_t* k, const V& v) {
  constexpr int N = QUERY_BLOCK;
  const int full = t.n / N * N;
  int waiting = -1;
  Span seen_before = {0, 0};
  float (*p)[PAGE] = t.p, (*other)[PAGE] = t.p + N;
  const auto fold = [&](int i, Span at) __attribute__((always_inline)) { fold_page<V, N>(t, job, i, page, at, v, other); };
  for (int i = 0; i <= full; i += N) {
    const Span at = i < full ? span_of<N>(t, i, page) : Span{0, 0};
    const bool sees = at.from < at.to;
    if (sees) K::template scores<N>(t.q + i * t.v_dim, k, nullptr, t.head_dim, at.from, at.to, p);
    if (waiting >= 0) fold(waiting, seen_before);
    waiting = sees ? i : -1;
    seen_before = at;
    float (*const swap)[PAGE] = p;
    p = other;
    other = swap;
  }
  blocks(t.n - full, [&](auto n, int i) { attend_page<K, V, n.v>(t, job, full + i, page, k, nullptr, v); });
}

template <class V> static void widen_v(const V& v, int v_dim, int t1, float* out) {
  for (int t = 0; t < t1; t++, out += v_dim) {
    int d = 0;
    for (; d + 32 <= v_dim; d += 32) {
      V::ahead(v, t, d);
      const v16 a = V::get(v, t, d), b = V::get(v, t, d + 16);
      store(out + d, a);
      store(out + d + 16, b);
    }
    if (d < v_dim) { V::ahead(v, t, d); store(out + d, V::get(v, t, d)); }
  }
}

// Pages p0..p1 of one split.
template <class E> static void attend_split(Tile& t, const AttnJob& job, int p0, int p1) {
  const KvShape& s = job.kv;
  const size_t k_at = job.kv_head * s.k_bytes, v_at = s.n_kv * s.k_bytes + job.kv_head * s.v_bytes;
  start_split(t);
  for (int p = p0; p < p1; p++) {
    const uint8_t* page = job.pool + size_t(job.pages[p]) * job.page_stride;
    const uint8_t* next = p + 1 < p1 ? job.pool + size_t(job.pages[p + 1]) * job.page_stride : nullptr;
    const uint8_t *k = page + k_at, *next_k = next ? next + k_at : nullptr;
    const typename E::Values v(page + v_at, next ? next + v_at : nullptr, s, t.scales);
    if (t.n <= QUERY_BLOCK) {
      blocks(t.n, [&](auto n, int i) { attend_page<E, typename E::Values, n.v>(t, job, i, p, k, i ? nullptr : next_k, v); });
      continue;
    }
    const int seen = t.last[t.n - 1] + 1 - p * PAGE;
    widen_v(v, s.v_dim, seen < PAGE ? seen : PAGE, t.v);
    const KvFloat<F32>::Values wide((const uint8_t*)t.v, nullptr, s, nullptr);
    if constexpr (E::WIDE_K) {
      E::widen_k(k, next_k, s, t.k);
      k = (const uint8_t*)t.k;
    }
    attend_blocks<typename E::Many>(t, job, p, k, wide);
  }
}

static void finish_head(const KvShape& s, const float* tot, const float* lt, float* out) {
  finish(tot, lt, s.head_dim, out);
  if (s.type == KV_Q4R) rotate(out, s.head_dim);
}

// Lines of a query that other threads have written and of its result, which they have read.
ER_INL void fetch_query(const AttnJob& job, int q) {
  const int64_t tok = q / job.group, head = job.kv_head * job.group + q % job.group;
  for (int d = 0; d < job.kv.head_dim; d += 16) {
    __builtin_prefetch(job.q + tok * job.ld_q + head * job.kv.head_dim + d, 0, 3);
    __builtin_prefetch(job.out + tok * job.ld_out + head * job.kv.head_dim + d, 1, 2);
  }
}

template <class E> static void attend_tile(const AttnJob& job, int q0, int n) {
  const KvShape& s = job.kv;
  Tile t = carve(job.scratch, n, s.head_dim, s.v_dim);
  blocks(n, [&](auto size, int i0) {
    for (int i = 0; i < size.v; i++) {
      if (n > QUERY_BLOCK && i0 + i + QUERY_BLOCK < n) fetch_query(job, q0 + i0 + i + QUERY_BLOCK);
      const int q = q0 + i0 + i, tok = q / job.group, head = job.kv_head * job.group + q % job.group;
      op_scale(job.q + tok * job.ld_q + head * s.head_dim, job.scale, s.head_dim, t.row);
      E::put_query(t.row, s.head_dim, size.v, i, t.q + size_t(i0) * s.v_dim);
      t.last[i0 + i] = job.n_past + tok;
      t.first[i0 + i] = job.window > 0 && t.last[i0 + i] >= job.window ? t.last[i0 + i] - job.window + 1 : 0;
    }
  });
  int p = t.first[0] / PAGE, end = t.last[n - 1] / PAGE + 1;  // later tokens see later pages
  if (job.parts) {
    p = p > job.split * SPLIT_PAGES ? p : job.split * SPLIT_PAGES;
    end = end < (job.split + 1) * SPLIT_PAGES ? end : (job.split + 1) * SPLIT_PAGES;
    attend_split<E>(t, job, p, end);
    for (int i = 0; i < n; i++) {
      float* part = job.parts + (q0 - job.q0 + i) * part_floats(s.head_dim);
      part[0] = t.m[i];
      memcpy(part + 16, t.l[i], 64);
      memcpy(part + 32, t.acc + size_t(i) * s.v_dim, size_t(s.v_dim) * 4);
    }
    return;
  }
  const bool one_split = (end - 1) / SPLIT_PAGES == p / SPLIT_PAGES;
  if (!one_split) {
    for (int i = 0; i < n; i++) { t.mt[i] = NEG_INF; store(t.lt[i], splat(0)); }
    memset(t.tot, 0, size_t(n) * s.v_dim * 4);
  }
  while (p < end) {
    const int next = (p / SPLIT_PAGES + 1) * SPLIT_PAGES, p1 = next < end ? next : end;
    attend_split<E>(t, job, p, p1);
    for (int i = 0; i < n && !one_split; i++) {
      const size_t at = size_t(i) * s.v_dim;
      merge(t.m[i], t.l[i], t.acc + at, s.v_dim, t.mt[i], t.lt[i], t.tot + at);
    }
    p = p1;
  }
  float *const m = one_split ? t.m : t.mt, *const sums = one_split ? t.acc : t.tot, (*const l)[16] = one_split ? t.l : t.lt;
  for (int i = 0; i < n; i++) {
    const int tok = (q0 + i) / job.group, head = job.kv_head * job.group + (q0 + i) % job.group;
    float* tot = sums + size_t(i) * s.v_dim;
    if (job.sinks) add_sink(job.sinks[head], s.v_dim, m[i], l[i], tot);
    finish_head(s, tot, l[i], job.out + tok * job.ld_out + head * s.head_dim);
  }
}

template <class E> static void attention_as(const AttnJob& job) {
  for (int q = job.q0; q < job.q1; q += TILE) attend_tile<E>(job, q, job.q1 - q < TILE ? job.q1 - q : TILE);
}

static void attention(const AttnJob& job) {
  if (job.kv.type == KV_F16) attention_as<KvFloat<F16>>(job);
  else if (job.kv.type == KV_Q8_0) attention_as<KvQ8>(job);
  else if (job.kv.type == KV_Q4R) attention_as<KvQ4>(job);
  else attention_as<KvFloat<F32>>(job);
}

static void merge_parts(const KvShape& s, const float* parts, int64_t stride, int n_splits, const float* sink, float* tot,
                        float* out) {
  alignas(64) float lt[16] = {};
  float mt = NEG_INF;
  memset(tot, 0, size_t(s.v_dim) * 4);
  for (int i = 0; i < n_splits; i++, parts += stride) merge(parts[0], parts + 16, parts + 32, s.v_dim, mt, lt, tot);
  if (sink) add_sink(*sink, s.v_dim, mt, lt, tot);
  finish_head(s, tot, lt, out);
}

static void write_kv(const KvShape& s, uint8_t* page, int kv_head, int t, const float* k, const float* v) {
  uint8_t* kp = page + kv_head * s.k_bytes;
  uint8_t* vp = page + s.n_kv * s.k_bytes + kv_head * s.v_bytes;
  if (s.type == KV_F16) KvFloat<F16>::write(s, kp, vp, t, k, v);
  else if (s.type == KV_Q8_0) KvQ8::write(s, kp, vp, t, k, v);
  else if (s.type == KV_Q4R) KvQ4::write(s, kp, vp, t, k, v);
  else KvFloat<F32>::write(s, kp, vp, t, k, v);
}

}  // namespace ER_ISA
}  // namespace er

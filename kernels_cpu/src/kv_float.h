// kv_float.h: K and V as f16 or f32. K is [n_kv][head_dim][PAGE], then V [n_kv][PAGE][v_dim]: K is transposed so that a
// vector holds sixteen tokens and no dot product needs a horizontal sum.
#pragma once
#include "attention_tile.h"

namespace er {
namespace ER_ISA {

struct F16 { using T = uint16_t; ER_INL v16 get(const T* p) { return load_f16(p); } ER_INL void put(T* p, v16 x) { store_f16(p, x); } };
struct F32 { using T = float; ER_INL v16 get(const T* p) { return load(p); } ER_INL void put(T* p, v16 x) { store(p, x); } };

template <class E> struct KvFloat {
  using T = typename E::T;
  enum { WIDE_K = 1 };  // several blocks of queries work on a page widened to floats

  using Many = KvFloat<F32>;  // reads what widen_k writes

  ER_INL int64_t query_floats(int head_dim) { return (head_dim + 15) / 16 * 16; }
  // Query i of a block.
  static void put_query(const float* row, int head_dim, int, int i, float* q) {
    memcpy(q + i * query_floats(head_dim), row, size_t(head_dim) * 4);
  }

  template <int N, int VECS>
  ER_INL void scores_part(const float* q, const T* k, const T* next, int head_dim, float (*s)[PAGE], int h) {
    const int64_t ld = query_floats(head_dim);
    v16 sum[N][VECS];
    ER_UNROLL for (int i = 0; i < N; i++)
      ER_UNROLL for (int j = 0; j < VECS; j++) sum[i][j] = splat(0);
    for (int d = 0; d < head_dim; d++) {
      v16 x[VECS];
      ER_UNROLL for (int j = 0; j < VECS; j++) x[j] = E::get(k + d * PAGE + h + j * 16);
      if (next) __builtin_prefetch(next + d * PAGE);
      ER_UNROLL for (int i = 0; i < N; i++) {
        const v16 y = splat(q[i * ld + d]);
        ER_UNROLL for (int j = 0; j < VECS; j++) sum[i][j] = fma(y, x[j], sum[i][j]);
      }
    }
    ER_UNROLL for (int i = 0; i < N; i++)
      ER_UNROLL for (int j = 0; j < VECS; j++) store(s[i] + h + j * 16, sum[i][j]);
  }
  // q: [N][query_floats], s: [N][PAGE], of which the halves with tokens from..to are written. The page after this one is
  // fetched meanwhile.
  template <int N>
  static void scores(const float* q, const uint8_t* page_k, const uint8_t* next, int head_dim, int from, int to, float (*s)[PAGE]) {
    const T *k = (const T*)page_k, *ahead = (const T*)next;
    if (VECTORS == 2 && !next && (from >= 16 || to <= 16)) {
      scores_part<N, 1>(q, k, nullptr, head_dim, s, to <= 16 ? 0 : 16);
      return;
    }
    for (int h = 0; h < PAGE; h += VECTORS * 16)
      if (from < h + VECTORS * 16 && to > h) scores_part<N, VECTORS>(q, k, h ? nullptr : ahead, head_dim, s, h);
  }

  // Values of a page: get(t, d) is dimension d and on of token t.
  struct Values {
    const T* v;
    const T* next;
    int v_dim;
    Values(const uint8_t* page_v, const uint8_t* next_v, const KvShape& s, float*) : v((const T*)page_v), next((const T*)next_v), v_dim(s.v_dim) {}
    ER_INL v16 get(const Values& x, int t, int d) { return E::get(x.v + t * x.v_dim + d); }
    ER_INL void ahead(const Values& x, int t, int d) { if (x.next) __builtin_prefetch(x.next + t * x.v_dim + d); }
  };

  static void widen_k(const uint8_t* page_k, const uint8_t* next, const KvShape& s, float* out) {
    for (int i = 0; i < s.head_dim * PAGE; i += 32) {
      if (next) __builtin_prefetch(next + i * sizeof(T));
      store(out + i, E::get((const T*)page_k + i));
      store(out + i + 16, E::get((const T*)page_k + i + 16));
    }
  }

  static void write(const KvShape& s, uint8_t* k, uint8_t* v, int t, const float* key, const float* value) {
    T* kp = (T*)k + t;
    T* vp = (T*)v + t * s.v_dim;
    for (int d = 0; d < s.head_dim; d += 16) {
      const int n = s.head_dim - d < 16 ? s.head_dim - d : 16;
      T tmp[16];
      E::put(tmp, load_upto(key + d, n));
      for (int i = 0; i < n; i++) kp[(d + i) * PAGE] = tmp[i];
      E::put(tmp, load_upto(value + d, n));
      memcpy(vp + d, tmp, sizeof tmp);
    }
  }
};

}  // namespace ER_ISA
}  // namespace er

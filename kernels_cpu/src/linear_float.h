// linear_float.h: y = W x for weights stored as F32, F16 or BF16; products and sums in float32.
//
// A tile is 16 rows interleaved: for each k, 16 consecutive values, so a lane is a row and x[k] is broadcast.
// The order of accumulation, the same for every column count and every instruction set:
//   even = fma over k = 0, 2, 4, ...;  odd = fma over k = 1, 3, 5, ...;  y = even + odd.
// Few columns ride straight on the weight stream. More go through panels: PANEL_K steps of the tiles are widened to float
// once, stay in L1, and serve up to CHUNK columns in register blocks; the accumulators wait in between, unchanged.
#pragma once
#include "kernels.h"
#include "vec16.h"

namespace er {
namespace ER_ISA {
namespace flt {

struct F32 {
  typedef float el;
  static constexpr bool is_float = true;
  ER_INL v16 get(const el* p) { return load(p); }
};
struct F16 {
  typedef uint16_t el;
  static constexpr bool is_float = false;
  ER_INL v16 get(const el* p) { return load_f16(p); }
};
struct BF16 {
  typedef uint16_t el;
  static constexpr bool is_float = false;
  ER_INL v16 get(const el* p) { return load_bf16(p); }
};

// What fits the registers: columns on the weight stream, and tiles x columns of a panel block (two accumulators each).
#if defined(__AVX512F__)
enum { DIRECT = 8, BLOCK_T = 2, BLOCK_C = 6 };
#elif defined(__AVX2__) || defined(__ARM_NEON)
enum { DIRECT = 3, BLOCK_T = 1, BLOCK_C = 3 };
#else
enum { DIRECT = 2, BLOCK_T = 1, BLOCK_C = 2 };
#endif
enum {
  PANEL_K = 128,   // even, so that a panel starts with the even accumulator; 8 KiB a tile
  CHUNK = 48,      // columns whose accumulators are kept: 6 KiB a tile
  GROUP = 4,       // tiles that meet one chunk of columns while both are in L2
  AHEAD = 4096,    // bytes of prefetch on the weight stream, into L2; non-temporal took 3 times as long on Sapphire Rapids
};

template <class T, int C>
ER_INL void step(v16 (&acc)[C][2], int parity, v16 w, const float* x, int K) {
  ER_UNROLL
  for (int c = 0; c < C; c++) acc[c][parity] = fma(w, splat(x[int64_t(c) * K]), acc[c][parity]);
}

// One tile, C columns, the weights read once from memory.
template <class T, int C>
static void direct(const uint8_t* w, const float* x, int K, float* out, int64_t ldo) {
  const typename T::el* p = (const typename T::el*)w;
  v16 acc[C][2];
  ER_UNROLL
  for (int c = 0; c < C; c++) acc[c][0] = acc[c][1] = splat(0.0f);
  int k = 0;
  for (; k + 4 <= K; k += 4, p += 64) {
    ER_UNROLL
    for (size_t line = 0; line < sizeof(*p); line++) __builtin_prefetch((const char*)p + AHEAD + 64 * line, 0, 2);
    ER_UNROLL
    for (int j = 0; j < 4; j++) step<T, C>(acc, j & 1, T::get(p + 16 * j), x + k + j, K);
  }
  for (; k < K; k++, p += 16) {
    const v16 v = T::get(p);
    if (k & 1) step<T, C>(acc, 1, v, x + k, K);
    else step<T, C>(acc, 0, v, x + k, K);
  }
  ER_UNROLL
  for (int c = 0; c < C; c++) store(out + c * ldo, add(acc[c][0], acc[c][1]));
}

// One column, several tiles at a time, since a core reads memory fastest as a few streams (direct_one.h). The tiles that follow
// are fetched towards the end.
template <class T, int N>
static void one(const uint8_t* w, const float* x, int K, float* out) {
  typedef typename T::el el;
  const size_t tile = size_t(K) * 16;
  const el *p = (const el*)w, *const end = p + tile;
  v16 acc[N][1][2];
  ER_UNROLL
  for (int n = 0; n < N; n++) acc[n][0][0] = acc[n][0][1] = splat(0.0f);
  int k = 0;
  for (; k + 4 <= K; k += 4, p += 64) {
    const el* ahead = p + STREAM_AHEAD / sizeof(el);
    if (ahead >= end) ahead += (N - 1) * tile;
    ER_UNROLL
    for (int n = 0; n < N; n++) {
      ER_UNROLL
      for (size_t line = 0; line < sizeof(el); line++) __builtin_prefetch((const char*)(ahead + n * tile) + 64 * line, 0, 3);
      ER_UNROLL
      for (int j = 0; j < 4; j++) step<T, 1>(acc[n], j & 1, T::get(p + n * tile + 16 * j), x + k + j, K);
    }
  }
  for (; k < K; k++, p += 16)
    for (int n = 0; n < N; n++) {
      const v16 v = T::get(p + n * tile);
      if (k & 1) step<T, 1>(acc[n], 1, v, x + k, K);
      else step<T, 1>(acc[n], 0, v, x + k, K);
    }
  ER_UNROLL
  for (int n = 0; n < N; n++) store(out + 16 * n, add(acc[n][0][0], acc[n][0][1]));
}

// N steps of NT tiles against C columns; acc is [column][tile][even, odd][16].
template <int NT, int C>
static void block(const float* const* w, const float* x, int K, int n, float* acc) {
  v16 a[C][NT][2];
  ER_UNROLL
  for (int i = 0; i < C * NT * 2; i++) (&a[0][0][0])[i] = load(acc + 16 * i);
  const float* p[NT];
  ER_UNROLL
  for (int t = 0; t < NT; t++) p[t] = w[t];
  int k = 0;
  for (; k + 2 <= n; k += 2) {
    ER_UNROLL
    for (int j = 0; j < 2; j++) {
      v16 v[NT];
      ER_UNROLL
      for (int t = 0; t < NT; t++) v[t] = load(p[t] + 16 * (k + j));
      ER_UNROLL
      for (int c = 0; c < C; c++) {
        const v16 s = splat(x[int64_t(c) * K + k + j]);
        ER_UNROLL
        for (int t = 0; t < NT; t++) a[c][t][j] = fma(v[t], s, a[c][t][j]);
      }
    }
  }
  if (k < n) {
    ER_UNROLL
    for (int c = 0; c < C; c++) {
      const v16 s = splat(x[int64_t(c) * K + k]);
      ER_UNROLL
      for (int t = 0; t < NT; t++) a[c][t][0] = fma(load(p[t] + 16 * k), s, a[c][t][0]);
    }
  }
  ER_UNROLL
  for (int i = 0; i < C * NT * 2; i++) store(acc + 16 * i, (&a[0][0][0])[i]);
}

typedef void (*Block)(const float* const* w, const float* x, int K, int n, float* acc);

template <int NT>
ER_INL Block block_of(int columns) {
#if defined(__AVX512F__)
  static const Block table[BLOCK_C] = {block<NT, 1>, block<NT, 2>, block<NT, 3>, block<NT, 4>, block<NT, 5>, block<NT, 6>};
#elif defined(__AVX2__) || defined(__ARM_NEON)
  static const Block table[BLOCK_C] = {block<NT, 1>, block<NT, 2>, block<NT, 3>};
#else
  static const Block table[BLOCK_C] = {block<NT, 1>, block<NT, 2>};
#endif
  return table[columns - 1];
}

// NT tiles against M <= CHUNK columns.
template <class T, int NT>
static void panels(const uint8_t* w, size_t tile_bytes, const float* x, int K, int M, float* out, int64_t ldo) {
  alignas(64) float wide[T::is_float ? 1 : NT * PANEL_K * 16];
  alignas(64) float acc[CHUNK * NT * 32];
  memset(acc, 0, sizeof(float) * 32 * size_t(NT * M));
  for (int k0 = 0; k0 < K; k0 += PANEL_K) {
    const int n = K - k0 < PANEL_K ? K - k0 : int(PANEL_K);
    const float* panel[NT];
    for (int t = 0; t < NT; t++) {
      const typename T::el* p = (const typename T::el*)(w + t * tile_bytes) + size_t(k0) * 16;
      panel[t] = (const float*)p;
      if (T::is_float) continue;
      float* d = wide + t * PANEL_K * 16;
      for (int k = 0; k < n; k++) {
        if (!(k & 1)) __builtin_prefetch((const char*)(p + k * 16) + AHEAD, 0, 2);
        store(d + k * 16, T::get(p + k * 16));
      }
      panel[t] = d;
    }
    for (int m = 0; m < M; m += BLOCK_C) {
      const int c = M - m < BLOCK_C ? M - m : int(BLOCK_C);
      block_of<NT>(c)(panel, x + int64_t(m) * K + k0, K, n, acc + m * NT * 32);
    }
  }
  for (int m = 0; m < M; m++)
    for (int t = 0; t < NT; t++) {
      const float* a = acc + (m * NT + t) * 32;
      store(out + m * ldo + 16 * t, add(load(a), load(a + 16)));
    }
}

template <class T>
static void many(const uint8_t* w, int tiles, size_t tile_bytes, const float* x, int K, int M, float* out, int64_t ldo) {
  for (int g = 0; g < tiles; g += GROUP) {
    const int end = g + GROUP < tiles ? g + int(GROUP) : tiles;
    for (int m = 0; m < M; m += CHUNK) {
      const int cols = M - m < CHUNK ? M - m : int(CHUNK);
      const float* xm = x + int64_t(m) * K;
      for (int t = g; t < end;) {
        const uint8_t* wt = w + size_t(t) * tile_bytes;
        float* o = out + m * ldo + 16 * int64_t(t);
        if (t + BLOCK_T <= end) { panels<T, BLOCK_T>(wt, tile_bytes, xm, K, cols, o, ldo); t += BLOCK_T; }
        else { panels<T, 1>(wt, tile_bytes, xm, K, cols, o, ldo); t++; }
      }
    }
  }
}

template <class T>
static void few(const uint8_t* w, const float* x, int K, int M, float* out, int64_t ldo) {
  switch (M) {
    case 2: direct<T, 2>(w, x, K, out, ldo); break;
#if defined(__AVX2__) || defined(__ARM_NEON)
    case 3: direct<T, 3>(w, x, K, out, ldo); break;
#endif
#if defined(__AVX512F__)
    case 4: direct<T, 4>(w, x, K, out, ldo); break;
    case 5: direct<T, 5>(w, x, K, out, ldo); break;
    case 6: direct<T, 6>(w, x, K, out, ldo); break;
    case 7: direct<T, 7>(w, x, K, out, ldo); break;
    case 8: direct<T, 8>(w, x, K, out, ldo); break;
#endif
  }
}

template <class T>
static size_t tile_bytes(int K) { return size_t(K) * 16 * sizeof(typename T::el); }

template <class T>
static void run(const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo, uint8_t*) {
  const float* x = (const float*)act;
  const size_t size = tile_bytes<T>(K);
  if (M > DIRECT) return many<T>(w, tiles, size, x, K, M, out, ldo);
  if (M == 1) {
    for (; tiles >= STREAMS; tiles -= STREAMS, w += STREAMS * size, out += STREAMS * 16) one<T, STREAMS>(w, x, K, out);
    for (; tiles >= 2; tiles -= 2, w += 2 * size, out += 2 * 16) one<T, 2>(w, x, K, out);
    for (; tiles > 0; tiles--, w += size, out += 16) one<T, 1>(w, x, K, out);
    return;
  }
  for (int t = 0; t < tiles; t++) few<T>(w + size_t(t) * size, x, K, M, out + 16 * int64_t(t), ldo);
}

// Rows of a mapped file need not be aligned to their element: memcpy, which compiles to plain loads.
template <class T>
static void pack(const uint8_t* src, size_t row_bytes, int rows, int K, uint8_t* dst) {
  typedef typename T::el el;
  for (int k0 = 0; k0 < K; k0 += 64) {  // a cache line or more of each row at a time
    const int n = K - k0 < 64 ? K - k0 : 64;
    el* d = (el*)dst + size_t(k0) * 16;
    for (int r = 0; r < 16; r++) {
      const uint8_t* s = src + size_t(r) * row_bytes + size_t(k0) * sizeof(el);
      for (int k = 0; k < n; k++) {
        el v = 0;
        if (r < rows) memcpy(&v, s + size_t(k) * sizeof(el), sizeof(el));
        d[k * 16 + r] = v;
      }
    }
  }
}

template <class T>
static void unpack_row(const uint8_t* tile, int r, int K, float* out) {
  const typename T::el* p = (const typename T::el*)tile + r;
  for (int k0 = 0; k0 < K; k0 += 16) {
    const int n = K - k0 < 16 ? K - k0 : 16;
    typename T::el column[16] = {};
    for (int k = 0; k < n; k++) column[k] = p[size_t(k0 + k) * 16];
    alignas(64) float wide[16];
    store(wide, T::get(column));
    memcpy(out + k0, wide, size_t(n) * sizeof(float));
  }
}

}  // namespace flt

// F32 (0), F16 (1), BF16 (30); null for any other type.
static const Linear* find_float(int type) {
#define ER_FLOAT(id, T) {id, ACT_F32, 16, 1, flt::tile_bytes<T>, flt::pack<T>, flt::run<T>, flt::unpack_row<T>}
  static const Linear table[] = {ER_FLOAT(0, flt::F32), ER_FLOAT(1, flt::F16), ER_FLOAT(30, flt::BF16)};
#undef ER_FLOAT
  for (const Linear& l : table)
    if (l.type == type) return &l;
  return nullptr;
}

}  // namespace ER_ISA
}  // namespace er

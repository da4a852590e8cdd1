// linear_dequant.h: y = W x for the formats that have no kernel of their own. Rows stay as the file has them; up to 256 values
// at a time are decoded to float and dotted with every column.
//
// Order of accumulation, the same for every column count and instruction set: lane j of sixteen sums k = j, j + 16, ...
// by fma; the lanes are added by sum16. A tile is 16 rows, one after another.
#pragma once
#include "dequant_iq.h"
#include "dequant_small.h"
#include "kernels.h"
#include "linear_float.h"

namespace er {
namespace ER_ISA {
namespace deq {

// ROWS, a divisor of 16, times BLOCK columns fit the registers.
#if defined(__AVX512F__)
enum { ROWS = 4, BLOCK = 4 };
#elif defined(__AVX2__) || defined(__ARM_NEON)
enum { ROWS = 2, BLOCK = 2 };
#else
enum { ROWS = 1, BLOCK = 2 };
#endif
enum { SPAN = 256, COLUMNS = 64 };  // values decoded at once; columns that share them, 4 KiB of accumulators a row

template <class F>
static size_t row_bytes(int K) { return size_t(K / F::VALUES) * F::BYTES; }
template <class F>
static size_t tile_bytes(int K) { return 16 * row_bytes<F>(K); }

template <class F>
static void pack(const uint8_t* src, size_t stride, int rows, int K, uint8_t* dst) {
  const size_t size = row_bytes<F>(K);
  for (int r = 0; r < 16; r++, dst += size) {
    if (r < rows) memcpy(dst, src + size_t(r) * stride, size);
    else memset(dst, 0, size);  // scale 0
  }
}

// `blocks` blocks to float; null is never passed for a format's grid, see find_dequant.
template <class F>
static void decode(const uint8_t* b, int blocks, const int8_t* codes, float* out) {
  for (int i = 0; i < blocks; i++) F::block(b + i * F::BYTES, codes, out + i * F::VALUES);
}

template <class F>
ER_INL const int8_t* codes() { return F::GRID < 0 ? nullptr : grid(Grid(F::GRID)); }

// acc[r][c] += w[r] . x[c], ROWS x C at a time so that every load feeds several sums.
template <int C>
ER_INL void dot(const float* w, const float* x, int64_t ldx, int n, float* acc) {
  v16 a[ROWS][C];
  ER_UNROLL
  for (int i = 0; i < ROWS * C; i++) a[i / C][i % C] = load(acc + 16 * (i / C * COLUMNS + i % C));
  for (int k = 0; k < n; k += 16) {
    v16 v[ROWS];
    ER_UNROLL
    for (int r = 0; r < ROWS; r++) v[r] = load(w + r * SPAN + k);
    ER_UNROLL
    for (int c = 0; c < C; c++) {
      const v16 y = load(x + c * ldx + k);
      ER_UNROLL
      for (int r = 0; r < ROWS; r++) a[r][c] = fma(v[r], y, a[r][c]);
    }
  }
  ER_UNROLL
  for (int i = 0; i < ROWS * C; i++) store(acc + 16 * (i / C * COLUMNS + i % C), a[i / C][i % C]);
}
static void dots(const float* w, const float* x, int K, int n, int M, float* acc) {
  int m = 0;
  for (; m + BLOCK <= M; m += BLOCK) dot<BLOCK>(w, x + int64_t(m) * K, K, n, acc + 16 * m);
  for (; m < M; m++) dot<1>(w, x + int64_t(m) * K, K, n, acc + 16 * m);
}

template <class F>
static void run(const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo, uint8_t*) {
  const int8_t* grid_codes = codes<F>();
  const size_t size = row_bytes<F>(K);
  alignas(64) float wide[ROWS * SPAN];
  alignas(64) float acc[ROWS * COLUMNS * 16];
  for (int64_t row = 0; row < 16 * int64_t(tiles); row += ROWS, w += ROWS * size) {
    for (int m0 = 0; m0 < M; m0 += COLUMNS) {
      const int cols = M - m0 < COLUMNS ? M - m0 : int(COLUMNS);
      const float* x = (const float*)act + int64_t(m0) * K;
      for (int r = 0; r < ROWS; r++) memset(acc + r * COLUMNS * 16, 0, sizeof(float) * 16 * size_t(cols));
      for (int k = 0; k < K; k += SPAN) {
        const int n = K - k < SPAN ? K - k : int(SPAN);
        const uint8_t* b = w + size_t(k / F::VALUES) * F::BYTES;
        for (int r = 0; r < ROWS; r++) decode<F>(b + size_t(r) * size, n / F::VALUES, grid_codes, wide + r * SPAN);
        dots(wide, x + k, K, n, cols, acc);
      }
      for (int m = 0; m < cols; m++)
        for (int r = 0; r < ROWS; r++) out[(m0 + m) * ldo + row + r] = sum16(load(acc + 16 * (r * COLUMNS + m)));
    }
  }
}

template <class F>
static void unpack_row(const uint8_t* tile, int r, int K, float* out) {
  decode<F>(tile + size_t(r) * row_bytes<F>(K), K / F::VALUES, codes<F>(), out);
}
}  // namespace deq

// Null for a type this file does not serve, and for an IQ type whose grid er_set_grid has not received yet.
static const Linear* find_dequant(int type) {
#define ER_DEQUANT(F)                                                                                            \
  case deq::F::TYPE: {                                                                                           \
    static const Linear linear = {deq::F::TYPE, ACT_F32, 16, deq::F::VALUES, deq::tile_bytes<deq::F>,            \
                                  deq::pack<deq::F>, deq::run<deq::F>, deq::unpack_row<deq::F>};                 \
    return deq::F::GRID < 0 || grid(Grid(deq::F::GRID)) ? &linear : nullptr;                                     \
  }
  switch (type) {
    ER_DEQUANT(IQ2_XXS)
    ER_DEQUANT(IQ2_XS)
    ER_DEQUANT(IQ2_S)
    ER_DEQUANT(IQ3_XXS)
    ER_DEQUANT(IQ3_S)
    ER_DEQUANT(IQ1_S)
    ER_DEQUANT(IQ1_M)
    ER_DEQUANT(Q1_0)
    ER_DEQUANT(TQ1_0)
    ER_DEQUANT(TQ2_0)
    ER_DEQUANT(NVFP4)
  }
#undef ER_DEQUANT
  return nullptr;
}

}  // namespace ER_ISA
}  // namespace er

// act_q8.h: activations as int8, in blocks of 32 with a scale each, and the block sums that weights with a zero point or a
// minimum need. One format for every quantized weight type, so that one copy serves all that share an input.
//
// Columns lie in tiles of C, C a function of M alone. Per tile and block one record, everything at fixed displacements:
//   int8 q[C][32] | float d[C] | float x[C] | int32 START - 8*sum[C] | int16 pairs sum16[C][2]                 48 C bytes
// d = amax / 127, q = round to even (v * (127 / amax)), sum = of the codes, x = of the values. A block holding NaN or
// infinity gets d = NaN and codes 0, so that it poisons its outputs and nothing else; below 1e-36 a block is zero.
//
// Second digit: in trained models a few blocks tower over the rest, and their rounding error is most of the error of a dot
// product. Blocks whose amax^2 exceeds three times the column's mean (fewer than half, about one in twenty in practice) get
// another int8 digit for what the first one left: q2 = round((v - d q) * 254 / d), d2 = d / 254. It is summed apart from the
// first digits. Measured on Gemma 3 270M it takes the error of the logits' margins from 0.15 to 0.085; without it greedy text
// strays from the float model. A bar at twice the mean would give 0.079, and cost a tenth of the speed at 8 columns.
// A tile's records are followed by its columns' second digits, each: int32 n, block index[n] | records of one column
// (x = 0: the first digit's x counts both) from a line of their own. seconds.h finds them by block.
#pragma once
#include "kernels.h"
#include "simd_int.h"

namespace er {
namespace ER_ISA {
namespace q8 {

enum { REC = 48 };  // bytes a column
// Columns that one pass over a tile takes, those that several passes take while it is in cache, and columns of a block of the byte
// kernel; TILES: whether that has a tile multiplier. Where registers hold few columns, unpacking a tile again costs more than
// writing its bytes down.
#if defined(__AMX_INT8__)
enum { DIRECT = 12, PASSES = 24, BLOCK_C = 16, TILES = 1 };
#elif defined(__AVX512VNNI__)
enum { DIRECT = 12, PASSES = 36, BLOCK_C = 6, TILES = 0 };
#else
enum { DIRECT = 6, PASSES = 6, BLOCK_C = 4, TILES = 0 };
#endif

// Columns of a tile of an M-column operand: the direct kernels that exist, or the byte kernel's block.
ER_INL int tile_cols(int M) {
  if (M > PASSES) return BLOCK_C;
  if (M <= DIRECT) return M <= 8 ? M : M <= 10 ? 10 : 12;
  return M <= 14 ? 7 : M <= 16 ? 8 : M <= 20 ? 10 : M <= 24 ? 12 : M <= 30 ? 10 : M <= 32 ? 8 : 12;
}
ER_INL size_t second_index_bytes(int K) { return (size_t(K / 64 + 1) * 4 + 63) / 64 * 64; }
ER_INL size_t second_bytes(int K) { return second_index_bytes(K) + (size_t(K / 64) * REC + 63) / 64 * 64; }
ER_INL size_t first_bytes(int K, int C) { return (size_t(K / 32) * size_t(C * REC) + 63) / 64 * 64; }
ER_INL size_t col_tile_bytes(int K, int C) { return first_bytes(K, C) + size_t(C) * second_bytes(K); }
ER_INL const uint8_t* second_of(const uint8_t* act, int K, int C, int m) {
  return act + size_t(m / C) * col_tile_bytes(K, C) + first_bytes(K, C) + size_t(m % C) * second_bytes(K);
}

static size_t act_bytes(Act act, int K, int M) {
  if (act == ACT_F32) return size_t(M) * size_t(K) * 4;
  const int C = tile_cols(M);
  return size_t((M + C - 1) / C) * col_tile_bytes(K, C);
}

// An int32 sum that starts at START reads as the float START_FLOAT + sum while |sum| < 2^22: then sum * d, rounded once, is
// fma(that float, d, -START_FLOAT * d), which saves the conversion. Exact, as START_FLOAT has two significant bits.
enum : int32_t { START = FUSED ? 0x4b400000 : 0 };
constexpr float START_FLOAT = 12582912.0f;

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er
#if defined(__AVX512VNNI__)
#include "act_wide.h"
#else
namespace er {
namespace ER_ISA {
namespace q8 {
// The first of blocks b.. < nb whose top's square exceeds the bar, or nb.
ER_INL int next_above(const float* tops, float bar, int b, int nb) {
  while (b < nb && !(tops[b] * tops[b] > bar)) b++;
  return b;
}
}  // namespace q8
}  // namespace ER_ISA
}  // namespace er
#endif
namespace er {
namespace ER_ISA {
namespace q8 {

// Values of a block, R at a time.
template <class F>
ER_INL void each_part(const F& f) { steps<0, 32 / R>(f); }

// The largest absolute value of 32, NaN and infinity above all: their bits order as the values do.
ER_INL float top_of(const float* v) {
  vi top = zero_i();
  each_part([&](auto i) __attribute__((always_inline)) { top = max32(top, and_(ldi(v + i.v * R), all32(0x7fffffff))); });
  const int32_t bits = top_lanes(top);
  float amax;
  memcpy(&amax, &bits, 4);
  return amax;
}
ER_INL bool usable(float amax) { return amax >= 1e-36f && amax < __builtin_inff(); }

// Round to even for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits.
ER_INL vi rounded(vf x) { return sub32(as_int(add(x, splat_f(START_FLOAT))), all32(0x4b400000)); }

// What follows the codes of column c in a tile of C: `rec` is the block's record, halves[i] sums the codes of each half.
ER_INL int store_sums(uint8_t* rec, int C, int c, const vi* halves, float d) {
  const int s0 = sum_lanes(halves[0]), s1 = sum_lanes(halves[1]);
  const int32_t zero = START - 8 * (s0 + s1);
  const int16_t pair[2] = {int16_t(s0), int16_t(s1)};
  memcpy(rec + C * 32 + c * 4, &d, 4);
  memcpy(rec + C * 40 + c * 4, &zero, 4);
  memcpy(rec + C * 44 + c * 4, pair, 4);
  return s0 + s1;
}

// codes = rounded(f(part) * scale), |f * scale| <= 127; stores codes and sums, returns the codes' sum.
template <class F>
ER_INL int store_codes(uint8_t* rec, int C, int c, float scale, float d, const F& value) {
  vi halves[2] = {zero_i(), zero_i()};
  each_part([&](auto i) __attribute__((always_inline)) {
    const vi q = rounded(mul(value(i), splat_f(scale)));
    st8(rec + c * 32 + i.v * R, q);
    halves[i.v * R / 16] = add32(halves[i.v * R / 16], q);
  });
  return store_sums(rec, C, c, halves, d);
}

// The second digit of a block whose first was scaled by `scale`, as a record of one column; returns the sum of its values.
ER_INL float quantize_second(const float* v, float scale, float d, uint8_t* rec) {
  const float d2 = d / 254.0f, none = 0.0f;
  memcpy(rec + 36, &none, 4);
  const int sum = store_codes(rec, 1, 0, 254.0f / d, d2, [&](auto i) __attribute__((always_inline)) {
    const vf x = ldf(v + i.v * R);
    return add(x, mul(splat_f(-d), cvt(rounded(mul(x, splat_f(scale))))));
  });
  return d2 * float(sum);
}

// The first digit of block v, whose largest absolute value is `a`.
ER_INL void quantize_first(const float* v, float a, int C, int c, uint8_t* rec) {
  float x;
  if (usable(a)) {
    const float scale = 127.0f / a, d = a / 127.0f;
    x = d * float(store_codes(rec, C, c, scale, d, [&](auto i) __attribute__((always_inline)) { return ldf(v + i.v * R); }));
  } else {
    const vi none[2] = {zero_i(), zero_i()};
    x = a < 1.0f ? 0.0f : __builtin_nanf("");
    memset(rec + c * 32, 0, 32);
    store_sums(rec, C, c, none, x);
  }
  memcpy(rec + C * 36 + c * 4, &x, 4);
}

// Block b of column c, whose largest absolute value is `a`, gets the column's second digit number n.
static void add_second(const float* v, float a, int K, int C, int c, int b, uint8_t* tile, int n) {
  uint8_t* second = tile + first_bytes(K, C) + size_t(c) * second_bytes(K);
  uint8_t* at = tile + size_t(b) * size_t(C * REC) + C * 36 + c * 4;
  float x;
  memcpy(&x, at, 4);
  memcpy(second + 4 + 4 * n, &b, 4);
  x += quantize_second(v, 127.0f / a, a / 127.0f, second + second_index_bytes(K) + size_t(n) * REC);
  memcpy(at, &x, 4);
}

static void quantize_q8(const float* v, int K, int C, int c, uint8_t* tile) {
  const int nb = K / 32;
  const size_t stride = size_t(C) * REC;
  uint8_t* second = tile + first_bytes(K, C) + size_t(c) * second_bytes(K);
  // The blocks' maxima wait where second digits come last: less than a third of the blocks can have one, so never there.
  float* tops = (float*)(second + second_bytes(K)) - nb;
  float squares = 0;
  int b = 0;
#if defined(__AVX512VNNI__)
  for (; nb - b >= 16; b += 16) stf(tops + b, tops_of_sixteen(v + b * 32, 32));
#endif
  for (; b < nb; b++) tops[b] = top_of(v + b * 32);
  for (b = 0; b < nb;) {
#if defined(__AVX512VNNI__)
    for (; nb - b >= 16 && quantize_sixteen(v + b * 32, tops + b, C, c, tile + size_t(b) * stride, squares); b += 16) {}
#endif
    for (const int end = nb - b < 16 ? nb : b + 16; b < end; b++) {
      squares += tops[b] * tops[b];
      quantize_first(v + b * 32, tops[b], C, c, tile + size_t(b) * stride);
    }
  }
  const float bar = 3.0f * squares / float(nb);  // NaN and infinity: no block is above
  int32_t n = 0;
  for (b = next_above(tops, bar, 0, nb); b < nb && n < K / 64; b = next_above(tops, bar, b + 1, nb))
    add_second(v + b * 32, tops[b], K, C, c, b, tile, n++);
  memcpy(second, &n, 4);
}

#if defined(__AMX_INT8__)
// All sixteen columns of a tile at once: what quantize_q8 makes of each.
static void quantize_tile(const float* v, int64_t ld, int K, uint8_t* tile) {
  constexpr int C = 16;
  const int nb = K / 32;
  vf squares = zero_f();
  for (int b = 0; b < nb; b++) {
    uint8_t* rec = tile + size_t(b) * (C * REC);
    alignas(64) float tops[C];
    if (b + 3 < nb)
      ER_UNROLL for (int c = 0; c < C; c++)
        for (int i = 0; i < 32; i += 16) __builtin_prefetch(v + c * ld + (b + 3) * 32 + i, 0, 3);
    if (!quantize_across(v + b * 32, ld, rec, tops))
      for (int c = 0; c < C; c++) quantize_first(v + c * ld + b * 32, tops[c], C, c, rec);
    squares = add(squares, mul(ldf(tops), ldf(tops)));
  }
  const vf bar = _mm512_div_ps(mul(splat_f(3.0f), squares), splat_f(float(nb)));
  alignas(64) float bars[C];
  stf(bars, bar);
  int32_t n[C] = {};
  for (int b = 0; b < nb; b++) {
    const vf a = mul(ldf(tile + size_t(b) * (C * REC) + C * 32), splat_f(127.01f));  // a bit more than the maximum was
    for (unsigned above = _mm512_cmp_ps_mask(mul(a, a), bar, _CMP_GT_OQ); above; above &= above - 1) {
      const int c = __builtin_ctz(above);
      const float* from = v + c * ld + b * 32;
      const float top = top_of(from);
      if (top * top > bars[c] && n[c] < K / 64) add_second(from, top, K, C, c, b, tile, n[c]++);
    }
  }
  for (int c = 0; c < C; c++) memcpy(tile + first_bytes(K, C) + size_t(c) * second_bytes(K), n + c, 4);
}
#endif

static void quantize(Act act, const float* x, int64_t ldx, int K, int M, int m0, int m1, uint8_t* out) {
  const int C = tile_cols(M);
  for (int m = m0; m < m1; m++) {
    const float* row = x + m * ldx;
#if defined(__AMX_INT8__)
    if (act == ACT_Q8 && C == 16 && m % C == 0 && m + C <= m1) {
      quantize_tile(row, ldx, K, out + size_t(m / C) * col_tile_bytes(K, C));
      m += C - 1;
      continue;
    }
#endif
    if (act == ACT_F32) {
      memcpy(out + size_t(m) * size_t(K) * 4, row, size_t(K) * 4);
      continue;
    }
    quantize_q8(row, K, C, m % C, out + size_t(m / C) * col_tile_bytes(K, C));
  }
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

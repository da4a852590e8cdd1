// act_wide.h: sixteen blocks of activations at once with AVX-512: one register holds a number of each block, so that maxima and
// sums come from transposing and not from sums across a register. The bits of act_q8.h's single blocks.
#pragma once
#include "simd_int.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// Lane b of the result: the largest lane of t[b]. Slot i takes block i with bits 0 and 1, and bits 2 and 3, exchanged.
ER_INL vi tops_of(const vi (&t)[16]) {
  vi u[8], w[4];
  ER_UNROLL for (int i = 0; i < 8; i++) {
    const int s = (i & 4) << 1 | (i & 2) >> 1 | (i & 1) << 1;  // slots i and i + 8 hold blocks s and s + 4
    u[i] = max32(_mm512_shuffle_i64x2(t[s], t[s + 4], 0x44), _mm512_shuffle_i64x2(t[s], t[s + 4], 0xee));
  }
  ER_UNROLL for (int i = 0; i < 4; i++)
    w[i] = max32(_mm512_shuffle_i64x2(u[i], u[i + 4], 0x88), _mm512_shuffle_i64x2(u[i], u[i + 4], 0xdd));
  const vi y = max32(_mm512_unpacklo_epi64(w[0], w[2]), _mm512_unpackhi_epi64(w[0], w[2]));
  const vi z = max32(_mm512_unpacklo_epi64(w[1], w[3]), _mm512_unpackhi_epi64(w[1], w[3]));
  const vf p = as_float(y), q = as_float(z);
  return max32(as_int(_mm512_shuffle_ps(p, q, 0x88)), as_int(_mm512_shuffle_ps(p, q, 0xdd)));
}

// The largest absolute values of sixteen blocks that are `ld` floats apart.
ER_INL vf tops_of_sixteen(const float* v, int64_t ld) {
  vi t[16];
  ER_UNROLL for (int b = 0; b < 16; b++)
    t[b] = max32(and_(ldi(v + b * ld), all32(0x7fffffff)), and_(ldi(v + b * ld + 16), all32(0x7fffffff)));
  return as_float(tops_of(t));
}

// Four registers whose 128-bit lanes are summed: lane i of the result is the sum of x[i]'s.
ER_INL vi lane_sums(const vi* x) {
  const vi a = add32(_mm512_shuffle_i32x4(x[0], x[1], 0x44), _mm512_shuffle_i32x4(x[0], x[1], 0xee));
  const vi b = add32(_mm512_shuffle_i32x4(x[2], x[3], 0x44), _mm512_shuffle_i32x4(x[2], x[3], 0xee));
  return add32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// put(j, codes of blocks 2j and 2j + 1), for blocks `ld` floats apart; returns the sums of the codes of their halves, in pairs.
template <class F>
ER_INL vi codes_of_sixteen(const float* v, int64_t ld, const float* scale, const F& put) {
  const vi in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  vi sums[8];  // of four codes each: every 128-bit lane has the halves of blocks 2j and 2j + 1
  ER_UNROLL for (int j = 0; j < 8; j++) {
    vi q[4];  // conversion rounds to even
    ER_UNROLL for (int i = 0; i < 4; i++)
      q[i] = _mm512_cvtps_epi32(mul(ldf(v + (2 * j + i / 2) * ld + i % 2 * 16), splat_f(scale[2 * j + i / 2])));
    const vi codes = _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
    sums[j] = dp(zero_i(), all8(1), codes);
    put(j, _mm512_permutexvar_epi32(in_order, codes));
  }
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                  _mm512_packs_epi32(lane_sums(sums), lane_sums(sums + 4)));
}
ER_INL bool all_usable(vf a) {
  return (_mm512_cmp_ps_mask(a, splat_f(1e-36f), _CMP_GE_OQ) & _mm512_cmp_ps_mask(a, splat_f(__builtin_inff()), _CMP_LT_OQ)) == 0xffff;
}

// First digits of blocks 0..15 of column c, whose largest absolute values are `tops`; rec: the first block's record. False, and
// nothing is done, if some block is zero or not finite. squares: plus the tops' squares, one after the other.
ER_INL bool quantize_sixteen(const float* v, const float* tops, int C, int c, uint8_t* rec, float& squares) {
  const size_t stride = size_t(C) * REC;
  const vf a = ldf(tops);
  if (!all_usable(a)) return false;
  const vf d = _mm512_div_ps(a, splat_f(127.0f));
  alignas(64) float scale[16];
  stf(scale, _mm512_div_ps(splat_f(127.0f), a));
  __asm__("" : "+m"(scale));  // else gcc takes the lanes out of the register, one shuffle each
  const vi pairs = codes_of_sixteen(v, 32, scale, [&](int j, vi line) __attribute__((always_inline)) {
    _mm256_storeu_si256((__m256i*)(rec + 2 * j * stride + c * 32), _mm512_castsi512_si256(line));
    _mm256_storeu_si256((__m256i*)(rec + (2 * j + 1) * stride + c * 32), _mm512_extracti64x4_epi64(line, 1));
  });
  const vi zero = pair_dot(all32(START), pairs, all16(-8));
  const vf x = mul(d, cvt(pair_dot(zero_i(), pairs, all16(1))));
  alignas(64) int32_t numbers[4][16];
  alignas(64) float square[16];
  stf(square, mul(a, a));
  __asm__("" : "+m"(square));
  ER_UNROLL for (int b = 0; b < 16; b++) squares += square[b];
  stf(numbers[0], d);
  stf(numbers[1], x);
  sti(numbers[2], zero);
  sti(numbers[3], pairs);
  __asm__("" : "+m"(numbers));
  uint8_t* at = rec + C * 32 + c * 4;
  ER_UNROLL for (int b = 0; b < 16; b++, at += stride)
    ER_UNROLL for (int i = 0; i < 4; i++) memcpy(at + i * C * 4, &numbers[i][b], 4);
  return true;
}

// Block b of a tile of sixteen columns, `ld` floats apart: first digits, and the largest absolute values. False,
// and only they are written, if some column's block is zero or not finite.
ER_INL bool quantize_across(const float* v, int64_t ld, uint8_t* rec, float* tops) {
  const vf a = tops_of_sixteen(v, ld);
  stf(tops, a);
  if (!all_usable(a)) return false;
  const vf d = _mm512_div_ps(a, splat_f(127.0f));
  alignas(64) float scale[16];
  stf(scale, _mm512_div_ps(splat_f(127.0f), a));
  __asm__("" : "+m"(scale));
  const vi pairs = codes_of_sixteen(v, ld, scale, [&](int j, vi line) __attribute__((always_inline)) { sti(rec + j * 64, line); });
  stf(rec + 512, d);
  stf(rec + 576, mul(d, cvt(pair_dot(zero_i(), pairs, all16(1)))));
  sti(rec + 640, pair_dot(all32(START), pairs, all16(-8)));
  sti(rec + 704, pairs);
  return true;
}

// The first of blocks b.. < nb whose top's square exceeds the bar, or nb.
ER_INL int next_above(const float* tops, float bar, int b, int nb) {
  for (; nb - b >= 16; b += 16) {
    const vf a = ldf(tops + b);
    const unsigned above = _mm512_cmp_ps_mask(mul(a, a), splat_f(bar), _CMP_GT_OQ);
    if (above) return b + __builtin_ctz(above);
  }
  while (b < nb && !(tops[b] * tops[b] > bar)) b++;
  return b;
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

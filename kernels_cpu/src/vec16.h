// vec16.h: sixteen floats as one value, whatever the machine's registers hold. Kernels written over it run the same
// operations in the same order everywhere, so their bits depend on the instruction set only where it lacks a fused fma. Lives in a namespace
// per set: the linker must never merge an AVX-512 copy of a function into baseline code.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define ER_INL static inline __attribute__((always_inline))

#if defined(__clang__)
#define ER_UNROLL _Pragma("unroll")
#else
#define ER_UNROLL _Pragma("GCC unroll 16")
#endif

namespace er {
namespace ER_ISA {

#if defined(__AVX512F__)
struct v16 { __m512 a; };
ER_INL v16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
ER_INL void store(float* p, v16 x) { _mm512_storeu_ps(p, x.a); }
ER_INL v16 splat(float x) { return {_mm512_set1_ps(x)}; }
ER_INL v16 add(v16 x, v16 y) { return {_mm512_add_ps(x.a, y.a)}; }
ER_INL v16 sub(v16 x, v16 y) { return {_mm512_sub_ps(x.a, y.a)}; }
ER_INL v16 mul(v16 x, v16 y) { return {_mm512_mul_ps(x.a, y.a)}; }
ER_INL v16 div(v16 x, v16 y) { return {_mm512_div_ps(x.a, y.a)}; }
ER_INL v16 vmax(v16 x, v16 y) { return {_mm512_max_ps(x.a, y.a)}; }
ER_INL v16 vmin(v16 x, v16 y) { return {_mm512_min_ps(x.a, y.a)}; }
ER_INL v16 fma(v16 x, v16 y, v16 z) { return {_mm512_fmadd_ps(x.a, y.a, z.a)}; }
ER_INL v16 round_even(v16 x) { return {_mm512_roundscale_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for integral n in [-126, 127]
ER_INL v16 pow2i(v16 n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.a), _mm512_set1_epi32(127)), 23))};
}
ER_INL v16 times_pow2(v16 x, v16 n) { return {_mm512_scalef_ps(x.a, n.a)}; }
ER_INL v16 within(v16 x, int lo, int hi, v16 other) {
  return {_mm512_mask_blend_ps(__mmask16((1u << hi) - (1u << lo)), other.a, x.a)};
}
ER_INL float max16(v16 x) { return _mm512_reduce_max_ps(x.a); }
// Lane i < N <= 8: the largest lane of x[i]; the rest of `other`.
template <int N> ER_INL v16 maxima(const v16 (&x)[N], v16 other) {
  __m512 u[4], w[2];
  ER_UNROLL for (int i = 0; i < 4; i++) {
    const __m512 a = x[i < N ? i : 0].a, b = x[i + 4 < N ? i + 4 : 0].a;
    u[i] = _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  ER_UNROLL for (int i = 0; i < 2; i++)
    w[i] = _mm512_max_ps(_mm512_shuffle_f32x4(u[i], u[i + 2], 0x88), _mm512_shuffle_f32x4(u[i], u[i + 2], 0xdd));
  const __m512d a = _mm512_castps_pd(w[0]), b = _mm512_castps_pd(w[1]);
  const __m512 z = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  const __m512i order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  return {_mm512_mask_permutexvar_ps(other.a, __mmask16((1u << N) - 1), order, _mm512_max_ps(z, _mm512_permute_ps(z, 0xb1)))};
}
ER_INL float sum16(v16 x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
ER_INL v16 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
ER_INL void store_f16(uint16_t* p, v16 x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT)); }
ER_INL v16 load_i8(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
ER_INL v16 load_i32(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
ER_INL v16 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
// Thirty-two floats as those at even places and those at odd ones, and back.
ER_INL void split_pairs(const float* p, v16& even, v16& odd) {
  const __m512 x = _mm512_loadu_ps(p), y = _mm512_loadu_ps(p + 16);
  const __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even.a = _mm512_permutex2var_ps(x, at, y);
  odd.a = _mm512_permutex2var_ps(x, _mm512_add_epi32(at, _mm512_set1_epi32(1)), y);
}
ER_INL void join_pairs(float* p, v16 even, v16 odd) {
  const __m512i at = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(even.a, at, odd.a));
  _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(even.a, _mm512_add_epi32(at, _mm512_set1_epi32(8)), odd.a));
}
#elif defined(__AVX2__)
struct v16 { __m256 a, b; };
ER_INL v16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
ER_INL void store(float* p, v16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
ER_INL v16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
ER_INL v16 add(v16 x, v16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
ER_INL v16 sub(v16 x, v16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
ER_INL v16 mul(v16 x, v16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
ER_INL v16 div(v16 x, v16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
ER_INL v16 vmax(v16 x, v16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
ER_INL v16 vmin(v16 x, v16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
ER_INL v16 fma(v16 x, v16 y, v16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
ER_INL __m256 round8(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
ER_INL v16 round_even(v16 x) { return {round8(x.a), round8(x.b)}; }
ER_INL __m256 pow2i8(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
ER_INL v16 pow2i(v16 n) { return {pow2i8(n.a), pow2i8(n.b)}; }
ER_INL v16 times_pow2(v16 x, v16 n) { return mul(x, pow2i(n)); }
ER_INL __m256 within8(__m256 x, int lo, int hi, __m256 other) {
  const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), i), _mm256_cmpgt_epi32(i, _mm256_set1_epi32(hi - 1)));
  return _mm256_blendv_ps(x, other, _mm256_castsi256_ps(out));
}
ER_INL v16 within(v16 x, int lo, int hi, v16 other) { return {within8(x.a, lo, hi, other.a), within8(x.b, lo - 8, hi - 8, other.b)}; }
ER_INL float max16(v16 x) {
  const __m256 a = _mm256_max_ps(x.a, x.b);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
ER_INL float sum16(v16 x) {
  const __m256 a = _mm256_add_ps(x.a, x.b);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
ER_INL v16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
ER_INL void store_f16(uint16_t* p, v16 x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
ER_INL __m256 i8_8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
ER_INL v16 load_i8(const int8_t* p) { return {i8_8(p), i8_8(p + 8)}; }
ER_INL v16 load_i32(const int32_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i*)p)), _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i*)(p + 8)))};
}
ER_INL __m256 bf8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
ER_INL v16 load_bf16(const uint16_t* p) { return {bf8(p), bf8(p + 8)}; }
#elif defined(__ARM_NEON)
struct v16 { float32x4_t v[4]; };
#define ER_4(expr) v16 r; for (int i = 0; i < 4; i++) r.v[i] = (expr); return r
ER_INL v16 load(const float* p) { ER_4(vld1q_f32(p + 4 * i)); }
ER_INL void store(float* p, v16 x) { for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]); }
ER_INL v16 splat(float x) { ER_4(vdupq_n_f32(x)); }
ER_INL v16 add(v16 x, v16 y) { ER_4(vaddq_f32(x.v[i], y.v[i])); }
ER_INL v16 sub(v16 x, v16 y) { ER_4(vsubq_f32(x.v[i], y.v[i])); }
ER_INL v16 mul(v16 x, v16 y) { ER_4(vmulq_f32(x.v[i], y.v[i])); }
ER_INL v16 div(v16 x, v16 y) { ER_4(vdivq_f32(x.v[i], y.v[i])); }
ER_INL v16 vmax(v16 x, v16 y) { ER_4(vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i])); }  // x86's rule for NaN
ER_INL v16 vmin(v16 x, v16 y) { ER_4(vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i])); }
ER_INL v16 fma(v16 x, v16 y, v16 z) { ER_4(vfmaq_f32(z.v[i], x.v[i], y.v[i])); }
ER_INL v16 round_even(v16 x) { ER_4(vrndnq_f32(x.v[i])); }
ER_INL v16 pow2i(v16 n) { ER_4(vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23))); }
ER_INL v16 times_pow2(v16 x, v16 n) { return mul(x, pow2i(n)); }
ER_INL v16 within(v16 x, int lo, int hi, v16 other) {
  const int32x4_t first = {0, 1, 2, 3};
  v16 r;
  for (int i = 0; i < 4; i++) {
    const int32x4_t at = vaddq_s32(first, vdupq_n_s32(4 * i));
    r.v[i] = vbslq_f32(vandq_u32(vcgeq_s32(at, vdupq_n_s32(lo)), vcltq_s32(at, vdupq_n_s32(hi))), x.v[i], other.v[i]);
  }
  return r;
}
ER_INL float max16(v16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3]))); }
ER_INL v16 load_f16(const uint16_t* p) { ER_4(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)))); }
ER_INL void store_f16(uint16_t* p, v16 x) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
ER_INL v16 load_i8(const int8_t* p) {
  const int8x16_t x = vld1q_s8(p);
  const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)))}};
}
ER_INL v16 load_i32(const int32_t* p) { ER_4(vcvtq_f32_s32(vld1q_s32(p + 4 * i))); }
ER_INL v16 load_bf16(const uint16_t* p) { ER_4(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16))); }
#undef ER_4
#else
struct v16 { float v[16]; };
#define ER_16(expr) v16 r; for (int i = 0; i < 16; i++) r.v[i] = (expr); return r
ER_INL v16 load(const float* p) { v16 r; memcpy(r.v, p, 64); return r; }
ER_INL void store(float* p, v16 x) { memcpy(p, x.v, 64); }
ER_INL v16 splat(float x) { ER_16(x); }
ER_INL v16 add(v16 x, v16 y) { ER_16(x.v[i] + y.v[i]); }
ER_INL v16 sub(v16 x, v16 y) { ER_16(x.v[i] - y.v[i]); }
ER_INL v16 mul(v16 x, v16 y) { ER_16(x.v[i] * y.v[i]); }
ER_INL v16 div(v16 x, v16 y) { ER_16(x.v[i] / y.v[i]); }
ER_INL v16 vmax(v16 x, v16 y) { ER_16(x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
ER_INL v16 vmin(v16 x, v16 y) { ER_16(x.v[i] < y.v[i] ? x.v[i] : y.v[i]); }
// Rounded twice: the baseline has no fused multiply-add, and emulating one costs ten times as much. Results here differ
// from the other sets' in the last bits; every other property holds.
ER_INL v16 fma(v16 x, v16 y, v16 z) { ER_16(x.v[i] * y.v[i] + z.v[i]); }
// Adding 2^23 leaves no room for a fraction; from there on every float is whole. The sign stays, zero's too.
ER_INL v16 round_even(v16 x) {
  v16 r;
  for (int i = 0; i < 16; i++) {
    const float a = __builtin_fabsf(x.v[i]), n = (a + 8388608.0f) - 8388608.0f;
    r.v[i] = __builtin_copysignf(a < 8388608.0f ? n : a, x.v[i]);
  }
  return r;
}
ER_INL v16 pow2i(v16 n) {
  v16 r;
  for (int i = 0; i < 16; i++) {  // NaN is no int: its factor gives NaN by itself
    const uint32_t b = uint32_t(int32_t(n.v[i] == n.v[i] ? n.v[i] : 0) + 127) << 23;
    memcpy(&r.v[i], &b, 4);
  }
  return r;
}
ER_INL v16 times_pow2(v16 x, v16 n) { return mul(x, pow2i(n)); }
ER_INL v16 within(v16 x, int lo, int hi, v16 other) { ER_16(i >= lo && i < hi ? x.v[i] : other.v[i]); }
ER_INL float max16(v16 x) {
  for (int w = 8; w; w >>= 1) for (int i = 0; i < w; i++) x.v[i] = x.v[i] > x.v[i + w] ? x.v[i] : x.v[i + w];
  return x.v[0];
}
ER_INL v16 load_i8(const int8_t* p) { ER_16(float(p[i])); }
ER_INL v16 load_i32(const int32_t* p) { ER_16(float(p[i])); }
ER_INL v16 load_bf16(const uint16_t* p) {
  v16 r;
  for (int i = 0; i < 16; i++) { uint32_t b = uint32_t(p[i]) << 16; memcpy(&r.v[i], &b, 4); }
  return r;
}
// The exponent is moved by a multiplication, which takes care of subnormals; NaN comes out quiet, as in hardware.
ER_INL float half_to_float(uint16_t h) {
  const uint32_t m = h & 0x7fff;
  uint32_t b = m << 13;
  float f; memcpy(&f, &b, 4); f *= 5.192296858534828e33f;  // 2^112
  memcpy(&b, &f, 4);
  b |= (m > 0x7bff ? 0x7f800000u : 0) | (m > 0x7c00 ? 0x400000u : 0) | uint32_t(h & 0x8000) << 16;
  memcpy(&f, &b, 4);
  return f;
}
ER_INL uint16_t float_to_half(float f) {
  uint32_t b; memcpy(&b, &f, 4);
  const uint16_t s = uint16_t((b >> 16) & 0x8000); b &= 0x7fffffffu;
  if (b > 0x7f800000u) return uint16_t(s | 0x7e00 | ((b >> 13) & 0x3ff));
  if (b >= 0x477ff000u) return uint16_t(s | 0x7c00);
  if (b < 0x38800000u) {  // subnormal: let the float adder round to multiples of 2^-24
    float a; memcpy(&a, &b, 4); a += 0.5f; memcpy(&b, &a, 4);
    return uint16_t(s | (b - 0x3f000000u));
  }
  return uint16_t(s | ((b - (uint32_t(127 - 15) << 23) + 0xfff + ((b >> 13) & 1)) >> 13));
}
ER_INL v16 load_f16(const uint16_t* p) { ER_16(half_to_float(p[i])); }
ER_INL void store_f16(uint16_t* p, v16 x) { for (int i = 0; i < 16; i++) p[i] = float_to_half(x.v[i]); }
#undef ER_16
#endif

// times_pow2: x * 2^n for integral n, exact where nothing over- or underflows. within: lanes lo..hi (0 <= lo <= hi <= 16) of x,
// the rest of `other`. max16 leaves open what it makes of NaN and of zeros of both signs: its readers must not care.

// sum16: the one order in which sixteen lanes become a sum: halves, quarters, eighths.
#if !defined(__AVX2__)
ER_INL float sum16(v16 x) {
  alignas(64) float t[16]; store(t, x);
  for (int w = 8; w; w >>= 1) for (int i = 0; i < w; i++) t[i] += t[i + w];
  return t[0];
}
#endif
#if !defined(__AVX512F__)
// Lane i < N <= 8: the largest lane of x[i]; the rest of `other`.
template <int N> ER_INL v16 maxima(const v16 (&x)[N], v16 other) {
  alignas(64) float t[16]; store(t, other);
  ER_UNROLL for (int i = 0; i < N; i++) t[i] = max16(x[i]);
  return load(t);
}
#endif
// The first n < 16 floats, the rest zero.
ER_INL v16 load_part(const float* p, int n) { alignas(64) float t[16] = {}; memcpy(t, p, size_t(n) * 4); return load(t); }

}  // namespace ER_ISA
}  // namespace er

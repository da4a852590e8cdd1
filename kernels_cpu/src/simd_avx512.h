// simd_avx512.h: R = 16 rows in a 512-bit register, dot products by AVX-512 VNNI. See simd_int.h.
#pragma once

namespace er {
namespace ER_ISA {
namespace q8 {

enum { R = 16 };
enum { SIGNED8 = 0, FUSED = 1 };
typedef __m512i vi;
typedef __m512 vf;

ER_INL vi ldi(const void* p) { return _mm512_loadu_si512(p); }
ER_INL void sti(void* p, vi v) { _mm512_storeu_si512(p, v); }
ER_INL vf ldf(const void* p) { return _mm512_loadu_ps(p); }
ER_INL void stf(void* p, vf v) { _mm512_storeu_ps(p, v); }
ER_INL vi bci(const void* p) { int v; memcpy(&v, p, 4); return _mm512_set1_epi32(v); }
ER_INL vf bcf(const void* p) { float v; memcpy(&v, p, 4); return _mm512_set1_ps(v); }
ER_INL vi all8(int v) { return _mm512_set1_epi8(char(v)); }
ER_INL vi all16(int v) { return _mm512_set1_epi16(short(v)); }
ER_INL vi all32(int v) { return _mm512_set1_epi32(v); }
ER_INL vi zero_i() { return _mm512_setzero_si512(); }
ER_INL vf zero_f() { return _mm512_setzero_ps(); }
ER_INL vi and_(vi a, vi b) { return _mm512_and_si512(a, b); }
ER_INL vi or_(vi a, vi b) { return _mm512_or_si512(a, b); }
ER_INL vi xor_(vi a, vi b) { return _mm512_xor_si512(a, b); }
ER_INL vi sel(vi m, vi a, vi b) { return _mm512_ternarylogic_epi32(m, a, b, 0xca); }
template <int N> ER_INL vi sll16(vi a) { return _mm512_slli_epi16(a, N); }
template <int N> ER_INL vi srl16(vi a) { return _mm512_srli_epi16(a, N); }
template <int N> ER_INL vi sll32(vi a) { return _mm512_slli_epi32(a, N); }
template <int N> ER_INL vi srl32(vi a) { return _mm512_srli_epi32(a, N); }
ER_INL vi sub8(vi a, vi b) { return _mm512_sub_epi8(a, b); }
ER_INL vi sub16(vi a, vi b) { return _mm512_sub_epi16(a, b); }
ER_INL vi add32(vi a, vi b) { return _mm512_add_epi32(a, b); }
ER_INL vi sub32(vi a, vi b) { return _mm512_sub_epi32(a, b); }
ER_INL vi min32(vi a, vi b) { return _mm512_min_epi32(a, b); }
ER_INL vi max32(vi a, vi b) { return _mm512_max_epi32(a, b); }
ER_INL vi lut16(vi t, vi i) { return _mm512_shuffle_epi8(t, i); }
ER_INL vi table16(const void* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p)); }
ER_INL vi wide_u8(const void* p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)p)); }
ER_INL vi wide_i8(const void* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)); }
ER_INL vi lanes_u8(const void* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
ER_INL vi lanes_i8(const void* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }
ER_INL vf cvt(vi a) { return _mm512_cvtepi32_ps(a); }
ER_INL vf as_float(vi a) { return _mm512_castsi512_ps(a); }
ER_INL vi as_int(vf a) { return _mm512_castps_si512(a); }
ER_INL void st8(void* p, vi v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(v)); }
ER_INL int sum_lanes(vi v) { return _mm512_reduce_add_epi32(v); }
ER_INL int top_lanes(vi v) { return _mm512_reduce_max_epi32(v); }
ER_INL vf h2f(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
ER_INL vi int_lo(vi p) { return _mm512_srai_epi32(_mm512_slli_epi32(p, 16), 16); }
ER_INL vi int_hi(vi p) { return _mm512_srai_epi32(p, 16); }
ER_INL vf splat_f(float x) { return _mm512_set1_ps(x); }
ER_INL vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
ER_INL vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
ER_INL vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
ER_INL vi pair_dot(vi acc, vi x, vi y) { return _mm512_dpwssd_epi32(acc, x, y); }
ER_INL vi dp(vi acc, vi u, vi x) { return _mm512_dpbusd_epi32(acc, u, x); }
#if defined(__GFNI__)
#define ER_BIT_MATRIX 1
ER_INL vi or3(vi a, vi b, vi c) { return _mm512_ternarylogic_epi32(a, b, c, 0xfe); }
// Bits FROM .. FROM + WIDTH - 1 of each byte to bit TO, the others 0: byte 7 - i of a matrix picks what becomes bit i.
template <int FROM, int TO, int WIDTH>
ER_INL vi bit_matrix(vi x) {
  unsigned long long m = 0;
  for (int i = 0; i < WIDTH; i++) m |= 1ull << ((7 - TO - i) * 8 + FROM + i);
  return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64((long long)m), 0);
}
#endif
// gcc 12 does not fold the broadcast into the instruction by itself: it emits a load and moves.
ER_INL vi dpb(vi acc, vi u, const void* p) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(u), "m"(*(const int*)p));
  return acc;
}
ER_INL vi pair_dotb(vi acc, vi x, const void* p) {
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(x), "m"(*(const int*)p));
  return acc;
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

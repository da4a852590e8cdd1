// simd_avx2.h: R = 8 rows in a 256-bit register; dot products by AVX-VNNI where the object is compiled for it. See simd_int.h.
#pragma once

namespace er {
namespace ER_ISA {
namespace q8 {

enum { R = 8, FUSED = 1 };
typedef __m256i vi;
typedef __m256 vf;

ER_INL vi ldi(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
ER_INL void sti(void* p, vi v) { _mm256_storeu_si256((__m256i*)p, v); }
ER_INL vf ldf(const void* p) { return _mm256_loadu_ps((const float*)p); }
ER_INL void stf(void* p, vf v) { _mm256_storeu_ps((float*)p, v); }
ER_INL vi bci(const void* p) { int v; memcpy(&v, p, 4); return _mm256_set1_epi32(v); }
ER_INL vf bcf(const void* p) { float v; memcpy(&v, p, 4); return _mm256_set1_ps(v); }
ER_INL vi all8(int v) { return _mm256_set1_epi8(char(v)); }
ER_INL vi all16(int v) { return _mm256_set1_epi16(short(v)); }
ER_INL vi all32(int v) { return _mm256_set1_epi32(v); }
ER_INL vi zero_i() { return _mm256_setzero_si256(); }
ER_INL vf zero_f() { return _mm256_setzero_ps(); }
ER_INL vi and_(vi a, vi b) { return _mm256_and_si256(a, b); }
ER_INL vi or_(vi a, vi b) { return _mm256_or_si256(a, b); }
ER_INL vi xor_(vi a, vi b) { return _mm256_xor_si256(a, b); }
ER_INL vi sel(vi m, vi a, vi b) { return or_(and_(m, a), _mm256_andnot_si256(m, b)); }
template <int N> ER_INL vi sll16(vi a) { return _mm256_slli_epi16(a, N); }
template <int N> ER_INL vi srl16(vi a) { return _mm256_srli_epi16(a, N); }
template <int N> ER_INL vi sll32(vi a) { return _mm256_slli_epi32(a, N); }
template <int N> ER_INL vi srl32(vi a) { return _mm256_srli_epi32(a, N); }
ER_INL vi add16(vi a, vi b) { return _mm256_add_epi16(a, b); }
ER_INL vi sub8(vi a, vi b) { return _mm256_sub_epi8(a, b); }
ER_INL vi sub16(vi a, vi b) { return _mm256_sub_epi16(a, b); }
ER_INL vi add32(vi a, vi b) { return _mm256_add_epi32(a, b); }
ER_INL vi sub32(vi a, vi b) { return _mm256_sub_epi32(a, b); }
ER_INL vi min32(vi a, vi b) { return _mm256_min_epi32(a, b); }
ER_INL vi max32(vi a, vi b) { return _mm256_max_epi32(a, b); }
ER_INL vi lut16(vi t, vi i) { return _mm256_shuffle_epi8(t, i); }
ER_INL vi table16(const void* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p)); }
ER_INL vi wide_u8(const void* p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)); }
ER_INL vi wide_i8(const void* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
ER_INL vi lanes_u8(const void* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
ER_INL vi lanes_i8(const void* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
ER_INL vf cvt(vi a) { return _mm256_cvtepi32_ps(a); }
ER_INL vf as_float(vi a) { return _mm256_castsi256_ps(a); }
ER_INL vi as_int(vf a) { return _mm256_castps_si256(a); }
ER_INL void st8(void* p, vi v) {
  v = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x0c080400));
  const int half[2] = {_mm256_extract_epi32(v, 0), _mm256_extract_epi32(v, 4)};
  memcpy(p, half, 8);
}
ER_INL int sum_lanes(vi v) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
ER_INL int top_lanes(vi v) {
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
ER_INL vf h2f(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
ER_INL vi int_lo(vi p) { return _mm256_srai_epi32(_mm256_slli_epi32(p, 16), 16); }
ER_INL vi int_hi(vi p) { return _mm256_srai_epi32(p, 16); }
ER_INL vf splat_f(float x) { return _mm256_set1_ps(x); }
ER_INL vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
ER_INL vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
ER_INL vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }

#if defined(__AVXVNNI__)
enum { SIGNED8 = 0 };
ER_INL vi pair_dot(vi acc, vi x, vi y) { return _mm256_dpwssd_avx_epi32(acc, x, y); }
ER_INL vi dp(vi acc, vi u, vi x) { return _mm256_dpbusd_avx_epi32(acc, u, x); }
ER_INL vi dpb(vi acc, vi u, const void* p) { return dp(acc, u, bci(p)); }
#else
#define ER_ACC16 1
enum { SIGNED8 = 1 };  // maddubs adds two products in int16: |code| * 127 * 2 fits, 255 * 127 * 2 would not
ER_INL vi pair_dot(vi acc, vi x, vi y) { return add32(acc, _mm256_madd_epi16(x, y)); }
ER_INL vi products(vi u, vi x) { return _mm256_maddubs_epi16(u, x); }
ER_INL vi products_signed(vi s, vi x) { return _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(x, s)); }
ER_INL vi pair_sums(vi p) { return _mm256_madd_epi16(p, all16(1)); }
#endif
ER_INL vi pair_dotb(vi acc, vi x, const void* p) { return pair_dot(acc, x, bci(p)); }

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// simd_neon.h: R = 8 rows in two 128-bit registers, dot products by SDOT (Armv8.2 dotprod). See simd_int.h.
#pragma once

namespace er {
namespace ER_ISA {
namespace q8 {

enum { R = 8, FUSED = 1 };
enum { SIGNED8 = 1 };  // SDOT is signed times signed; shorter codes are never negative
struct vi { int32x4_t a, b; };
struct vf { float32x4_t a, b; };

#define ER_U8(x) vreinterpretq_u8_s32(x)
#define ER_S8(x) vreinterpretq_s8_s32(x)
#define ER_U16(x) vreinterpretq_u16_s32(x)
#define ER_S16(x) vreinterpretq_s16_s32(x)
ER_INL vi of_u8(uint8x16_t a, uint8x16_t b) { return {vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b)}; }
ER_INL vi of_u16(uint16x8_t a, uint16x8_t b) { return {vreinterpretq_s32_u16(a), vreinterpretq_s32_u16(b)}; }
ER_INL vi of_s16(int16x8_t a, int16x8_t b) { return {vreinterpretq_s32_s16(a), vreinterpretq_s32_s16(b)}; }

ER_INL vi ldi(const void* p) { return of_u8(vld1q_u8((const uint8_t*)p), vld1q_u8((const uint8_t*)p + 16)); }
ER_INL void sti(void* p, vi v) { vst1q_u8((uint8_t*)p, ER_U8(v.a)); vst1q_u8((uint8_t*)p + 16, ER_U8(v.b)); }
ER_INL vf ldf(const void* p) { return {vld1q_f32((const float*)p), vld1q_f32((const float*)p + 4)}; }
ER_INL void stf(void* p, vf v) { vst1q_f32((float*)p, v.a); vst1q_f32((float*)p + 4, v.b); }
ER_INL vi bci(const void* p) { const int32x4_t v = vld1q_dup_s32((const int32_t*)p); return {v, v}; }
ER_INL vf bcf(const void* p) { const float32x4_t v = vld1q_dup_f32((const float*)p); return {v, v}; }
ER_INL vi all8(int v) { const uint8x16_t x = vdupq_n_u8(uint8_t(v)); return of_u8(x, x); }
ER_INL vi all16(int v) { const int16x8_t x = vdupq_n_s16(int16_t(v)); return of_s16(x, x); }
ER_INL vi all32(int v) { const int32x4_t x = vdupq_n_s32(v); return {x, x}; }
ER_INL vi zero_i() { return all32(0); }
ER_INL vf zero_f() { const float32x4_t x = vdupq_n_f32(0.0f); return {x, x}; }
ER_INL vi and_(vi a, vi b) { return {vandq_s32(a.a, b.a), vandq_s32(a.b, b.b)}; }
ER_INL vi or_(vi a, vi b) { return {vorrq_s32(a.a, b.a), vorrq_s32(a.b, b.b)}; }
ER_INL vi xor_(vi a, vi b) { return {veorq_s32(a.a, b.a), veorq_s32(a.b, b.b)}; }
ER_INL vi sel(vi m, vi a, vi b) {
  return of_u8(vbslq_u8(ER_U8(m.a), ER_U8(a.a), ER_U8(b.a)), vbslq_u8(ER_U8(m.b), ER_U8(a.b), ER_U8(b.b)));
}
template <int N> ER_INL vi sll16(vi a) { return of_u16(vshlq_n_u16(ER_U16(a.a), N), vshlq_n_u16(ER_U16(a.b), N)); }
template <int N> ER_INL vi srl16(vi a) { return of_u16(vshrq_n_u16(ER_U16(a.a), N), vshrq_n_u16(ER_U16(a.b), N)); }
template <int N> ER_INL vi sll32(vi a) { return {vshlq_n_s32(a.a, N), vshlq_n_s32(a.b, N)}; }
template <int N> ER_INL vi srl32(vi a) {
  return {vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.a), N)), vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.b), N))};
}
ER_INL vi sub8(vi a, vi b) { return of_u8(vsubq_u8(ER_U8(a.a), ER_U8(b.a)), vsubq_u8(ER_U8(a.b), ER_U8(b.b))); }
ER_INL vi sub16(vi a, vi b) { return of_s16(vsubq_s16(ER_S16(a.a), ER_S16(b.a)), vsubq_s16(ER_S16(a.b), ER_S16(b.b))); }
ER_INL vi add32(vi a, vi b) { return {vaddq_s32(a.a, b.a), vaddq_s32(a.b, b.b)}; }
ER_INL vi sub32(vi a, vi b) { return {vsubq_s32(a.a, b.a), vsubq_s32(a.b, b.b)}; }
ER_INL vi min32(vi a, vi b) { return {vminq_s32(a.a, b.a), vminq_s32(a.b, b.b)}; }
ER_INL vi max32(vi a, vi b) { return {vmaxq_s32(a.a, b.a), vmaxq_s32(a.b, b.b)}; }
ER_INL vi lut16(vi t, vi i) { return of_u8(vqtbl1q_u8(ER_U8(t.a), ER_U8(i.a)), vqtbl1q_u8(ER_U8(t.b), ER_U8(i.b))); }
ER_INL vi table16(const void* p) { const uint8x16_t x = vld1q_u8((const uint8_t*)p); return of_u8(x, x); }
ER_INL vi wide_u8(const void* p) {
  const uint8x16_t x = vld1q_u8((const uint8_t*)p);
  return of_u16(vmovl_u8(vget_low_u8(x)), vmovl_u8(vget_high_u8(x)));
}
ER_INL vi wide_i8(const void* p) {
  const int8x16_t x = vld1q_s8((const int8_t*)p);
  return of_s16(vmovl_s8(vget_low_s8(x)), vmovl_s8(vget_high_s8(x)));
}
ER_INL vi lanes_u8(const void* p) {
  const uint16x8_t x = vmovl_u8(vld1_u8((const uint8_t*)p));
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(x))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(x)))};
}
ER_INL vi lanes_i8(const void* p) {
  const int16x8_t x = vmovl_s8(vld1_s8((const int8_t*)p));
  return {vmovl_s16(vget_low_s16(x)), vmovl_s16(vget_high_s16(x))};
}
ER_INL vf cvt(vi a) { return {vcvtq_f32_s32(a.a), vcvtq_f32_s32(a.b)}; }
ER_INL vf as_float(vi a) { return {vreinterpretq_f32_s32(a.a), vreinterpretq_f32_s32(a.b)}; }
ER_INL vi as_int(vf a) { return {vreinterpretq_s32_f32(a.a), vreinterpretq_s32_f32(a.b)}; }
ER_INL void st8(void* p, vi v) { vst1_s8((int8_t*)p, vmovn_s16(vcombine_s16(vmovn_s32(v.a), vmovn_s32(v.b)))); }
ER_INL int sum_lanes(vi v) { return vaddvq_s32(vaddq_s32(v.a, v.b)); }
ER_INL int top_lanes(vi v) { return vmaxvq_s32(vmaxq_s32(v.a, v.b)); }
ER_INL vf h2f(const void* p) {
  const uint16x8_t x = vld1q_u16((const uint16_t*)p);
  return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(x))), vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(x)))};
}
ER_INL vi int_lo(vi p) { return {vshrq_n_s32(vshlq_n_s32(p.a, 16), 16), vshrq_n_s32(vshlq_n_s32(p.b, 16), 16)}; }
ER_INL vi int_hi(vi p) { return {vshrq_n_s32(p.a, 16), vshrq_n_s32(p.b, 16)}; }
ER_INL vf splat_f(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
ER_INL vf add(vf a, vf b) { return {vaddq_f32(a.a, b.a), vaddq_f32(a.b, b.b)}; }
ER_INL vf mul(vf a, vf b) { return {vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b)}; }
ER_INL vf fma(vf a, vf b, vf c) { return {vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)}; }
ER_INL int32x4_t pair_dot4(int32x4_t acc, int32x4_t x, int32x4_t y) {
  const int32x4_t lo = vmull_s16(vget_low_s16(ER_S16(x)), vget_low_s16(ER_S16(y)));
  const int32x4_t hi = vmull_high_s16(ER_S16(x), ER_S16(y));
  return vaddq_s32(acc, vpaddq_s32(lo, hi));
}
ER_INL vi pair_dot(vi acc, vi x, vi y) { return {pair_dot4(acc.a, x.a, y.a), pair_dot4(acc.b, x.b, y.b)}; }
ER_INL vi pair_dotb(vi acc, vi x, const void* p) { return pair_dot(acc, x, bci(p)); }
ER_INL vi dp(vi acc, vi u, vi x) {
  return {vdotq_s32(acc.a, ER_S8(u.a), ER_S8(x.a)), vdotq_s32(acc.b, ER_S8(u.b), ER_S8(x.b))};
}
ER_INL vi dpb(vi acc, vi u, const void* p) { return dp(acc, u, bci(p)); }
#undef ER_U8
#undef ER_S8
#undef ER_U16
#undef ER_S16

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// simd_generic.h: R = 4 rows in the compiler's own 128-bit vectors: SSE2 on any x86-64, plain code elsewhere. See simd_int.h.
#pragma once

namespace er {
namespace ER_ISA {
namespace q8 {

enum { R = 4 };
enum { SIGNED8 = 0, FUSED = 0 };
typedef int32_t vi __attribute__((vector_size(16)));
typedef float vf __attribute__((vector_size(16)));
typedef int16_t vs __attribute__((vector_size(16)));
typedef uint16_t vu __attribute__((vector_size(16)));
typedef uint8_t vb __attribute__((vector_size(16)));
typedef uint32_t vw __attribute__((vector_size(16)));

ER_INL vi ldi(const void* p) { vi v; memcpy(&v, p, 16); return v; }
ER_INL void sti(void* p, vi v) { memcpy(p, &v, 16); }
ER_INL vf ldf(const void* p) { vf v; memcpy(&v, p, 16); return v; }
ER_INL void stf(void* p, vf v) { memcpy(p, &v, 16); }
ER_INL vi all32(int v) { return vi{v, v, v, v}; }
ER_INL vi all16(int v) { return all32(int((uint32_t(v) & 0xffff) * 0x10001u)); }
ER_INL vi all8(int v) { return all32(int((uint32_t(v) & 0xff) * 0x1010101u)); }
ER_INL vi bci(const void* p) { int32_t v; memcpy(&v, p, 4); return all32(v); }
ER_INL vf bcf(const void* p) { float v; memcpy(&v, p, 4); return vf{v, v, v, v}; }
ER_INL vi zero_i() { return all32(0); }
ER_INL vf zero_f() { return vf{0, 0, 0, 0}; }
ER_INL vi and_(vi a, vi b) { return a & b; }
ER_INL vi or_(vi a, vi b) { return a | b; }
ER_INL vi xor_(vi a, vi b) { return a ^ b; }
ER_INL vi sel(vi m, vi a, vi b) { return (m & a) | (~m & b); }
template <int N> ER_INL vi sll16(vi a) { return (vi)((vu)a << N); }
template <int N> ER_INL vi srl16(vi a) { return (vi)((vu)a >> N); }
template <int N> ER_INL vi sll32(vi a) { return (vi)((vw)a << N); }
template <int N> ER_INL vi srl32(vi a) { return (vi)((vw)a >> N); }
ER_INL vi sub8(vi a, vi b) { return (vi)((vb)a - (vb)b); }
ER_INL vi sub16(vi a, vi b) { return (vi)((vu)a - (vu)b); }
ER_INL vi add32(vi a, vi b) { return (vi)((vw)a + (vw)b); }
ER_INL vi sub32(vi a, vi b) { return (vi)((vw)a - (vw)b); }
ER_INL vi min32(vi a, vi b) { return sel(a < b, a, b); }
ER_INL vi max32(vi a, vi b) { return sel(a > b, a, b); }
ER_INL vi lut16(vi t, vi i) {
  uint8_t a[16], b[16];
  memcpy(a, &t, 16); memcpy(b, &i, 16);
  for (int k = 0; k < 16; k++) b[k] = a[b[k] & 15];
  return ldi(b);
}
ER_INL vi table16(const void* p) { return ldi(p); }
ER_INL vi wide_u8(const void* p) {
  uint8_t a[8]; uint16_t b[8];
  memcpy(a, p, 8);
  for (int k = 0; k < 8; k++) b[k] = a[k];
  return ldi(b);
}
ER_INL vi wide_i8(const void* p) {
  int8_t a[8]; int16_t b[8];
  memcpy(a, p, 8);
  for (int k = 0; k < 8; k++) b[k] = a[k];
  return ldi(b);
}
ER_INL vi lanes_u8(const void* p) { uint8_t a[4]; memcpy(a, p, 4); return vi{a[0], a[1], a[2], a[3]}; }
ER_INL vi lanes_i8(const void* p) { int8_t a[4]; memcpy(a, p, 4); return vi{a[0], a[1], a[2], a[3]}; }
ER_INL vf cvt(vi a) { return __builtin_convertvector(a, vf); }
ER_INL vf as_float(vi a) { return (vf)a; }
ER_INL vi as_int(vf a) { return (vi)a; }
ER_INL void st8(void* p, vi v) {
  const int8_t b[4] = {int8_t(v[0]), int8_t(v[1]), int8_t(v[2]), int8_t(v[3])};
  memcpy(p, b, 4);
}
ER_INL int sum_lanes(vi v) { return v[0] + v[1] + v[2] + v[3]; }
ER_INL int top_lanes(vi v) {
  const int a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}
ER_INL float half_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, body = uint32_t(h & 0x7fff) << 13;
  uint32_t b = (h & 0x7c00) == 0x7c00 ? body | 0x7f800000u : body + (112u << 23);
  float f;
  if (!(h & 0x7c00)) { f = float(h & 0x3ff) * 5.9604644775390625e-8f; memcpy(&b, &f, 4); }  // units of 2^-24
  b |= sign;
  memcpy(&f, &b, 4);
  return f;
}
ER_INL vf h2f(const void* p) {
  uint16_t a[4];
  memcpy(a, p, 8);
  return vf{half_to_f32(a[0]), half_to_f32(a[1]), half_to_f32(a[2]), half_to_f32(a[3])};
}
ER_INL vi int_lo(vi p) { return (vi)((vw)p << 16) >> 16; }
ER_INL vi int_hi(vi p) { return p >> 16; }
ER_INL vf splat_f(float x) { return vf{x, x, x, x}; }
ER_INL vf add(vf a, vf b) { return a + b; }
ER_INL vf mul(vf a, vf b) { return a * b; }
ER_INL vf fma(vf a, vf b, vf c) { return a * b + c; }  // rounded twice, see vec16.h
#if defined(__SSE2__)
ER_INL vi madd16(vi x, vi y) { return (vi)_mm_madd_epi16((__m128i)x, (__m128i)y); }
#else
ER_INL vi madd16(vi x, vi y) { return ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16); }
#endif
ER_INL vi pair_dot(vi acc, vi x, vi y) { return acc + madd16(x, y); }
ER_INL vi pair_dotb(vi acc, vi x, const void* p) { return pair_dot(acc, x, bci(p)); }
// Even and odd bytes as int16, codes unsigned.
ER_INL vi dp(vi acc, vi u, vi x) {
  const vi ue = u & all16(0xff), uo = (vi)((vu)u >> 8);
  const vi xe = (vi)((vs)((vu)x << 8) >> 8), xo = (vi)((vs)x >> 8);
  return acc + madd16(ue, xe) + madd16(uo, xo);
}
ER_INL vi dpb(vi acc, vi u, const void* p) { return dp(acc, u, bci(p)); }

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// half_pair.cuh: arithmetic on two halves at once, which CUDA C++ has only with its headers, and a
// fast exponential.
#pragma once
#include "ptx.cuh"

#ifdef EDGERUN_SIMT
inline uint32_t half_pair_sub(uint32_t a, uint32_t b) {
  return half_pair(half_of(a, 0) - half_of(b, 0), half_of(a, 1) - half_of(b, 1));
}
inline uint32_t half_pair_mul(uint32_t a, uint32_t b) {
  return half_pair(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}
inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }
#else
PTX uint32_t half_pair_sub(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
PTX uint32_t half_pair_mul(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// 2^x within two units of the last place; 1 for 0, 0 for -infinity, NaN for NaN.
PTX float exp2_fast(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x within one unit of the last place, for what is not subnormal; 0 for infinity, NaN for NaN.
PTX float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

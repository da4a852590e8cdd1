// simd_int.h: one register of R weight rows: R int32 lanes (vi), seen as 4R bytes or 2R int16 where an operation says so,
// and R floats (vf). Integer operations are exact, so every set gives the same sums whatever instructions it uses.
//
//   ldi sti ldf stf      whole registers          bci bcf          one 32-bit value to every lane
//   all8 all16 all32     constants                sel(m, a, b)     m ? a : b, bit by bit
//   sll16 srl16, .. 32   logical shifts           lut16(t, i)      t[i] for byte indices below 16
//   wide_u8 wide_i8      2R bytes -> 2R int16     lanes_u8 lanes_i8    R bytes -> R int32
//   pair_dot(a, x, y)    a + x.lo * y.lo + x.hi * y.hi over int16 pairs
//   int_lo int_hi        one half of each int16 pair   splat_f          one float to every lane
//   h2f                  R fp16 -> R floats       fma              x * y + z, rounded once (generic: twice)
//   dp(a, u, x)          a + the dot product of four code bytes u with four int8 x, in each lane
//   as_float as_int      the same bits            st8(p, v)        the low byte of each lane
//   sum_lanes top_lanes  over R int32
//
// SIGNED8: codes of 8 bits are kept signed (else offset by 128). ER_ACC16: sums of products are kept in int16 for a
// few steps (maddubs) because the set has no dot-product instruction; see dots.h. FUSED: fma rounds once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#ifndef ER_INL
#define ER_INL static inline __attribute__((always_inline))
#endif

#if defined(__AVX512VNNI__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "simd_neon.h"
#else
#include "simd_generic.h"
#endif

namespace er {
namespace ER_ISA {
namespace q8 {

enum { VB = 4 * R };       // bytes of a register
enum { NEAR = 4096, FAR = 16384 };  // how far the weight stream is prefetched, in bytes

// Into the second level, or from there into the first: those in flight to the first are too few to hide memory's latency. On
// Intel's server cores one column ran at a third of the speed with the non-temporal hint.
template <int BYTES, int LEVEL>
ER_INL void prefetch(const uint8_t* p) {
  for (int i = 0; i < BYTES; i += 64) __builtin_prefetch(p + i, 0, LEVEL == 2 ? 2 : 3);
}

// 2^(e - 128) for R exponent bytes: the shared scale of MXFP4, halved because its codes are doubled.
ER_INL vf e8m0(const uint8_t* p) {
  const vi e = lanes_u8(p);
  const vi normal = sll32<23>(sub32(e, all32(1)));
  const vi small = sll32<21>(add32(min32(e, all32(1)), all32(1)));  // e of 0 and 1: subnormal
  return as_float(max32(normal, small));
}

// A compile-time index and a loop over it, for shifts that must be immediates.
template <int N> struct Int { static constexpr int v = N; };
template <int J, int N, class F>
ER_INL void steps(const F& f) {
  if constexpr (J < N) {
    f(Int<J>{});
    steps<J + 1, N>(f);
  }
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

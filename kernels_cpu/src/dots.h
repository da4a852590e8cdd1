// dots.h: N dword steps of codes against C columns; the only place where sets with and without a dot-product
// instruction differ. Column c's int8 of the step lie at a(c).
//   dots    acc[c] += sum          dots2    the same for two tiles
// `codes(Int<J>)` gives dword J of all rows, `codes(J, tile)` that of one of two tiles. BITS bounds the codes, or is 8 for full bytes.
#pragma once
#include "simd_int.h"

#define ER_EACH _Pragma("GCC unroll 16") for (int c = 0; c < C; c++)
#if defined(__clang__)
#undef ER_EACH
#define ER_EACH _Pragma("unroll") for (int c = 0; c < C; c++)
#endif

namespace er {
namespace ER_ISA {
namespace q8 {

#if !defined(ER_ACC16)

constexpr int code_bits(int) { return 8; }  // kernels that differ in BITS alone are one

template <int N, int BITS, int C, class F, class A>
ER_INL void dots(vi (&acc)[C], const F& codes, const A& a) {
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi u = codes(j);
    ER_EACH acc[c] = dpb(acc[c], u, a(c) + j.v * 4);
  });
}

template <int N, int BITS, int C, class F, class A>
ER_INL void dots2(vi (&acc)[C][2], const F& codes, const A& a) {
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi w0 = codes(j.v, 0), w1 = codes(j.v, 1);
    ER_EACH {
      const vi x = bci(a(c) + j.v * 4);
      acc[c][0] = dp(acc[c][0], w0, x);
      acc[c][1] = dp(acc[c][1], w1, x);
    }
  });
}

#else

// Steps whose int16 sums cannot overflow: each adds at most 2 * 127 * (2^BITS - 1).
constexpr int code_bits(int bits) { return bits <= 4 ? 4 : bits; }
constexpr int steps_in_16(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }
template <int BITS>
ER_INL vi products_of(vi u, vi x) {
  if constexpr (BITS == 8) return products_signed(u, x);
  else return products(u, x);
}

template <int N, int BITS, int C, class F, class A>
ER_INL void dots(vi (&acc)[C], const F& codes, const A& a) {
  constexpr int G = steps_in_16(BITS) < N ? steps_in_16(BITS) : N;
  vi t[C];
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi u = codes(j);
    ER_EACH {
      const vi p = products_of<BITS>(u, bci(a(c) + j.v * 4));
      t[c] = j.v % G == 0 ? p : add16(t[c], p);
    }
    if constexpr (j.v % G == G - 1) ER_EACH acc[c] = add32(acc[c], pair_sums(t[c]));
  });
}

template <int N, int BITS, int C, class F, class A>
ER_INL void dots2(vi (&acc)[C][2], const F& codes, const A& a) {
  constexpr int G = steps_in_16(BITS) < N ? steps_in_16(BITS) : N;
  vi t[C][2];
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi w0 = codes(j.v, 0), w1 = codes(j.v, 1);
    ER_EACH {
      const vi x = bci(a(c) + j.v * 4);
      const vi p0 = products_of<BITS>(w0, x), p1 = products_of<BITS>(w1, x);
      t[c][0] = j.v % G == 0 ? p0 : add16(t[c][0], p0);
      t[c][1] = j.v % G == 0 ? p1 : add16(t[c][1], p1);
    }
    if constexpr (j.v % G == G - 1) ER_EACH {
      acc[c][0] = add32(acc[c][0], pair_sums(t[c][0]));
      acc[c][1] = add32(acc[c][1], pair_sums(t[c][1]));
    }
  });
}

#endif

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

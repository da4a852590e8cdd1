// dots.h: N dword steps of codes against C columns; the only place where sets with and without a dot-product
// instruction differ. Column c's int8 of the step lie at a(c).
//   dots          acc[c] += sum                      dots2         the same for two tiles of plain code bytes,
//   dots_scaled   acc[c] += sum * scale, per lane    dots2_scaled  interleaved [step][tile]
// `codes(Int<J>)` gives dword J of all rows. BITS bounds the codes, or is 8 for full bytes.
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

// Kernels that differ in BITS alone are one where it does not matter: plain sums here, and scaled ones above 4 bits.
// Up to 4 bits the sum of 16 products fits int16, and one pair_dot multiplies and adds; 3 bits come with signed scales.
constexpr int code_bits(int) { return 8; }
constexpr int scaled_bits(int bits) { return !PAIR_SCALES || bits > 4 ? 8 : bits == 3 ? 3 : 4; }
template <int BITS>
ER_INL vi pair_scale(vi scale) {
  if constexpr (BITS == 3) return and_(scale, all32(0xffff));  // the sum's upper half is its sign, not a second sum
  else return scale;
}

template <int N, int BITS, int C, class F, class A>
ER_INL void dots(vi (&acc)[C], const F& codes, const A& a) {
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi u = codes(j);
    ER_EACH acc[c] = dpb(acc[c], u, a(c) + j.v * 4);
  });
}

template <int N, int BITS, int C, class F, class A>
ER_INL void dots_scaled(vi (&acc)[C], const F& codes, const A& a, vi scale) {
  if constexpr (scaled_bits(BITS) <= 4) {
    const vi s = pair_scale<BITS>(scale);
    steps<0, N / 4>([&](auto part) __attribute__((always_inline)) {
      vi sum[C];
      ER_EACH sum[c] = zero_i();
      dots<4, BITS>(sum, [&](auto j) __attribute__((always_inline)) { return codes(Int<part.v * 4 + j.v>{}); },
                    [&](int c) __attribute__((always_inline)) { return a(c) + part.v * 16; });
      ER_EACH acc[c] = pair_dot(acc[c], sum[c], s);
    });
  } else {
    vi sum[C];
    ER_EACH sum[c] = zero_i();
    dots<N, BITS>(sum, codes, a);
    ER_EACH acc[c] = mul_add(acc[c], sum[c], scale);
  }
}

template <int N, int BITS, int C, class A>
ER_INL void dots2(vi (&acc)[C][2], const uint8_t* w, const A& a) {
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi w0 = ldi(w + j.v * 2 * VB), w1 = ldi(w + j.v * 2 * VB + VB);
    ER_EACH {
      const vi x = bci(a(c) + j.v * 4);
      acc[c][0] = dp(acc[c][0], w0, x);
      acc[c][1] = dp(acc[c][1], w1, x);
    }
  });
}

template <int N, int BITS, int C, class A>
ER_INL void dots2_scaled(vi (&acc)[C][2], const uint8_t* w, const A& a, const uint8_t* scale) {
  if constexpr (scaled_bits(BITS) <= 4) {
    const vi s0 = pair_scale<BITS>(ldi(scale)), s1 = pair_scale<BITS>(ldi(scale + VB));
    steps<0, N / 4>([&](auto part) __attribute__((always_inline)) {
      vi sum[C][2];
      ER_EACH sum[c][0] = sum[c][1] = zero_i();
      dots2<4, BITS>(sum, w + part.v * 8 * VB, [&](int c) __attribute__((always_inline)) { return a(c) + part.v * 16; });
      ER_EACH {
        acc[c][0] = pair_dot(acc[c][0], sum[c][0], s0);
        acc[c][1] = pair_dot(acc[c][1], sum[c][1], s1);
      }
    });
  } else {
    vi sum[C][2];
    ER_EACH sum[c][0] = sum[c][1] = zero_i();
    dots2<N, BITS>(sum, w, a);
    const vi s0 = ldi(scale), s1 = ldi(scale + VB);
    ER_EACH {
      acc[c][0] = mul_add(acc[c][0], sum[c][0], s0);
      acc[c][1] = mul_add(acc[c][1], sum[c][1], s1);
    }
  }
}

#else

// Steps whose int16 sums cannot overflow: each adds at most 2 * 127 * (2^BITS - 1).
constexpr int code_bits(int bits) { return bits <= 4 ? 4 : bits; }
constexpr int scaled_bits(int bits) { return code_bits(bits); }
constexpr int steps_in_16(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }
template <int BITS>
ER_INL vi products_of(vi u, vi x) {
  if constexpr (BITS == 8) return products_signed(u, x);
  else return products(u, x);
}

template <int N, int BITS, int C, class F, class A>
ER_INL void dots_scaled(vi (&acc)[C], const F& codes, const A& a, vi scale) {
  constexpr int G = steps_in_16(BITS) < N ? steps_in_16(BITS) : N;
  vi t[C];
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi u = codes(j);
    ER_EACH {
      const vi p = products_of<BITS>(u, bci(a(c) + j.v * 4));
      t[c] = j.v % G == 0 ? p : add16(t[c], p);
    }
    if constexpr (j.v % G == G - 1) ER_EACH acc[c] = add32(acc[c], pairs_times(t[c], scale));
  });
}
template <int N, int BITS, int C, class F, class A>
ER_INL void dots(vi (&acc)[C], const F& codes, const A& a) { dots_scaled<N, BITS>(acc, codes, a, all16(1)); }

template <int N, int BITS, int C, class A>
ER_INL void dots2_by(vi (&acc)[C][2], const uint8_t* w, const A& a, vi s0, vi s1) {
  constexpr int G = steps_in_16(BITS) < N ? steps_in_16(BITS) : N;
  vi t[C][2];
  steps<0, N>([&](auto j) __attribute__((always_inline)) {
    const vi w0 = ldi(w + j.v * 2 * VB), w1 = ldi(w + j.v * 2 * VB + VB);
    ER_EACH {
      const vi x = bci(a(c) + j.v * 4);
      const vi p0 = products_of<BITS>(w0, x), p1 = products_of<BITS>(w1, x);
      t[c][0] = j.v % G == 0 ? p0 : add16(t[c][0], p0);
      t[c][1] = j.v % G == 0 ? p1 : add16(t[c][1], p1);
    }
    if constexpr (j.v % G == G - 1) ER_EACH {
      acc[c][0] = add32(acc[c][0], pairs_times(t[c][0], s0));
      acc[c][1] = add32(acc[c][1], pairs_times(t[c][1], s1));
    }
  });
}
template <int N, int BITS, int C, class A>
ER_INL void dots2(vi (&acc)[C][2], const uint8_t* w, const A& a) {
  dots2_by<N, BITS>(acc, w, a, all16(1), all16(1));
}
template <int N, int BITS, int C, class A>
ER_INL void dots2_scaled(vi (&acc)[C][2], const uint8_t* w, const A& a, const uint8_t* scale) {
  dots2_by<N, BITS>(acc, w, a, ldi(scale), ldi(scale + VB));
}

#endif

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

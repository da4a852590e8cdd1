// slice.h: what the byte kernels (gemm.h) work on: two tiles unpacked to code bytes, a slice of K that stays in L1.
// Slice record per 32 k: [8 dwords][2 tiles] registers | d[2] | min[2] | bias[2], and with sub-blocks of 16 those of the
// second halves: d[2] | pairs of minimums [2] | bias[2]
#pragma once
#include "direct.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// k of a slice. The last one may be a little wider: another of a block or two would move sums about for little. The tile
// multiplier's sums share L1 with it.
#if defined(__AMX_INT8__)
enum { SLICE = 256 };
#else
enum { SLICE = 512 };
#endif
enum { WIDE_SLICE = SLICE + 128 };
ER_INL int slice_of(int K, int k0) { return K - k0 <= WIDE_SLICE ? K - k0 : int(SLICE); }
template <int HALVES> constexpr int slice_record() { return (HALVES ? 28 : 22) * VB; }
enum { SLICE_BYTES = WIDE_SLICE / 32 * slice_record<1>() };

template <class T>
ER_INL void put_scale(uint8_t* o, vf d) {
  stf(o, d);
  if constexpr (biased<T>()) stf(o + 4 * VB, bias_of(d));
}

// The tile multiplier (gemm_amx.h) takes codes less their zero point, so that it costs nothing else; elsewhere they stay
// unsigned.
#if defined(__AMX_INT8__)
template <int ZERO>
ER_INL vi with_sign(vi codes) {
  if constexpr (ZERO >= 0) return _mm512_sub_epi8(codes, all8(1 << (ZERO & 15)));
  else return codes;
}
template <int ZERO>
ER_INL vi without_sign(vi codes) {
  if constexpr (ZERO >= 0) return _mm512_add_epi8(codes, all8(1 << (ZERO & 15)));
  else return codes;
}
#else
template <int ZERO> ER_INL vi with_sign(vi codes) { return codes; }
template <int ZERO> ER_INL vi without_sign(vi codes) { return codes; }
#endif

template <class T>
static void unpack_slice(const uint8_t* w, int blocks, uint8_t* o) {
  Unit<T> u;
  for (; blocks > 0; blocks -= Unit<T>::BLOCKS, w += T::UNIT) {
    Unit<T>::open(u, w);
    for (int i = 0; i < int(Unit<T>::BLOCKS) && i < blocks; i++, o += slice_record<Unit<T>::HALVES>()) {
      const uint8_t* v = w + T::HEAD + i * T::BLOCK;
      steps<0, 8>([&](auto j) __attribute__((always_inline)) {
        sti(o + j.v * 2 * VB, with_sign<T::ZERO>(T::Codes::template get<j.v>(v)));
      });
      if constexpr (T::MIN) stf(o + 18 * VB, u.min(i));
      if constexpr (Unit<T>::HALVES) {
        put_scale<T>(o + 16 * VB, u.scale(i, 0));
        put_scale<T>(o + 22 * VB, u.scale(i, 1));
        if constexpr (T::MIN) sti(o + 24 * VB, u.pair(i));
      } else {
        put_scale<T>(o + 16 * VB, u.scale(i));
      }
    }
  }
}

// What a type's kernels depend on; `bits` are those of the codes where they matter.
template <int HALVES_, int ZERO_, int MIN_, int BITS_, bool BIASED_>
struct Kind { enum { HALVES = HALVES_, ZERO = ZERO_, MIN = MIN_, BITS = BITS_, BIASED = BIASED_ }; };

// f[c] += sums of two tiles, whose scales and biases lie at w, times column c's scale
template <class Q, int C, class A>
ER_INL void add_scaled(vf (&f)[C][2], const vi (&acc)[C][2], const uint8_t* w, const A& a) {
  const vf d0 = ldf(w), d1 = ldf(w + VB);
  vf bias0 = d0, bias1 = d1;
  if constexpr (Q::BIASED) bias0 = ldf(w + 4 * VB), bias1 = ldf(w + 5 * VB);
  ER_EACH {
    const vf da = bcf(a.d(c));
    f[c][0] = fma(scaled<Q::BIASED>(acc[c][0], d0, bias0), da, f[c][0]);
    f[c][1] = fma(scaled<Q::BIASED>(acc[c][1], d1, bias1), da, f[c][1]);
  }
}

// f[c] += a slice record's minimums times what column c sums up to
template <class Q, int C, class A>
ER_INL void add_minimums(vf (&f)[C][2], const uint8_t* w, const A& a) {
  if constexpr (Q::MIN && !Q::HALVES) ER_EACH {
    const vf x = bcf(a.x(c));
    f[c][0] = fma(ldf(w + 18 * VB), x, f[c][0]);
    f[c][1] = fma(ldf(w + 19 * VB), x, f[c][1]);
  }
  if constexpr (Q::MIN && Q::HALVES) ER_EACH {
    const vi x = bci(a.pair(c));
    const vf da = bcf(a.d(c));
    f[c][0] = fma(mul(cvt(pair_dot(zero_i(), ldi(w + 24 * VB), x)), ldf(w + 18 * VB)), da, f[c][0]);
    f[c][1] = fma(mul(cvt(pair_dot(zero_i(), ldi(w + 25 * VB), x)), ldf(w + 19 * VB)), da, f[c][1]);
  }
}

// f[c] += a slice record times column c
template <class Q, int C, class A>
ER_INL void add_record(vf (&f)[C][2], const uint8_t* w, const A& a) {
  const auto codes = [&](int j, int tile) __attribute__((always_inline)) {
    return without_sign<Q::ZERO>(ldi(w + (j * 2 + tile) * VB));
  };
  if constexpr (!Q::HALVES) {
    vi acc[C][2];
    ER_EACH acc[c][0] = acc[c][1] = start_sum<Q::ZERO, Q::BIASED>(a.zero(c), a.pair(c));
    dots2<8, Q::BITS>(acc, codes, [&](int c) __attribute__((always_inline)) { return a.codes(c); });
    add_scaled<Q, C>(f, acc, w + 16 * VB, a);
  } else {
    steps<0, 2>([&](auto half) __attribute__((always_inline)) {
      vi acc[C][2];
      ER_EACH acc[c][0] = acc[c][1] = start_half<Q::ZERO, Q::BIASED, half.v>(a.pair(c));
      dots2<4, Q::BITS>(
          acc, [&](int j, int tile) __attribute__((always_inline)) { return codes(j + half.v * 4, tile); },
          [&](int c) __attribute__((always_inline)) { return a.codes(c) + half.v * 16; });
      add_scaled<Q, C>(f, acc, w + (16 + half.v * 6) * VB, a);
    });
  }
  add_minimums<Q, C>(f, w, a);
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

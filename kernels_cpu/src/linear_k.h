// linear_k.h: one tile x C columns over all of K for blocks of 256, straight from the packed tile.
// The 6-bit scales multiply integers: one exact int32 sum a block, then the fma with d, then the minimum's with dmin.
#pragma once
#include "act_q8.h"
#include "dots.h"
#include "format_k.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// A block's integer scales as multipliers S[NS], and P[NS / 2]: int16 pairs to be dotted with the activation's block
// sums, for the minimum (MIN) or for the zero point (-zero * scale; a product of both fits: 32 * 127, 128 * 32).
template <class T>
ER_INL void scales_of(const uint8_t* u, uint8_t* S, int s_stride, uint8_t* P, int p_stride) {
  vi sc[T::NS / 2], mn[T::NS / 2];
  T::Head::get(u, sc, mn);
  for (int p = 0; p < T::NS / 2; p++) {
    sti(S + 2 * p * s_stride, scale_lo(sc[p]));
    sti(S + (2 * p + 1) * s_stride, scale_hi(sc[p]));
    if constexpr (T::MIN) sti(P + p * p_stride, mn[p]);
    else if constexpr (T::ZERO >= 0) sti(P + p * p_stride, sub16(zero_i(), sll16<(T::ZERO & 15)>(sc[p])));
  }
}
// Where a record's block sums lie, by 16 or by 32.
template <int NS, int C>
ER_INL const uint8_t* sums_of(const uint8_t* a) { return a + C * 256 + C * (NS == 16 ? 4 : 36); }

template <class T, int C>
static void direct_k(const uint8_t* w, const uint8_t* a, int K, float* out, int64_t ldo, int n) {
  // f is touched once a block: in memory it leaves the registers to acc and the sub-block's sums.
  alignas(64) float f[C][R];
  alignas(64) uint8_t S[T::NS * VB], P[T::NS / 2 * VB];
  ER_EACH stf(f[c], zero_f());
  for (int b = K / 256; b > 0; b--, w += T::UNIT, a += C * REC256) {
    scales_of<T>(w, S, VB, P, VB);
    vi acc[C];
    ER_EACH acc[c] = zero_i();
#pragma GCC unroll 1
    for (int i = 0; i < 8; i++) {
      const uint8_t *v = w + T::HEAD + i * T::BLOCK, *x = a + i * C * 32;
      prefetch<T::UNIT / 8>(w + i * (T::UNIT / 8));
      if constexpr (T::NS == 8) {
        dots_scaled<8, T::Codes::BITS>(
            acc, [&](auto j) __attribute__((always_inline)) { return T::Codes::template get<j.v>(v); }, x, ldi(S + i * VB));
      } else {
        dots_scaled<4, T::Codes::BITS>(
            acc, [&](auto j) __attribute__((always_inline)) { return T::Codes::template get<j.v>(v); }, x, ldi(S + 2 * i * VB));
        dots_scaled<4, T::Codes::BITS>(
            acc, [&](auto j) __attribute__((always_inline)) { return T::Codes::template get<j.v + 4>(v); }, x + 16,
            ldi(S + (2 * i + 1) * VB));
      }
    }
    const uint8_t* sums = sums_of<T::NS, C>(a);
    const vf d = h2f(w);
    if constexpr (!T::MIN && T::ZERO >= 0) {
      for (int p = 0; p < T::NS / 2; p++) {
        const vi z = ldi(P + p * VB);
        ER_EACH acc[c] = pair_dotb(acc[c], z, sums + (p * C + c) * 4);
      }
    }
    ER_EACH {
      const vf da = bcf(a + C * 256 + c * 4);
      vf y = fma(cvt(acc[c]), mul(d, da), ldf(f[c]));
      if constexpr (T::MIN) {
        vi m = zero_i();
        for (int p = 0; p < T::NS / 2; p++) m = pair_dotb(m, ldi(P + p * VB), sums + (p * C + c) * 4);
        y = fnma(cvt(m), mul(h2f(w + 2 * R), da), y);
      }
      stf(f[c], y);
    }
  }
  ER_EACH if (c < n) stf(out + c * ldo, ldf(f[c]));
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// linear_q32.h: one tile x C columns over all of K for blocks of 32, straight from the packed tile.
// Per output and block, in k order: an exact int32 sum, one fma with the scales, one more with the minimum. C is nowhere
// in that, so every C and the byte kernel (gemm.h) give the same bits.
#pragma once
#include "act_q8.h"
#include "dots.h"
#include "format_q32.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// -zero * sum, from the record's -8 * sum
template <int ZERO>
ER_INL vi zero_start(const uint8_t* p) {
  if constexpr (ZERO < 0) return zero_i();
  else if constexpr (ZERO == 3) return bci(p);
  else return sll32<ZERO - 3>(bci(p));
}

// `n` <= C columns are stored; the rest of the tile's columns may hold anything.
template <class T, int C>
static void direct32(const uint8_t* w, const uint8_t* a, int K, float* out, int64_t ldo, int n) {
  vf f[C];
  ER_EACH f[c] = zero_f();
  const uint8_t* stream = w;
  int h = 0;
  for (int b = K / 32; b > 0; b--, a += C * REC32) {
    const uint8_t* v = w + T::HEAD + h * T::BLOCK;
    prefetch<T::UNIT / T::U>(stream);
    stream += T::UNIT / T::U;
    vi acc[C];
    ER_EACH acc[c] = zero_start<T::ZERO>(a + C * 40 + c * 4);
    dots<8, T::Codes::BITS>(acc, [&](auto j) __attribute__((always_inline)) { return T::Codes::template get<j.v>(v); }, a);
    const vf d = T::scale(w + h * R * T::SCALE);
    ER_EACH f[c] = fma(cvt(acc[c]), mul(d, bcf(a + C * 32 + c * 4)), f[c]);
    if constexpr (T::MIN) {
      const vf m = h2f(w + 2 * R);
      ER_EACH f[c] = fma(m, bcf(a + C * 36 + c * 4), f[c]);
    }
    if (++h == T::U) h = 0, w += T::UNIT;
  }
  ER_EACH if (c < n) stf(out + c * ldo, f[c]);
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

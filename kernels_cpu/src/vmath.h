// vmath.h: exponentials and what is made of them, over vec16.h.
#pragma once
#include "float_ops.h"
#include "vec16.h"

namespace er {
namespace ER_ISA {

ER_INL void store_part(float* p, v16 x, int n) { alignas(64) float t[16]; store(t, x); memcpy(p, t, size_t(n) * 4); }
ER_INL v16 load_upto(const float* p, int n) { return n >= 16 ? load(p) : load_part(p, n); }

// Relative error below 2e-7; smaller arguments give exp(-87), NaN stays NaN (the operand order matters).
ER_INL v16 vexp_below_88(v16 x) {
  x = vmax(splat(-87.0f), x);
  const v16 n = round_even(mul(x, splat(1.44269504f)));
  const v16 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));  // x - n ln 2, in two parts
  v16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(mul(r, r), p, add(r, splat(1)));
  return times_pow2(p, n);
}
// Larger arguments give exp(88).
ER_INL v16 vexp(v16 x) { return vexp_below_88(vmin(splat(88.0f), x)); }

// cap * tanh(x / cap), tanh(y) = 1 - 2 / (1 + exp(2y))
ER_INL v16 softcap16(v16 x, float cap) {
  const v16 e = vexp(mul(x, splat(2.0f / cap)));
  return mul(splat(cap), sub(splat(1), div(splat(2), add(splat(1), e))));
}

ER_INL v16 silu(v16 x) { return div(x, add(splat(1), vexp(sub(splat(0), x)))); }

// x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
ER_INL v16 gelu(v16 x) {
  const v16 x3 = mul(mul(x, x), x);
  const v16 u2 = mul(splat(1.5957691216057308f), fma(splat(0.044715f), x3, x));
  return div(x, add(splat(1), vexp(sub(splat(0), u2))));
}

ER_INL v16 glu16(v16 gate, v16 up, int act) { return mul(act == GLU_SILU ? silu(gate) : gelu(gate), up); }

static void op_scale(const float* x, float s, int n, float* out) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, mul(load(x + i), splat(s)));
  for (; i < n; i++) out[i] = x[i] * s;
}

}  // namespace ER_ISA
}  // namespace er

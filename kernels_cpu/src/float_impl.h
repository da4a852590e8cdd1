// float_impl.h: norms, activations, rope over vec16.h.
#pragma once
#include "float_ops.h"
#include "vec16.h"
#include "attention_impl.h"

namespace er {
namespace ER_ISA {

static float sum_squares(const float* x, int n) {
  v16 a = splat(0), b = splat(0);
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    const v16 p = load(x + i), q = load(x + i + 16);
    a = fma(p, p, a);
    b = fma(q, q, b);
  }
  for (; i < n; i += 16) {
    const v16 p = n - i >= 16 ? load(x + i) : load_part(x + i, n - i);
    a = fma(p, p, a);
  }
  return sum16(add(a, b));
}

static void rms_norm(const float* x, const float* w, int n, int group, float eps, float* out) {
  for (int g = 0; g < n; g += group) {
    const float mean = sum_squares(x + g, group) / float(group);
    const float r = 1.0f / __builtin_sqrtf(mean + eps);
    int i = 0;
    for (; i + 16 <= group; i += 16) store(out + g + i, mul(mul(load(x + g + i), splat(r)), load(w + i)));
    for (; i < group; i++) out[g + i] = (x[g + i] * r) * w[i];
  }
}

static void op_add(const float* x, const float* y, int n, float* out) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, add(load(x + i), load(y + i)));
  for (; i < n; i++) out[i] = x[i] + y[i];
}

static float op_top(const float* x, int n) {
  v16 best = splat(-__builtin_inff()), spoilt = splat(0);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const v16 v = load(x + i);
    best = vmax(best, v);
    spoilt = add(spoilt, sub(v, v));  // 0 unless some value is not finite
  }
  float top = max16(best), bad = sum16(spoilt);
  for (; i < n; i++) {
    top = x[i] > top ? x[i] : top;
    bad += x[i] - x[i];
  }
  return bad == 0.0f ? top : __builtin_nanf("");
}

ER_INL v16 swiglu_oai(v16 gate, v16 up) {
  const v16 g = vmin(splat(7), gate), u = vmax(splat(-7), vmin(splat(7), up));
  return mul(div(g, add(splat(1), vexp(mul(splat(-1.702f), g)))), add(u, splat(1)));
}

static void glu(const float* gate, const float* up, int n, int act, float* out) {
  for (int i = 0; i < n; i += 16) {
    const int m = n - i < 16 ? n - i : 16;
    const v16 g = m == 16 ? load(gate + i) : load_part(gate + i, m), u = m == 16 ? load(up + i) : load_part(up + i, m);
    const v16 y = act == GLU_OAI ? swiglu_oai(g, u) : glu16(g, u, act);
    if (m == 16) store(out + i, y);
    else store_part(out + i, y, m);
  }
}

static void op_softcap(float* x, int n, float cap) {
  for (int i = 0; i < n; i += 16) {
    const int m = n - i < 16 ? n - i : 16;
    const v16 y = softcap16(m == 16 ? load(x + i) : load_part(x + i, m), cap);
    if (m == 16) store(x + i, y);
    else store_part(x + i, y, m);
  }
}

static void rope(const float* x, int head_dim, int n_rot, bool interleaved, const float* cs, float* out) {
  const int h = n_rot / 2, a = interleaved ? 2 : 1, b = interleaved ? 1 : h;
  int from = 0;
  for (; !interleaved && from + 16 <= h; from += 16) {
    const v16 p = load(x + from), q = load(x + h + from), c = load(cs + from), s = load(cs + h + from);
    store(out + from, sub(mul(p, c), mul(q, s)));
    store(out + h + from, add(mul(q, c), mul(p, s)));
  }
#if defined(__AVX512F__)
  for (; interleaved && from + 16 <= h; from += 16) {
    v16 p, q;
    split_pairs(x + 2 * from, p, q);
    const v16 c = load(cs + from), s = load(cs + h + from);
    join_pairs(out + 2 * from, sub(mul(p, c), mul(q, s)), add(mul(q, c), mul(p, s)));
  }
#endif
  for (int i = from; i < h; i++) {
    const float p = x[i * a], q = x[i * a + b], c = cs[i], s = cs[h + i];
    out[i * a] = p * c - q * s;
    out[i * a + b] = q * c + p * s;
  }
  for (int i = n_rot; i < head_dim; i++) out[i] = x[i];
}

static void softmax(float* x, int n) {
  const auto part = [&](int i) { return n - i >= 16 ? load(x + i) : within(load_part(x + i, n - i), 0, n - i, splat(NEG_INF)); };
  v16 top = splat(NEG_INF), sum = splat(0);
  for (int i = 0; i < n; i += 16) top = vmax(top, part(i));
  const v16 most = splat(max16(top));
  for (int i = 0; i < n; i += 16) {
    v16 e = vexp(sub(part(i), most));
    if (n - i < 16) e = within(e, 0, n - i, splat(0));
    sum = add(sum, e);
    if (n - i < 16) store_part(x + i, e, n - i);
    else store(x + i, e);
  }
  const float total = sum16(sum);
  for (int i = 0; i < n; i++) x[i] = x[i] / total;
}

static void add_scaled(const float* x, float s, int n, float* out) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, fma(load(x + i), splat(s), load(out + i)));
  if (i < n) store_part(out + i, fma(load_part(x + i, n - i), splat(s), load_part(out + i, n - i)), n - i);
}

static const FloatOps float_ops = {rms_norm, op_add,   op_scale,   glu,       op_softcap,  op_top, rope,
                                   write_kv, tile_bytes, attention, merge_parts, softmax,     add_scaled};

}  // namespace ER_ISA
}  // namespace er

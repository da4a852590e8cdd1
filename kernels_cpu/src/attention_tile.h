// attention_tile.h: the parts of attention that know no storage format: queries of a tile, softmax, sums of splits.
#pragma once
#include "float_ops.h"
#include "vmath.h"

namespace er {
namespace ER_ISA {

// Queries that share every load of K and V, and vectors of tokens (or dimensions) taken at a time: what the registers hold.
#if defined(__AVX512F__)
enum { QUERY_BLOCK = 8, VECTORS = 2 };
#elif defined(__AVX2__) || defined(__ARM_NEON)
enum { QUERY_BLOCK = 6, VECTORS = 1 };
#else
enum { QUERY_BLOCK = 2, VECTORS = 1 };
#endif
constexpr float NEG_INF = -__builtin_inff();

// Queries whose pages are walked together; what a page needs to be used often is done once for all of them.
struct Tile {
  int n, head_dim, v_dim;
  float* q;    // v_dim floats a query, laid out block by block as the storage format likes it
  float* acc;  // [n][v_dim], values weighed so far in this split
  float* tot;  // [n][v_dim], of the splits before
  float* k;    // a page of K as floats [head_dim][PAGE]
  float* v;    // and of V [PAGE][v_dim]
  float* row;  // one query, scaled
  float* scales;  // of a page of V
  float (*p)[PAGE];  // [2 * QUERY_BLOCK], scores of a page, then their exponentials
  float (*l)[16];    // sums of exponentials, per lane
  float (*lt)[16];
  float *m, *mt;     // maxima
  float* shrink;     // what the page's new maximum makes of earlier sums
  int *first, *last; // visible positions, inclusive
  int* fresh;        // of a block's first query: nothing is in acc yet
};

static size_t tile_bytes(int head_dim) {
  const size_t d = (size_t(head_dim) + 15) / 16 * 16;
  return ((3 * TILE + 3 * PAGE + 1) * d + TILE * (32 + 5) + 2 * QUERY_BLOCK * PAGE + 3 * 16) * sizeof(float) + 64;
}

static Tile carve(uint8_t* scratch, int n, int head_dim, int v_dim) {
  Tile t = {};
  t.n = n;
  t.head_dim = head_dim;
  t.v_dim = v_dim;
  float* at = (float*)scratch;
  const auto take = [&](size_t size) { float* p = at; at += size; return p; };
  t.k = take(size_t(PAGE) * v_dim);
  t.v = take(size_t(PAGE) * v_dim);
  t.p = (float (*)[PAGE])take(2 * QUERY_BLOCK * PAGE);
  t.scales = take(size_t(PAGE) * v_dim);
  t.row = take(v_dim);
  t.q = take(size_t(TILE) * v_dim);
  t.acc = take(size_t(TILE) * v_dim);
  t.tot = take(size_t(TILE) * v_dim);
  t.l = (float (*)[16])take(TILE * 16);
  t.lt = (float (*)[16])take(TILE * 16);
  t.m = take(TILE + 16);
  t.mt = take(TILE);
  t.shrink = take(16);
  t.first = (int*)take(TILE);
  t.last = (int*)take(TILE);
  t.fresh = (int*)take(TILE);
  return t;
}

static void start_split(Tile& t) {
  for (int i = 0; i < t.n; i++) { t.m[i] = NEG_INF; t.fresh[i] = 1; store(t.l[i], splat(0)); }
}

// Sums of exponentials `l` and weighed values `acc` relative to the maximum `m`, folded into those of the splits before:
// both sides shrink to the common maximum.
static void merge(float m, const float* l, const float* acc, int v_dim, float& mt, float* lt, float* tot) {
  if (m == NEG_INF && sum16(load(l)) == 0) return;  // nothing was visible
  if (mt == NEG_INF) {       // nor in the splits before
    memcpy(lt, l, 64);
    memcpy(tot, acc, size_t(v_dim) * 4);
    mt = m;
    return;
  }
  const float top = mt > m ? mt : m;
  alignas(64) float f[16] = {};
  f[0] = mt - top;
  f[1] = m - top;
  store(f, vexp_below_88(load(f)));
  const v16 x = splat(f[0]), y = splat(f[1]);
  store(lt, fma(load(lt), x, mul(load(l), y)));
  for (int d = 0; d < v_dim; d += 16) store(tot + d, fma(load(tot + d), x, mul(load(acc + d), y)));
  mt = top;
}

// A score that stands for no token takes its part of the weights: like one more split without values.
static void add_sink(float sink, int v_dim, float& mt, float* lt, float* tot) {
  const float top = mt > sink ? mt : sink;
  alignas(64) float f[16] = {}, one[16] = {};
  f[0] = mt - top;
  f[1] = sink - top;
  store(f, vexp_below_88(load(f)));
  one[0] = f[1];
  store(lt, fma(load(lt), splat(f[0]), load(one)));
  if (f[0] != 1.0f) for (int d = 0; d < v_dim; d += 16) store(tot + d, mul(load(tot + d), splat(f[0])));
  mt = top;
}

static void finish(const float* tot, const float* lt, int head_dim, float* out) {
  const v16 r = splat(1.0f / sum16(load(lt)));
  int d = 0;
  for (; d + 16 <= head_dim; d += 16) store(out + d, mul(load(tot + d), r));
  if (d < head_dim) store_part(out + d, mul(load(tot + d), r), head_dim - d);
}

// The part of a page at `base` that query q sees: lo..hi of its tokens.
struct Seen { int lo, hi; };
ER_INL Seen seen(const Tile& t, int q, int base) {
  const int lo = t.first[q] - base, hi = t.last[q] + 1 - base;
  return {lo < 0 ? 0 : lo < PAGE ? lo : PAGE, hi < 0 ? 0 : hi < PAGE ? hi : PAGE};
}
// What lies outside may be another sequence's old bytes: it is dropped by selection, not by arithmetic.
ER_INL void keep(v16& s0, v16& s1, Seen at, v16 other) {
  const int lo = at.lo < at.hi ? at.lo : at.hi;
  s0 = within(s0, lo < 16 ? lo : 16, at.hi < 16 ? at.hi : 16, other);
  s1 = within(s1, lo > 16 ? lo - 16 : 0, at.hi > 16 ? at.hi - 16 : 0, other);
}

// Scores p of queries i0..i0+N with the page at `base` become exponentials relative to the running maximum. WHOLE: all of
// them see all of it.
template <int N, bool WHOLE>
static void softmax_page(Tile& t, float (*p)[PAGE], int i0, int base) {
  float (*const l)[16] = t.l + i0, *const most = t.m + i0, *const shrink = t.shrink;
  v16 top[N];
  ER_UNROLL for (int i = 0; i < N; i++) {
    v16 s0 = load(p[i]), s1 = load(p[i] + 16);
    if (!WHOLE) {
      keep(s0, s1, seen(t, i0 + i, base), splat(NEG_INF));
      store(p[i], s0); store(p[i] + 16, s1);
    }
    top[i] = vmax(s0, s1);
  }
  // A maximum that is no number leaves the old one: its exponential spoils the sums.
  const v16 old = load(most), now = vmax(maxima(top, old), old);
  store(most, now);
  store(shrink, vexp_below_88(vmin(sub(old, now), splat(0))));  // none of -inf less -inf; exp(0) is exactly 1
  ER_UNROLL for (int i = 0; i < N; i++) {
    const v16 m = splat(most[i]);
    v16 s0 = vexp_below_88(sub(load(p[i]), m)), s1 = vexp_below_88(sub(load(p[i] + 16), m));
    if (!WHOLE) keep(s0, s1, seen(t, i0 + i, base), splat(0));
    store(p[i], s0); store(p[i] + 16, s1);
    store(l[i], fma(load(l[i]), splat(shrink[i]), add(s0, s1)));
  }
}

}  // namespace ER_ISA
}  // namespace er

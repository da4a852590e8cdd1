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
  float (*p)[PAGE];  // scores of a page, then their exponentials
  float (*l)[16];    // sums of exponentials, per lane
  float (*lt)[16];
  float *m, *mt;     // maxima
  float* shrink;     // what the page's new maximum makes of earlier sums
  int *first, *last; // visible positions, inclusive
};

static size_t tile_bytes(int head_dim) {
  const size_t d = (size_t(head_dim) + 15) / 16 * 16;
  return ((3 * TILE + 3 * PAGE + 1) * d + TILE * (PAGE + 32 + 5) + 16) * sizeof(float) + 64;
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
  t.p = (float (*)[PAGE])take(TILE * PAGE);
  t.scales = take(size_t(PAGE) * v_dim);
  t.row = take(v_dim);
  t.q = take(size_t(TILE) * v_dim);
  t.acc = take(size_t(TILE) * v_dim);
  t.tot = take(size_t(TILE) * v_dim);
  t.l = (float (*)[16])take(TILE * 16);
  t.lt = (float (*)[16])take(TILE * 16);
  t.m = take(TILE);
  t.mt = take(TILE);
  t.shrink = take(TILE + 16);
  t.first = (int*)take(TILE);
  t.last = (int*)take(TILE);
  return t;
}

static void start_split(Tile& t) {
  for (int i = 0; i < t.n; i++) { t.m[i] = NEG_INF; store(t.l[i], splat(0)); }
  memset(t.acc, 0, size_t(t.n) * t.v_dim * 4);
}

// Sums of exponentials `l` and weighed values `acc` relative to the maximum `m`, folded into those of the splits before:
// both sides shrink to the common maximum.
static void merge(float m, const float* l, const float* acc, int v_dim, float& mt, float* lt, float* tot) {
  if (m == NEG_INF) return;  // nothing was visible
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

// Scores of queries i0..i0+n with the page at `base` become exponentials relative to the running maximum.
static void softmax_page(Tile& t, int i0, int n, int base, float softcap) {
  alignas(64) float grown[16] = {};
  bool any = false;
  for (int i = 0; i < n; i++) {
    const int q = i0 + i, lo = t.first[q] - base, hi = t.last[q] + 1 - base;
    grown[i] = 0;
    if (hi <= 0 || lo >= PAGE) continue;  // sees nothing of it
    v16 s0 = load(t.p[q]), s1 = load(t.p[q] + 16);
    if (softcap > 0) { s0 = softcap16(s0, softcap); s1 = softcap16(s1, softcap); }
    if (lo > 0 || hi < PAGE) {  // what lies outside may be another sequence's old bytes: drop it by selection, not arithmetic
      const int a = lo > 0 ? lo : 0, b = hi < PAGE ? hi : PAGE;
      s0 = within(s0, a < 16 ? a : 16, b < 16 ? b : 16, splat(NEG_INF));
      s1 = within(s1, a > 16 ? a - 16 : 0, b > 16 ? b - 16 : 0, splat(NEG_INF));
    }
    if (softcap > 0 || lo > 0 || hi < PAGE) { store(t.p[q], s0); store(t.p[q] + 16, s1); }
    const float top = max16(vmax(s0, s1));
    if (t.m[q] > top || t.m[q] == top) continue;
    grown[i] = t.m[q] - top;
    t.m[q] = top;
    any = true;
  }
  // Maxima settle after a few pages; exp(0) is exactly 1.
  if (any) store(t.shrink, vexp_below_88(load(grown)));
  else for (int i = 0; i < n; i++) t.shrink[i] = 1;
  for (int i = 0; i < n; i++) {
    const int q = i0 + i, lo = t.first[q] - base, hi = t.last[q] + 1 - base;
    if (hi <= 0 || lo >= PAGE) { memset(t.p[q], 0, sizeof t.p[q]); continue; }
    v16 s0 = vexp_below_88(sub(load(t.p[q]), splat(t.m[q]))), s1 = vexp_below_88(sub(load(t.p[q] + 16), splat(t.m[q])));
    if (lo > 0 || hi < PAGE) {
      const int a = lo > 0 ? lo : 0, b = hi < PAGE ? hi : PAGE;
      s0 = within(s0, a < 16 ? a : 16, b < 16 ? b : 16, splat(0));
      s1 = within(s1, a > 16 ? a - 16 : 0, b > 16 ? b - 16 : 0, splat(0));
    }
    store(t.p[q], s0); store(t.p[q] + 16, s1);
    store(t.l[q], fma(load(t.l[q]), splat(t.shrink[i]), add(s0, s1)));
  }
}

}  // namespace ER_ISA
}  // namespace er

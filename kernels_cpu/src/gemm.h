// gemm.h: many columns. Two tiles at a time are unpacked to code bytes (slice.h) and meet every column tile, a slice of K
// after the other; float sums wait in memory between slices, which changes nothing about them.
#pragma once
#include "kernels.h"
#include "slice.h"
#include "vmath.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// What a column tile's work fetches meanwhile, a little at a time, since cores wait once a dozen lines are under way: the next
// column tile to L1, its share of the next two weight tiles to L2, in the order they lie in, which processors then go on with, and
// where its results go.
struct Ahead {
  const uint8_t *act, *w;
  int lines;               // of weights for every 32 k
  const float *out, *add;  // null: no results yet, nothing that they are added to
  int64_t ldo, ld_add;
  bool both;               // two lines of results a column
  bool begun, more;        // column tiles of the same slice before and behind this one
  template <int BYTES>
  void columns(int b) const {
    for (int i = 0; i < BLOCK_C * BYTES; i += 64) __builtin_prefetch(act + b * BLOCK_C * REC + i, 0, 3);
  }
  void weights(int b) const {
    const uint8_t* p = w + int64_t(b) * lines * 64;
    for (int i = 0; i < lines; i++) __builtin_prefetch(p + i * 64, 0, 2);
  }
  void results(int b) const {
    if (!out || b * 2 >= BLOCK_C) return;
    for (int c = b * 2; c < b * 2 + 2; c++) {
      __builtin_prefetch(out + c * ldo, 1, 3);
      if (both) __builtin_prefetch(out + c * ldo + R, 1, 3);
      if (add) __builtin_prefetch(add + c * ld_add, 0, 3);
      if (add && both) __builtin_prefetch(add + c * ld_add + R, 0, 3);
    }
  }
};

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

#if defined(__AMX_INT8__)
#include "gemm_amx.h"
#endif

namespace er {
namespace ER_ISA {
namespace q8 {

#if !defined(__AMX_INT8__)
struct Multiplier { explicit Multiplier(bool) {} };

// A column tile. fo: [C][2][R], read unless `first`.
template <class Q>
static void block(const uint8_t* w, const uint8_t* a, int nb, float* fo, bool first, const Ahead& ahead, int) {
  enum { C = BLOCK_C };
  vf f[C][2];
  ER_EACH for (int q = 0; q < 2; q++) f[c][q] = first ? zero_f() : ldf(fo + (c * 2 + q) * R);
  for (int b = 0; b < nb; b++, w += slice_record<Q::HALVES>(), a += C * REC) {
    ahead.template columns<REC>(b);
    ahead.weights(b);
    ahead.results(b);
    add_record<Q, C>(f, w, Tiled<C>{a});
  }
  ER_EACH for (int q = 0; q < 2; q++) stf(fo + (c * 2 + q) * R, f[c][q]);
}

// The second digits of blocks b0 .. b0 + nb. fo: [columns][2][R], column `spare` for whatever comes of filling up.
template <class Q>
static void second_blocks(const uint8_t* w, const Seconds& s, const uint8_t* act, int b0, int nb, float* fo, uint32_t spare) {
  enum { C = BLOCK_C < 6 ? int(BLOCK_C) : 6 };  // as many as registers hold
  for (int b = b0; b < b0 + nb; b++, w += slice_record<Q::HALVES>())
    each_second<C>(s, act, b, spare,
        [&](const Gathered<C>& g, const uint32_t* columns) __attribute__((always_inline)) {
          vf f[C][2];
          ER_EACH for (int q = 0; q < 2; q++) f[c][q] = ldf(fo + (columns[c] * 2 + q) * R);
          add_record<Q, C>(f, w, g);
          ER_EACH for (int q = 0; q < 2; q++) stf(fo + (columns[c] * 2 + q) * R, f[c][q]);
        },
        [&](const Gathered<1>& g, uint32_t column) __attribute__((always_inline)) {
          vf f[1][2];
          for (int q = 0; q < 2; q++) f[0][q] = ldf(fo + (column * 2 + q) * R);
          add_record<Q, 1>(f, w, g);
          for (int q = 0; q < 2; q++) stf(fo + (column * 2 + q) * R, f[0][q]);
        });
}
#endif

struct Gemm {
  size_t tile;                                                   // bytes
  bool halves;                                                   // sub-blocks of 16
  int unit_k, unit;                                              // k and bytes of a unit of the packed tile
  void (*unpack)(const uint8_t* w, int blocks, uint8_t* dst);    // one of the two tiles: dst, dst + VB
  void (*block)(const uint8_t* w, const uint8_t* a, int blocks, float* f, bool first, const Ahead& ahead, int columns);
  void (*seconds)(const uint8_t* w, const Seconds& s, const uint8_t* act, int b0, int blocks, float* f, uint32_t spare);
};

// Where a call keeps its sums between slices, in scratch: [M + BLOCK_C][2][R] of first and of second digits.
struct Sums { float *first, *second; };

// Two tiles that are multiplied together, and those to fetch meanwhile. `second` may be missing: the first one again.
struct Pair { const uint8_t *first, *second, *next_first, *next_second; };

// Results on their way to out: [M][ldo] from the first tile's first row on.
struct Results {
  float* out;
  int64_t ldo;
  bool both;          // whether there is a second tile
  const float* add;   // null, or what is added, [M][ld_add]
  int64_t ld_add;
  int glu;            // not 0: the first tile gates the second (Glu)
  const uint8_t* has;  // columns with second digits
};

// Whether one tile can gate another here: that takes sixteen rows, as exponentials do.
enum { GATES = R == 16 };

// Columns m0 .. m1, while their sums are in L1.
static void finish_columns(const Results& r, const Sums& sums, int m0, int m1) {
  const int tiles = r.both && !r.glu ? 2 : 1;
  for (int m = m0; m < m1; m++) {
    const float *f = sums.first + m * 2 * R, *s = sums.second + m * 2 * R;
    const bool has = r.has[m];
    float* out = r.out + m * r.ldo;
    const auto sum = [&](int q) { return has ? add(ldf(f + q * R), ldf(s + q * R)) : ldf(f + q * R); };
#if defined(__AVX512F__)
    if (r.glu) {
      store(out, glu16(v16{sum(0)}, v16{sum(1)}, r.glu));
      continue;
    }
#endif
    for (int q = 0; q < tiles; q++) stf(out + q * R, r.add ? add(sum(q), ldf(r.add + m * r.ld_add + q * R)) : sum(q));
  }
}

static void two_tiles(const Gemm& g, const Pair& w, const uint8_t* act, int K, int M, uint8_t* slice, const Sums& sums,
                      const Seconds& seconds, const Results& results) {
  const int nt = (M + BLOCK_C - 1) / BLOCK_C;
  const size_t act_tile = col_tile_bytes(K, BLOCK_C);
  const bool any = seconds.start[K / 32] > 0;
  if (any && !grouped(M)) memset(sums.second, 0, size_t(M + 1) * 2 * VB);
  for (int k0 = 0, kn; k0 < K; k0 += kn) {
    kn = slice_of(K, k0);
    const int blocks = kn / 32;
    const size_t at = size_t(k0 / g.unit_k) * size_t(g.unit), bytes = size_t((kn + g.unit_k - 1) / g.unit_k) * size_t(g.unit);
    g.unpack(w.first + at, blocks, slice);
    g.unpack(w.second + at, blocks, slice + VB);
    if (any) g.seconds(slice, seconds, act, k0 / 32, blocks, sums.second, uint32_t(M));
    // The next two tiles, one after the other, fetched while these two are at work.
    const int share = int((2 * bytes / size_t(blocks) / size_t(nt) + 63) / 64), have = int(2 * bytes / size_t(blocks) + 63) / 64;
    const uint8_t* a = act + size_t(k0 / 32) * size_t(BLOCK_C * REC);
    const uint8_t* const a_next = k0 + kn < K ? a + blocks * BLOCK_C * REC : act;
    for (int i = 0; i < nt; i++, a += act_tile) {
      const size_t fetched = 2 * at + size_t(i * blocks * share) * 64;
      const Ahead ahead = {i + 1 < nt ? a + act_tile : a_next, fetched < g.tile ? w.next_first + fetched : w.next_second + (fetched - g.tile),
                           i * share < have ? share : 0, k0 + kn == K ? results.out + i * BLOCK_C * results.ldo : nullptr,
                           results.add ? results.add + i * BLOCK_C * results.ld_add : nullptr, results.ldo, results.ld_add,
                           results.both && !results.glu, i > 0, i + 1 < nt};
      g.block(slice, a, blocks, sums.first + i * BLOCK_C * 2 * R, k0 == 0, ahead, M - i * BLOCK_C);
      if (k0 + kn == K) finish_columns(results, sums, i * BLOCK_C, i + 1 < nt ? (i + 1) * BLOCK_C : M);
    }
  }
}

static void many_columns(const Gemm& g, const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo,
                         uint8_t* scratch, const Seconds& seconds, const After& after) {
  const Multiplier on(g.halves);
  float* first = (float*)(scratch + SLICE_BYTES);
  const Sums sums = {first, first + size_t(M + BLOCK_C) * 2 * R};
  const int step = after.up ? 1 : 2;
  Results r = {out, ldo, true, after.add, after.ld_add, after.up ? after.glu : 0, seconds.has};
  for (int t = 0; t < tiles; t += step, w += step * g.tile, r.out += step * R) {
    r.both = after.up || t + 1 < tiles;
    const uint8_t* second = after.up ? after.up + size_t(t) * g.tile : r.both ? w + g.tile : w;
    two_tiles(g, {w, second, w + step * g.tile, second + step * g.tile}, act, K, M, scratch, sums, seconds, r);
    if (r.add) r.add += step * R;
  }
}
static size_t gemm_scratch(int M) { return SLICE_BYTES + size_t(M + BLOCK_C) * 4 * VB; }

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

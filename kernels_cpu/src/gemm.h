// gemm.h: many columns. Two tiles at a time are unpacked to code bytes, a slice of K that stays in L1, and meet every
// column tile; float sums wait in memory between slices, which changes nothing about them.
// Slice record per 32 k: [8 dwords][2 tiles] registers | d[2] | min[2] | bias[2], and with sub-blocks of 16 those of the
// second halves: d[2] | pairs of minimums [2] | bias[2]
#pragma once
#include "direct.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// k of a slice. A matrix a little wider is one slice: a second one of a block or two would move sums about for little.
enum { SLICE = 512, WIDE_SLICE = SLICE + 128 };
ER_INL int slice_of(int K, int k0) { return K <= WIDE_SLICE ? K : K - k0 < SLICE ? K - k0 : int(SLICE); }
enum { ACT_AHEAD = 3 * BLOCK_C * REC };  // bytes
template <int HALVES> constexpr int slice_record() { return (HALVES ? 28 : 22) * VB; }
enum { SLICE_BYTES = WIDE_SLICE / 32 * slice_record<1>() };

template <class T>
ER_INL void put_scale(uint8_t* o, vf d) {
  stf(o, d);
  if constexpr (biased<T>()) stf(o + 4 * VB, bias_of(d));
}

template <class T>
static void unpack_slice(const uint8_t* w, int blocks, uint8_t* o) {
  Unit<T> u;
  for (; blocks > 0; blocks -= Unit<T>::BLOCKS, w += T::UNIT) {
    Unit<T>::open(u, w);
    for (int i = 0; i < int(Unit<T>::BLOCKS) && i < blocks; i++, o += slice_record<Unit<T>::HALVES>()) {
      const uint8_t* v = w + T::HEAD + i * T::BLOCK;
      steps<0, 8>([&](auto j) __attribute__((always_inline)) { sti(o + j.v * 2 * VB, T::Codes::template get<j.v>(v)); });
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

// f[c] += a slice record times column c
template <class Q, int C, class A>
ER_INL void add_record(vf (&f)[C][2], const uint8_t* w, const A& a) {
  if constexpr (!Q::HALVES) {
    vi acc[C][2];
    ER_EACH acc[c][0] = acc[c][1] = start_sum<Q::ZERO, Q::BIASED>(a.zero(c), a.pair(c));
    dots2<8, Q::BITS>(acc, w, [&](int c) __attribute__((always_inline)) { return a.codes(c); });
    add_scaled<Q, C>(f, acc, w + 16 * VB, a);
  } else {
    steps<0, 2>([&](auto half) __attribute__((always_inline)) {
      vi acc[C][2];
      ER_EACH acc[c][0] = acc[c][1] = start_half<Q::ZERO, Q::BIASED, half.v>(a.pair(c));
      dots2<4, Q::BITS>(acc, w + half.v * 8 * VB, [&](int c) __attribute__((always_inline)) { return a.codes(c) + half.v * 16; });
      add_scaled<Q, C>(f, acc, w + (16 + half.v * 6) * VB, a);
    });
  }
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

// A column tile. fo: [C][2][R], read unless `first`.
template <class Q>
static void block(const uint8_t* w, const uint8_t* a, int nb, float* fo, bool first) {
  enum { C = BLOCK_C };
  vf f[C][2];
  ER_EACH for (int q = 0; q < 2; q++) f[c][q] = first ? zero_f() : ldf(fo + (c * 2 + q) * R);
  for (; nb > 0; nb--, w += slice_record<Q::HALVES>(), a += C * REC) {
    for (int i = 0; i < C * REC; i += 64) __builtin_prefetch(a + ACT_AHEAD + i, 0, 3);
    add_record<Q, C>(f, w, Tiled<C>{a});
  }
  ER_EACH for (int q = 0; q < 2; q++) stf(fo + (c * 2 + q) * R, f[c][q]);
}

// The second digits of blocks b0 .. b0 + nb. fo: [columns][2][R], column `spare` for whatever comes of filling up.
template <class Q>
static void second_blocks(const uint8_t* w, const Seconds& s, const uint8_t* act, int b0, int nb, float* fo, uint32_t spare) {
  enum { C = BLOCK_C };
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

struct Gemm {
  size_t tile;                                                   // bytes
  int unit_k, unit;                                              // k and bytes of a unit of the packed tile
  void (*unpack)(const uint8_t* w, int blocks, uint8_t* dst);    // one of the two tiles: dst, dst + VB
  void (*block)(const uint8_t* w, const uint8_t* a, int blocks, float* f, bool first);
  void (*seconds)(const uint8_t* w, const Seconds& s, const uint8_t* act, int b0, int blocks, float* f, uint32_t spare);
};

// A part of the next slice, while a column tile is at work: to L2, since L1 holds this slice.
ER_INL void fetch(const uint8_t* p, size_t from, size_t bytes, size_t end) {
  end = from + bytes < end ? from + bytes : end;
  for (; from < end; from += 64) __builtin_prefetch(p + from, 0, 2);
}

// Where a call keeps its sums between slices, in scratch: [M + BLOCK_C][2][R] of first and of second digits.
struct Sums { float *first, *second; };

static void two_tiles(const Gemm& g, const uint8_t* w0, const uint8_t* w1, bool both, const uint8_t* act, int K, int M, float* out,
                      int64_t ldo, uint8_t* slice, const Sums& sums, const Seconds& seconds) {
  const int nt = (M + BLOCK_C - 1) / BLOCK_C;
  const size_t act_tile = col_tile_bytes(K, BLOCK_C);
  const bool any = seconds.start[K / 32] > 0;
  if (any) memset(sums.second, 0, size_t(M + 1) * 2 * VB);
  for (int k0 = 0, kn; k0 < K; k0 += kn) {
    kn = slice_of(K, k0);
    const int blocks = kn / 32;
    const size_t at = size_t(k0 / g.unit_k) * size_t(g.unit), bytes = size_t((kn + g.unit_k - 1) / g.unit_k) * size_t(g.unit);
    g.unpack(w0 + at, blocks, slice);
    g.unpack(w1 + at, blocks, slice + VB);
    const size_t part = (bytes / size_t(nt) + 63) & ~size_t(63);
    for (int i = 0; i < nt; i++) {
      fetch(w0 + at + bytes, size_t(i) * part, part, bytes);
      if (both) fetch(w1 + at + bytes, size_t(i) * part, part, bytes);
      g.block(slice, act + size_t(i) * act_tile + size_t(k0 / 32) * size_t(BLOCK_C * REC), blocks,
              sums.first + i * BLOCK_C * 2 * R, k0 == 0);
    }
    if (any) g.seconds(slice, seconds, act, k0 / 32, blocks, sums.second, uint32_t(M));
  }
  for (int m = 0; m < M; m++)
    for (int q = 0; q < (both ? 2 : 1); q++) {
      const vf f = ldf(sums.first + (m * 2 + q) * R);
      stf(out + m * ldo + q * R, seconds.has[m] ? add(f, ldf(sums.second + (m * 2 + q) * R)) : f);
    }
}

static void many_columns(const Gemm& g, const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo,
                         uint8_t* scratch, const Seconds& seconds) {
  float* first = (float*)(scratch + SLICE_BYTES);
  const Sums sums = {first, first + size_t(M + BLOCK_C) * 2 * R};
  for (int t = 0; t < tiles; t += 2, w += 2 * g.tile) {
    const bool both = t + 1 < tiles;
    two_tiles(g, w, both ? w + g.tile : w, both, act, K, M, out + int64_t(t) * R, ldo, scratch, sums, seconds);
  }
}
static size_t gemm_scratch(int M) { return SLICE_BYTES + size_t(M + BLOCK_C) * 4 * VB; }

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

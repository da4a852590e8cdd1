// gemm.h: many columns. Two tiles at a time are unpacked to code bytes, a slice of K that stays in L1, and meet every
// column tile; float sums wait in memory between slices, which changes nothing about them.
// Slice record per 32 k: [8 dwords][2 tiles] registers | d[2] | min[2] | with sub-blocks of 16: pairs [2] | multipliers [2][2]
#pragma once
#include "direct.h"

namespace er {
namespace ER_ISA {
namespace q8 {

enum { SLICE = 512 };  // k
template <int HALVES> constexpr int slice_record() { return (HALVES ? 26 : 20) * VB; }
enum { SLICE_BYTES = SLICE / 32 * slice_record<1>() };

template <class T>
static void unpack_slice(const uint8_t* w, int blocks, uint8_t* o) {
  Unit<T> u;
  for (; blocks > 0; blocks -= Unit<T>::BLOCKS, w += T::UNIT) {
    Unit<T>::open(u, w);
    for (int i = 0; i < int(Unit<T>::BLOCKS) && i < blocks; i++, o += slice_record<Unit<T>::HALVES>()) {
      const uint8_t* v = w + T::HEAD + i * T::BLOCK;
      steps<0, 8>([&](auto j) __attribute__((always_inline)) { sti(o + j.v * 2 * VB, T::Codes::template get<j.v>(v)); });
      stf(o + 16 * VB, u.scale(i));
      if constexpr (T::MIN) stf(o + 18 * VB, u.min(i));
      if constexpr (Unit<T>::HALVES) {
        sti(o + 20 * VB, u.pair(i));
        sti(o + 22 * VB, u.mult(i, 0));
        sti(o + 24 * VB, u.mult(i, 1));
      }
    }
  }
}

// f: [C][2][R], read unless `first`.
template <int HALVES, int ZERO, int MIN, int BITS, int C>
static void block(const uint8_t* w, const uint8_t* a, int nb, float* fo, bool first) {
  vf f[C][2];
  ER_EACH for (int q = 0; q < 2; q++) f[c][q] = first ? zero_f() : ldf(fo + (c * 2 + q) * R);
  for (; nb > 0; nb--, w += slice_record<HALVES>(), a += C * REC) {
    vi acc[C][2];
    if constexpr (!HALVES) {
      ER_EACH acc[c][0] = acc[c][1] = zero_start<ZERO>(a + C * 40 + c * 4);
      dots2<8, BITS>(acc, w, a);
    } else {
      ER_EACH acc[c][0] = acc[c][1] = zero_i();
      if constexpr (!MIN && ZERO >= 0) ER_EACH {
        const vi x = bci(a + C * 44 + c * 4);
        acc[c][0] = pair_dot(acc[c][0], ldi(w + 20 * VB), x);
        acc[c][1] = pair_dot(acc[c][1], ldi(w + 21 * VB), x);
      }
      dots2_scaled<4, BITS>(acc, w, a, w + 22 * VB);
      dots2_scaled<4, BITS>(acc, w + 8 * VB, a + 16, w + 24 * VB);
    }
    const vf d0 = ldf(w + 16 * VB), d1 = ldf(w + 17 * VB);
    ER_EACH {
      const vf da = bcf(a + C * 32 + c * 4);
      f[c][0] = fma(cvt(acc[c][0]), mul(d0, da), f[c][0]);
      f[c][1] = fma(cvt(acc[c][1]), mul(d1, da), f[c][1]);
    }
    if constexpr (MIN && !HALVES) ER_EACH {
      const vf x = bcf(a + C * 36 + c * 4);
      f[c][0] = fma(ldf(w + 18 * VB), x, f[c][0]);
      f[c][1] = fma(ldf(w + 19 * VB), x, f[c][1]);
    }
    if constexpr (MIN && HALVES) ER_EACH {
      const vi x = bci(a + C * 44 + c * 4);
      const vf da = bcf(a + C * 32 + c * 4);
      f[c][0] = fma(cvt(pair_dot(zero_i(), ldi(w + 20 * VB), x)), mul(ldf(w + 18 * VB), da), f[c][0]);
      f[c][1] = fma(cvt(pair_dot(zero_i(), ldi(w + 21 * VB), x)), mul(ldf(w + 19 * VB), da), f[c][1]);
    }
  }
  ER_EACH for (int q = 0; q < 2; q++) stf(fo + (c * 2 + q) * R, f[c][q]);
}

struct Gemm {
  size_t tile;                                                   // bytes
  int unit_k, unit;                                              // k and bytes of a unit of the packed tile
  void (*unpack)(const uint8_t* w, int blocks, uint8_t* dst);    // one of the two tiles: dst, dst + VB
  void (*block)(const uint8_t* w, const uint8_t* a, int blocks, float* f, bool first);
  void (*block1)(const uint8_t* w, const uint8_t* a, int blocks, float* f, bool first);  // one column: a second digit
  int slice_record;
};

// A part of the next slice, while a column tile is at work: to L2, since L1 holds this slice.
ER_INL void fetch(const uint8_t* p, size_t from, size_t bytes, size_t end) {
  end = from + bytes < end ? from + bytes : end;
  for (; from < end; from += 64) __builtin_prefetch(p + from, 0, 2);
}

// Where a call keeps its sums between slices, in scratch: first and second digits, and the next second digit of each column.
struct Sums {
  float *first, *second;
  int32_t* next;
};

// The second digits of column m that fall into this slice, whose first block is b0, while its codes are in L1.
ER_INL void seconds(const Gemm& g, const Sums& s, const uint8_t* act, int K, int m, int b0, int blocks, const uint8_t* slice) {
  const uint8_t* second = second_of(act, K, BLOCK_C, m);
  const uint8_t* rec = second + second_index_bytes(K);
  int32_t n, b, i = s.next[m];
  for (memcpy(&n, second, 4); i < n; i++) {
    memcpy(&b, second + 4 + 4 * i, 4);
    if (b >= b0 + blocks) break;
    g.block1(slice + (b - b0) * g.slice_record, rec + size_t(i) * REC, 1, s.second + m * 2 * R, i == 0);
  }
  s.next[m] = i;
}

static void store_column(const Sums& s, int m, bool both, float* out) {
  for (int q = 0; q < (both ? 2 : 1); q++) {
    const int at = (m * 2 + q) * R;
    const vf f = ldf(s.first + at);
    stf(out + q * R, s.next[m] ? add(f, ldf(s.second + at)) : f);
  }
}

static void two_tiles(const Gemm& g, const uint8_t* w0, const uint8_t* w1, bool both, const uint8_t* act, int K, int M, float* out,
                      int64_t ldo, uint8_t* slice, const Sums& sums) {
  memset(sums.next, 0, size_t(M) * 4);
  const int nt = (M + BLOCK_C - 1) / BLOCK_C;
  const size_t act_tile = col_tile_bytes(K, BLOCK_C);
  for (int k0 = 0; k0 < K; k0 += SLICE) {
    const int kn = K - k0 < SLICE ? K - k0 : int(SLICE), blocks = kn / 32;
    const size_t at = size_t(k0 / g.unit_k) * size_t(g.unit), bytes = size_t(SLICE / g.unit_k) * size_t(g.unit);
    g.unpack(w0 + at, blocks, slice);
    g.unpack(w1 + at, blocks, slice + VB);
    const size_t part = (bytes / size_t(nt) + 63) & ~size_t(63);
    for (int i = 0; i < nt; i++) {
      fetch(w0 + at + bytes, size_t(i) * part, part, bytes);
      if (both) fetch(w1 + at + bytes, size_t(i) * part, part, bytes);
      g.block(slice, act + size_t(i) * act_tile + size_t(k0 / 32) * size_t(BLOCK_C * REC), blocks,
              sums.first + i * BLOCK_C * 2 * R, k0 == 0);
      for (int m = i * BLOCK_C; m < M && m < (i + 1) * BLOCK_C; m++) {
        seconds(g, sums, act, K, m, k0 / 32, blocks, slice);
        if (k0 + kn == K) store_column(sums, m, both, out + m * ldo);
      }
    }
  }
}

static void many_columns(const Gemm& g, const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo,
                         uint8_t* scratch) {
  const size_t columns = size_t(M + BLOCK_C);
  float* first = (float*)(scratch + SLICE_BYTES);
  const Sums sums = {first, first + columns * 2 * R, (int32_t*)(first + columns * 4 * R)};
  for (int t = 0; t < tiles; t += 2, w += 2 * g.tile) {
    const bool both = t + 1 < tiles;
    two_tiles(g, w, both ? w + g.tile : w, both, act, K, M, out + int64_t(t) * R, ldo, scratch, sums);
  }
}
static size_t gemm_scratch(int M) { return SLICE_BYTES + size_t(M + BLOCK_C) * (4 * VB + 4); }

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

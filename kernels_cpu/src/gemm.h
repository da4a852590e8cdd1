// gemm.h: many columns. Two tiles at a time are unpacked to code bytes, a slice of K that stays in L1, and meet every
// column tile; float sums wait in memory between slices, which changes nothing about them.
// Slice record per 32 k : [8 dwords][2 tiles] registers | d[2] | min[2]                                      20 VB
//              per 256 k: [64][2] registers | multipliers [16][2] | pairs for zero or minimum [8][2] | d[2] | dmin[2]  180 VB
#pragma once
#include "linear_k.h"
#include "linear_q32.h"

namespace er {
namespace ER_ISA {
namespace q8 {

enum { SLICE = 512 };  // k
enum { SLICE32 = 20 * VB, SLICE256 = 180 * VB };
enum { SLICE_BYTES = SLICE / 256 * (8 * SLICE32 > SLICE256 ? 8 * int(SLICE32) : int(SLICE256)) };

template <class T>
static void unpack_slice32(const uint8_t* w, int nb, uint8_t* o) {
  for (int b = 0; b < nb; b++, o += SLICE32) {
    const int h = b % T::U;
    const uint8_t* v = w + T::HEAD + h * T::BLOCK;
    steps<0, 8>([&](auto j) __attribute__((always_inline)) { sti(o + j.v * 2 * VB, T::Codes::template get<j.v>(v)); });
    stf(o + 16 * VB, T::scale(w + h * R * T::SCALE));
    if (T::MIN) stf(o + 18 * VB, h2f(w + 2 * R));
    if (h == T::U - 1) w += T::UNIT;
  }
}
template <class T>
static void unpack_slice_k(const uint8_t* w, int nb, uint8_t* o) {
  for (int b = 0; b < nb; b++, w += T::UNIT, o += SLICE256) {
    for (int i = 0; i < 8; i++) {
      const uint8_t* v = w + T::HEAD + i * T::BLOCK;
      uint8_t* p = o + i * 16 * VB;
      steps<0, 8>([&](auto j) __attribute__((always_inline)) { sti(p + j.v * 2 * VB, T::Codes::template get<j.v>(v)); });
    }
    scales_of<T>(w, o + 128 * VB, 2 * VB, o + 160 * VB, 2 * VB);
    stf(o + 176 * VB, h2f(w));
    if (T::MIN) stf(o + 178 * VB, h2f(w + 2 * R));
  }
}

// f: [C][2][R], read unless `first`.
template <int ZERO, int MIN, int BITS, int C>
static void block32(const uint8_t* w, const uint8_t* a, int nb, float* fo, bool first) {
  vf f[C][2];
  ER_EACH for (int q = 0; q < 2; q++) f[c][q] = first ? zero_f() : ldf(fo + (c * 2 + q) * R);
  for (; nb > 0; nb--, w += SLICE32, a += C * REC32) {
    vi acc[C][2];
    ER_EACH acc[c][0] = acc[c][1] = zero_start<ZERO>(a + C * 40 + c * 4);
    dots2<8, BITS>(acc, w, a);
    const vf d0 = ldf(w + 16 * VB), d1 = ldf(w + 17 * VB);
    ER_EACH {
      const vf da = bcf(a + C * 32 + c * 4);
      f[c][0] = fma(cvt(acc[c][0]), mul(d0, da), f[c][0]);
      f[c][1] = fma(cvt(acc[c][1]), mul(d1, da), f[c][1]);
    }
    if constexpr (MIN) ER_EACH {
      const vf ds = bcf(a + C * 36 + c * 4);
      f[c][0] = fma(ldf(w + 18 * VB), ds, f[c][0]);
      f[c][1] = fma(ldf(w + 19 * VB), ds, f[c][1]);
    }
  }
  ER_EACH for (int q = 0; q < 2; q++) stf(fo + (c * 2 + q) * R, f[c][q]);
}

template <int NS, int ZERO, int MIN, int BITS, int C>
static void block_k(const uint8_t* w, const uint8_t* a, int nb, float* fo, bool first) {
  for (; nb > 0; nb--, w += SLICE256, a += C * REC256, first = false) {
    vi acc[C][2];
    ER_EACH acc[c][0] = acc[c][1] = zero_i();
#pragma GCC unroll 1
    for (int s = 0; s < NS; s++)
      dots2_scaled<64 / NS, BITS>(acc, w + s * (128 / NS) * VB, NS == 8 ? a + s * C * 32 : a + s / 2 * C * 32 + s % 2 * 16,
                                  w + (128 + 2 * s) * VB);
    const uint8_t* sums = sums_of<NS, C>(a);
    if constexpr (!MIN && ZERO >= 0) {
      for (int p = 0; p < NS / 2; p++) {
        const vi z0 = ldi(w + (160 + 2 * p) * VB), z1 = ldi(w + (161 + 2 * p) * VB);
        ER_EACH {
          const vi x = bci(sums + (p * C + c) * 4);
          acc[c][0] = pair_dot(acc[c][0], z0, x);
          acc[c][1] = pair_dot(acc[c][1], z1, x);
        }
      }
    }
    ER_EACH for (int q = 0; q < 2; q++) {
      const vf da = bcf(a + C * 256 + c * 4), d = ldf(w + (176 + q) * VB);
      vf y = fma(cvt(acc[c][q]), mul(d, da), first ? zero_f() : ldf(fo + (c * 2 + q) * R));
      if constexpr (MIN) {
        vi m = zero_i();
        for (int p = 0; p < NS / 2; p++) m = pair_dotb(m, ldi(w + (160 + 2 * p + q) * VB), sums + (p * C + c) * 4);
        y = fnma(cvt(m), mul(ldf(w + (178 + q) * VB), da), y);
      }
      stf(fo + (c * 2 + q) * R, y);
    }
  }
}

struct Gemm {
  size_t tile;                                                   // bytes
  int unit_k, unit;                                              // k and bytes of a unit of the packed tile
  int record_k, act_record;                                      // k of a record; its bytes for BLOCK_C columns
  int slice_record;
  void (*unpack)(const uint8_t* w, int records, uint8_t* dst);   // one of the two tiles: dst, dst + VB
  void (*block)(const uint8_t* w, const uint8_t* a, int records, float* f, bool first);
};

// A part of the next slice, while a column tile is at work: to L2, since L1 holds this slice.
ER_INL void fetch(const uint8_t* p, size_t from, size_t bytes, size_t end) {
  end = from + bytes < end ? from + bytes : end;
  for (; from < end; from += 64) __builtin_prefetch(p + from, 0, 2);
}

static void two_tiles(const Gemm& g, const uint8_t* w0, const uint8_t* w1, bool both, const uint8_t* act, int K, int M, float* out,
                      int64_t ldo, uint8_t* slice, float* sums) {
  const int nt = (M + BLOCK_C - 1) / BLOCK_C;
  const size_t act_tile = size_t(K / g.record_k) * size_t(g.act_record);
  for (int k0 = 0; k0 < K; k0 += SLICE) {
    const int kn = K - k0 < SLICE ? K - k0 : int(SLICE), records = kn / g.record_k;
    const size_t at = size_t(k0 / g.unit_k) * size_t(g.unit), bytes = size_t(SLICE / g.unit_k) * size_t(g.unit);
    g.unpack(w0 + at, records, slice);
    g.unpack(w1 + at, records, slice + VB);
    const size_t part = (bytes / size_t(nt) + 63) & ~size_t(63);
    for (int i = 0; i < nt; i++) {
      fetch(w0 + at + bytes, size_t(i) * part, part, bytes);
      if (both) fetch(w1 + at + bytes, size_t(i) * part, part, bytes);
      float* f = sums + i * BLOCK_C * 2 * R;
      g.block(slice, act + size_t(i) * act_tile + size_t(k0 / g.record_k) * size_t(g.act_record), records, f, k0 == 0);
      if (k0 + kn < K) continue;
      for (int m = i * BLOCK_C; m < M && m < (i + 1) * BLOCK_C; m++, f += 2 * R) {
        stf(out + m * ldo, ldf(f));
        if (both) stf(out + m * ldo + R, ldf(f + R));
      }
    }
  }
}

static void many_columns(const Gemm& g, const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo,
                         uint8_t* scratch) {
  for (int t = 0; t < tiles; t += 2, w += 2 * g.tile) {
    const bool both = t + 1 < tiles;
    two_tiles(g, w, both ? w + g.tile : w, both, act, K, M, out + int64_t(t) * R, ldo, scratch, (float*)(scratch + SLICE_BYTES));
  }
}
static size_t gemm_scratch(int M) { return SLICE_BYTES + size_t(M + BLOCK_C) * 2 * VB; }

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

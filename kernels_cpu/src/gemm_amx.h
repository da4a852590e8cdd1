// gemm_amx.h: the byte kernel of sets with a tile multiplier (AMX-INT8). It multiplies 16 columns' blocks of 32, or halves of
// them, by one of a slice's tiles into exact int32 sums; what follows is what the other sets do, in the same order. Sums
// are stored, as no instruction moves a tile to vectors, and those of the next block while this one's become floats.
#pragma once
#include "slice.h"

namespace er {
namespace ER_ISA {
namespace q8 {

static_assert(BLOCK_C == 16 && R == 16, "a tile register is 16 x 16 sums");

// The thread's tile registers: 0 sums, 1 columns, 2 weights. Given back at the end, since the kernel saves them with a thread.
struct Multiplier {
  explicit Multiplier(bool halves) {
    struct { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } c = {};
    const int k = halves ? 16 : 32;
    c.palette = 1;
    c.row_bytes[0] = c.row_bytes[2] = 64;
    c.row_bytes[1] = uint16_t(k);
    c.rows[0] = c.rows[1] = 16;
    c.rows[2] = uint8_t(k / 4);
    _tile_loadconfig(&c);
  }
  ~Multiplier() { _tile_release(); }
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;
};

// sums[16 columns][R] of a slice record's tile at w, or of one half of it.
template <int HALVES>
ER_INL void multiply(const uint8_t* w, const uint8_t* a, int32_t (*sums)[16][R]) {
  for (int half = 0; half <= HALVES; half++) {
    _tile_zero(0);
    _tile_loadd(1, a + half * 16, 32);
    _tile_loadd(2, w + half * 8 * VB, 2 * VB);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums[half], 64);
  }
}

// f[c] += a record's sums. w: the record's scales of this tile.
template <class Q, int C>
ER_INL void add_sums(vf (&f)[C], const int32_t (*sums)[16][R], const uint8_t* w, const Tiled<C>& a) {
  steps<0, Q::HALVES + 1>([&](auto half) __attribute__((always_inline)) {
    const vf d = ldf(w + half.v * 6 * VB);
    vf bias = d;
    if constexpr (Q::BIASED) bias = ldf(w + (half.v * 6 + 4) * VB);
    ER_EACH {
      vi sum = ldi(sums[half.v][c]);
      if constexpr (Q::BIASED) sum = add32(sum, all32(START));
      f[c] = fma(scaled<Q::BIASED>(sum, d, bias), bcf(a.d(c)), f[c]);
    }
  });
  if constexpr (Q::MIN && !Q::HALVES) {
    const vf m = ldf(w + 2 * VB);
    ER_EACH f[c] = fma(m, bcf(a.x(c)), f[c]);
  }
  if constexpr (Q::MIN && Q::HALVES) {
    const vf m = ldf(w + 2 * VB);
    const vi z = ldi(w + 8 * VB);
    ER_EACH f[c] = fma(mul(cvt(pair_dotb(zero_i(), z, a.pair(c))), m), bcf(a.d(c)), f[c]);
  }
}

// A column tile. fo: [C][2][R], read unless `first`.
template <class Q>
static void block(const uint8_t* slice, const uint8_t* act, int nb, float* fo, bool first) {
  enum { C = BLOCK_C, RECORD = slice_record<Q::HALVES>() };
  alignas(64) int32_t sums[2][2][16][R];
  for (int q = 0; q < 2; q++, fo += R) {
    const uint8_t *w = slice + q * VB, *a = act;
    vf f[C];
    ER_EACH f[c] = first ? zero_f() : ldf(fo + c * 2 * R);
    multiply<Q::HALVES>(w, a, sums[0]);
    for (int b = 0; b < nb; b++, w += RECORD, a += C * REC) {
      if (b + 1 < nb) multiply<Q::HALVES>(w + RECORD, a + C * REC, sums[(b + 1) & 1]);
      if (q == 0)
        for (int i = 0; i < C * REC; i += 64) __builtin_prefetch(a + ACT_AHEAD + i, 0, 3);
      add_sums<Q, C>(f, sums[b & 1], w + 16 * VB, Tiled<C>{a});
    }
    ER_EACH stf(fo + c * 2 * R, f[c]);
  }
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

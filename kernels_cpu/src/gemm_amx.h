// gemm_amx.h: the byte kernel of sets with a tile multiplier (AMX-INT8). It multiplies 16 columns' blocks of 32, or halves of
// them, by one of a slice's tiles into exact int32 sums; what follows is what the other sets do, in the same order. Sums
// are stored, as no instruction moves a tile to vectors, and those of the next block while this one's become floats.
#pragma once
#include "slice.h"

namespace er {
namespace ER_ISA {
namespace q8 {

static_assert(BLOCK_C == 16 && R == 16, "a tile register is 16 x 16 sums");

// The thread's tile registers: 0 and 1 sums, 2 columns, 3 and 4 weights. Given back at the end, since the kernel saves them with a thread.
struct Multiplier {
  explicit Multiplier(bool halves) {
    struct { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } c = {};
    const int k = halves ? 16 : 32;
    c.palette = 1;
    for (int i = 0; i < 5; i++) {
      c.row_bytes[i] = uint16_t(i == 2 ? k : 64);
      c.rows[i] = uint8_t(i < 3 ? 16 : k / 4);
    }
    __asm__ volatile("" : : "r"(&c) : "memory");  // gcc 12 takes the instruction to read no more than a pointer
    _tile_loadconfig(&c);
  }
  ~Multiplier() { _tile_release(); }
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;
};

// sums[tile][half][column][R] of a slice record at w.
template <int HALVES>
ER_INL void multiply(const uint8_t* w, const uint8_t* a, int32_t (*sums)[HALVES + 1][16][R]) {
  for (int half = 0; half <= HALVES; half++, a += 16, w += 8 * VB) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(2, a, 32);
    _tile_loadd(3, w, 2 * VB);
    _tile_loadd(4, w + VB, 2 * VB);
    _tile_dpbssd(0, 2, 3);
    _tile_dpbssd(1, 2, 4);
    _tile_stored(0, sums[0][half], 64);
    _tile_stored(1, sums[1][half], 64);
  }
}

// f[c] += a record's sums. w: the record's scales of this tile.
template <class Q, int C>
ER_INL void add_sums(vf (&f)[C], const int32_t (*sums)[16][R], const uint8_t* w, const Tiled<BLOCK_C>& a) {
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

// The first C columns of a column tile. fo: [BLOCK_C][2][R], read unless `first`. Sums of a few blocks wait in memory while the next
// are multiplied: no instruction moves them to vectors, and one that has just been stored is slow to load.
template <class Q, int C>
static void block_of(const uint8_t* slice, const uint8_t* act, int nb, float* fo, bool first, const Ahead& ahead) {
  enum { PHASE = 4, RECORD = slice_record<Q::HALVES>() };
  const int third = ahead.lines / 3, second_part = (ahead.lines + third) / 2;
  alignas(64) int32_t sums[PHASE][2][Q::HALVES + 1][16][R];
  for (int b0 = 0; b0 < nb; b0 += PHASE, first = false) {
    const int n = nb - b0 < PHASE ? nb - b0 : int(PHASE);
    const uint8_t *w = slice + b0 * RECORD, *a = act + b0 * BLOCK_C * REC;
#pragma GCC unroll 1
    for (int b = 0; b < n; b++) {
      multiply<Q::HALVES>(w + b * RECORD, a + b * BLOCK_C * REC, sums[b]);
      ahead.columns(b0 + b);
      ahead.weights(b0 + b, 0, third);
    }
    for (int q = 0; q < 2; q++) {
      vf f[C];
      ER_EACH f[c] = first ? zero_f() : ldf(fo + (c * 2 + q) * R);
#pragma GCC unroll 1
      for (int b = 0; b < n; b++) {
        ahead.weights(b0 + b, q ? second_part : third, q ? ahead.lines : second_part);
        add_sums<Q, C>(f, sums[b][q], w + b * RECORD + (16 + q) * VB, Tiled<BLOCK_C>{a + b * BLOCK_C * REC});
      }
      ER_EACH stf(fo + (c * 2 + q) * R, f[c]);
    }
  }
}
template <class Q>
static void block(const uint8_t* slice, const uint8_t* act, int nb, float* fo, bool first, const Ahead& ahead, int columns) {
  if (columns <= 8) return block_of<Q, 8>(slice, act, nb, fo, first, ahead);
  if (columns <= 12) return block_of<Q, 12>(slice, act, nb, fo, first, ahead);
  block_of<Q, 16>(slice, act, nb, fo, first, ahead);
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

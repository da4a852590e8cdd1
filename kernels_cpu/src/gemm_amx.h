// gemm_amx.h: the byte kernel of sets with a tile multiplier (AMX-INT8). It multiplies 16 columns' blocks of 32, or halves of
// them, by a slice's tiles into exact int32 sums; what follows is what the other sets do, in the same order.
#pragma once
#include "slice.h"

namespace er {
namespace ER_ISA {
namespace q8 {

static_assert(BLOCK_C == 16 && R == 16, "a tile register is 16 x 16 sums");

// The thread's tile registers: 0 to 3 sums, 4 columns, 5 and 6 weights. Given back at the end, since the kernel saves them with a thread.
struct Multiplier {
  explicit Multiplier(bool halves) {
    struct { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } c = {};
    const int k = halves ? 16 : 32;
    c.palette = 1;
    for (int i = 0; i < 7; i++) {
      c.row_bytes[i] = uint16_t(i == 4 ? k : 64);
      c.rows[i] = uint8_t(i <= 4 ? 16 : k / 4);
    }
    __asm__ volatile("" : : "r"(&c) : "memory");  // gcc 12 takes the instruction to read no more than a pointer
    _tile_loadconfig(&c);
  }
  ~Multiplier() { _tile_release(); }
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;
};

// Sums of a type whose sums start at START. A zero row stride makes of it all sixteen rows.
alignas(64) static const int32_t start_sums[R] = {START, START, START, START, START, START, START, START,
                                                  START, START, START, START, START, START, START, START};

// Codes of 16 columns and of two tiles, multiplied into sums 0 and 1 or 2 and 3; tile registers are named by literals only.
#define ER_MULTIPLY(S0, S1)                                       \
  if constexpr (BIASED) {                                         \
    _tile_loadd(S0, start_sums, 0);                               \
    _tile_loadd(S1, start_sums, 0);                               \
  } else {                                                        \
    _tile_zero(S0);                                               \
    _tile_zero(S1);                                               \
  }                                                               \
  _tile_loadd(4, a, 32);                                          \
  _tile_loadd(5, w, 2 * VB);                                      \
  _tile_loadd(6, w + VB, 2 * VB);                                 \
  _tile_dpbssd(S0, 4, 5);                                         \
  _tile_dpbssd(S1, 4, 6);
template <int PAIR, bool BIASED>
ER_INL void multiply(const uint8_t* w, const uint8_t* a) {
  if constexpr (PAIR == 0) {
    ER_MULTIPLY(0, 1)
  } else {
    ER_MULTIPLY(2, 3)
  }
}
#undef ER_MULTIPLY
template <int PAIR>
ER_INL void store_sums(int32_t (*sums)[16][R]) {
  if constexpr (PAIR == 0) {
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
  } else {
    _tile_stored(2, sums[0], 64);
    _tile_stored(3, sums[1], 64);
  }
}

// sums[block or half of one][tile][column][R] of n records. What one product left is stored while the next is under way.
template <int HALVES, bool BIASED>
ER_INL void multiply_blocks(const uint8_t* w, const uint8_t* a, int n, int32_t (*sums)[2][16][R]) {
  enum { RECORD = slice_record<HALVES>(), COLUMNS = BLOCK_C * REC, W = 8 * VB };
  if constexpr (HALVES) {
    multiply<0, BIASED>(w, a);
    multiply<1, BIASED>(w + W, a + 16);
    store_sums<0>(sums[0]);
#pragma GCC unroll 1
    for (int b = 1; b < n; b++, sums += 2) {
      w += RECORD;
      a += COLUMNS;
      multiply<0, BIASED>(w, a);
      store_sums<1>(sums[1]);
      multiply<1, BIASED>(w + W, a + 16);
      store_sums<0>(sums[2]);
    }
    store_sums<1>(sums[1]);
  } else {
    multiply<0, BIASED>(w, a);
#pragma GCC unroll 1
    for (; n > 2; n -= 2, sums += 2) {
      multiply<1, BIASED>(w + RECORD, a + COLUMNS);
      store_sums<0>(sums[0]);
      w += 2 * RECORD;
      a += 2 * COLUMNS;
      multiply<0, BIASED>(w, a);
      store_sums<1>(sums[1]);
    }
    if (n == 2) multiply<1, BIASED>(w + RECORD, a + COLUMNS);
    store_sums<0>(sums[0]);
    if (n == 2) store_sums<1>(sums[1]);
  }
}

// f[c] += a record's sums. w: the record's scales of this tile.
template <class Q, int C>
ER_INL void add_sums(vf (&f)[C], const int32_t (*sums)[2][16][R], int tile, const uint8_t* w, const Tiled<BLOCK_C>& a) {
  steps<0, Q::HALVES + 1>([&](auto half) __attribute__((always_inline)) {
    const vf d = ldf(w + half.v * 6 * VB);
    vf bias = d;
    if constexpr (Q::BIASED) bias = ldf(w + (half.v * 6 + 4) * VB);
    ER_EACH {
      f[c] = fma(scaled<Q::BIASED>(ldi(sums[half.v][tile][c]), d, bias), bcf(a.d(c)), f[c]);
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
// are multiplied: no instruction moves them to vectors, one that has just been stored is slow to load, and after a tile instruction
// multiply-adds run at half their rate for some 150 cycles.
template <class Q, int C>
static void block_of(const uint8_t* slice, const uint8_t* act, int nb, float* fo, bool first, const Ahead& ahead) {
  enum { PARTS = Q::HALVES + 1, PHASE = 6 / PARTS, RECORD = slice_record<Q::HALVES>() };
  alignas(64) int32_t sums[PHASE * PARTS][2][16][R];
  for (int b0 = 0; b0 < nb; b0 += PHASE, first = false) {
    const int n = nb - b0 < PHASE ? nb - b0 : int(PHASE);
    const uint8_t *w = slice + b0 * RECORD, *a = act + b0 * BLOCK_C * REC;
    multiply_blocks<Q::HALVES, Q::BIASED>(w, a, n, sums);
    for (int q = 0; q < 2; q++) {
      vf f[C];
      ER_EACH f[c] = first ? zero_f() : ldf(fo + (c * 2 + q) * R);
#pragma GCC unroll 1
      for (int b = 0; b < n; b++) {
        if (q) ahead.weights(b0 + b, 0, ahead.lines);
        else ahead.columns(b0 + b);
        add_sums<Q, C>(f, sums + b * PARTS, q, w + b * RECORD + (16 + q) * VB, Tiled<BLOCK_C>{a + b * BLOCK_C * REC});
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

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

// Codes of 16 columns times those of two tiles, into sums 0 and 1 or 2 and 3; tile registers are named by literals only. What these
// held, the product before the last, is stored first, the first tile's to `zero` and the second's to `one`, unless those are null: a
// product takes longer than the next one's loads.
#define ER_MULTIPLY(S0, S1)                                       \
  _tile_loadd(4, a, 32);                                          \
  _tile_loadd(5, w, 2 * VB);                                      \
  if (zero) _tile_stored(S0, zero, 64);                           \
  _tile_zero(S0);                                                 \
  _tile_dpbssd(S0, 4, 5);                                         \
  _tile_loadd(6, w + VB, 2 * VB);                                 \
  if (one) _tile_stored(S1, one, 64);                             \
  _tile_zero(S1);                                                 \
  _tile_dpbssd(S1, 4, 6);
template <int PAIR>
ER_INL void multiply(const uint8_t* w, const uint8_t* a, int32_t (*zero)[R], int32_t (*one)[R]) {
  if constexpr (PAIR == 0) {
    ER_MULTIPLY(0, 1)
  } else {
    ER_MULTIPLY(2, 3)
  }
}
#undef ER_MULTIPLY
template <int PAIR>
ER_INL void store_sums(int32_t (*zero)[R], int32_t (*one)[R]) {
  if constexpr (PAIR == 0) {
    _tile_stored(0, zero, 64);
    _tile_stored(1, one, 64);
  } else {
    _tile_stored(2, zero, 64);
    _tile_stored(3, one, 64);
  }
}

// f[c] += a record's sums, [half][column]. w: the record's scales of the tile.
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

// Blocks that go together: their sums share L1 with the slice.
template <int HALVES> constexpr int phase_blocks() { return HALVES ? 6 : 12; }

// A phase of n blocks, and the products it starts with: of a block's halves, or of two blocks. They take some 150 cycles to come, so
// the phase before begins them while it still has sums to add.
struct Phase { const uint8_t *w, *a; int n; };
template <class Q>
ER_INL void begin(const Phase& p) {
  multiply<0>(p.w, p.a, nullptr, nullptr);
  if constexpr (Q::HALVES) multiply<1>(p.w + 8 * VB, p.a + 16, nullptr, nullptr);
  else if (p.n > 1) multiply<1>(p.w + slice_record<0>(), p.a + BLOCK_C * REC, nullptr, nullptr);
}

// n blocks of the first C columns of a column tile, the slice's from b0 on. f: [BLOCK_C][2][R], read unless `first`.
// After a tile instruction multiply-adds run at half their rate for some 150 cycles. So the first tile's run beside the products, two
// products behind, and the second's sums wait in memory for the time after.
template <class Q, int C>
ER_INL void phase(const Phase& now, const Phase& next, int b0, float* fo, bool first, const Ahead& ahead) {
  enum { PARTS = Q::HALVES + 1, RECORD = slice_record<Q::HALVES>(), COLUMN = Q::MIN && Q::HALVES ? int(REC) : 40 };
  alignas(64) int32_t zero[2][16][R], one[phase_blocks<Q::HALVES>() * PARTS][16][R];
  const uint8_t *const w0 = now.w, *const a0 = now.a;
  const int n = now.n;
  vf f[C];
  ER_EACH f[c] = first ? zero_f() : ldf(fo + c * 2 * R);
  const auto products = [&](int b, auto part) __attribute__((always_inline)) {
    enum { P = decltype(part)::v };
    const uint8_t *w = w0 + b * RECORD, *a = a0 + b * BLOCK_C * REC;
    if constexpr (Q::HALVES) multiply<P>(w + P * 8 * VB, a + P * 16, zero[P], one[2 * b - 2 + P]);
    else multiply<P>(w, a, zero[P], one[b - 2]);
  };
  const auto add = [&](int b, int tile, const int32_t (*sums)[16][R]) __attribute__((always_inline)) {
    add_sums<Q, C>(f, sums, w0 + b * RECORD + (16 + tile) * VB, Tiled<BLOCK_C>{a0 + b * BLOCK_C * REC});
    if (!tile) ahead.weights(b0 + b);
  };
  if constexpr (Q::HALVES) {
#pragma GCC unroll 1
    for (int b = 1; b < n; b++) {
      products(b, Int<0>{});
      products(b, Int<1>{});
      add(b - 1, 0, zero);
    }
    store_sums<0>(zero[0], one[2 * n - 2]);
    store_sums<1>(zero[1], one[2 * n - 1]);
    add(n - 1, 0, zero);
  } else {
    int b = 2;
#pragma GCC unroll 1
    for (; b + 1 < n; b += 2) {
      products(b, Int<0>{});
      add(b - 2, 0, zero);
      products(b + 1, Int<1>{});
      add(b - 1, 0, zero + 1);
    }
    if (b < n) {
      products(b, Int<0>{});
      add(b - 2, 0, zero);
    }
    if (n % 2) {
      if (n > 1) store_sums<1>(zero[1], one[n - 2]);
      store_sums<0>(zero[0], one[n - 1]);
      if (n > 1) add(n - 2, 0, zero + 1);
      add(n - 1, 0, zero);
    } else {
      store_sums<0>(zero[0], one[n - 2]);
      store_sums<1>(zero[1], one[n - 1]);
      add(n - 2, 0, zero);
      add(n - 1, 0, zero + 1);
    }
  }
  ER_EACH stf(fo + c * 2 * R, f[c]);
  ER_EACH f[c] = first ? zero_f() : ldf(fo + (c * 2 + 1) * R);
  const auto add_second_tile = [&](int b) __attribute__((always_inline)) {
    ahead.template columns<COLUMN>(b0 + b);
    ahead.results(b0 + b);
    add(b, 1, one + b * PARTS);
  };
#pragma GCC unroll 1
  for (int b = 0; b < n - 1; b++) add_second_tile(b);
  if (next.w) begin<Q>(next);
  add_second_tile(n - 1);
  ER_EACH stf(fo + (c * 2 + 1) * R, f[c]);
}

// The first C columns of a column tile. Its first phase has begun unless it is the slice's first.
template <class Q, int C>
static void block_of(const uint8_t* slice, const uint8_t* act, int nb, float* fo, bool first, const Ahead& ahead) {
  enum { PHASE = phase_blocks<Q::HALVES>() };
  const int phases = (nb + PHASE - 1) / PHASE;
  Phase now = {slice, act, (nb + phases - 1) / phases};
  const Phase other = {ahead.more ? slice : nullptr, ahead.act, now.n};
  if (!ahead.begun) begin<Q>(now);
  for (int i = 1, b = 0; i <= phases; i++, first = false) {
    const int behind = b + now.n;
    Phase next = other;
    if (i < phases)
      next = {slice + behind * slice_record<Q::HALVES>(), act + behind * BLOCK_C * REC, (nb - behind + phases - i - 1) / (phases - i)};
    phase<Q, C>(now, next, b, fo, first, ahead);
    now = next;
    b = behind;
  }
}
template <class Q>
static void block(const uint8_t* slice, const uint8_t* act, int nb, float* fo, bool first, const Ahead& ahead, int columns) {
  if (columns <= 8) return block_of<Q, 8>(slice, act, nb, fo, first, ahead);
  if (columns <= 12) return block_of<Q, 12>(slice, act, nb, fo, first, ahead);
  block_of<Q, 16>(slice, act, nb, fo, first, ahead);
}

// f of the first n columns of group g += its sums, [half][tile][column]. w: the block's slice record.
template <class Q>
ER_INL void add_group(float* fo, const int32_t (*sums)[2][16][R], const uint8_t* w, const uint8_t* g, int n) {
  enum { C = 4 };
  const uint32_t* const columns = (const uint32_t*)(g + BLOCK_C * REC);
#pragma GCC unroll 1
  for (int c0 = 0; c0 < n; c0 += C) {
    const Tiled<BLOCK_C> a{g + c0 * 4};
    float* o[C];
    vf f[C][2];
    ER_EACH {
      const uint32_t column = columns[c0 + c];
      const __mmask16 old = column & FIRST ? 0 : 0xffff;
      o[c] = fo + size_t(column & ~FIRST) * 2 * R;
      for (int q = 0; q < 2; q++) f[c][q] = _mm512_maskz_loadu_ps(old, o[c] + q * R);
    }
    steps<0, Q::HALVES + 1>([&](auto half) __attribute__((always_inline)) {
      vi sum[C][2];
      ER_EACH for (int q = 0; q < 2; q++) {
        sum[c][q] = ldi(sums[half.v][q][c0 + c]);
        if constexpr (Q::BIASED) sum[c][q] = add32(sum[c][q], all32(START));
      }
      add_scaled<Q, C>(f, sum, w + (16 + half.v * 6) * VB, a);
    });
    add_minimums<Q, C>(f, w, a);
    ER_EACH for (int q = 0; q < 2; q++) stf(o[c] + q * R, f[c][q]);
  }
}

// The second digits of blocks b0 .. b0 + nb, a group's sums added while the next one or two are multiplied. fo: [columns][2][R].
template <class Q>
static void second_blocks(const uint8_t* w, const Seconds& s, const uint8_t*, int b0, int nb, float* fo, uint32_t) {
  enum { RECORD = slice_record<Q::HALVES>(), BEHIND = Q::HALVES ? 1 : 2 };
  struct Part { const uint8_t *w, *g; int n; } parts[BEHIND];
  alignas(64) int32_t sums[2][2][16][R];  // of both halves or of two groups
  const uint8_t* g = s.records + size_t(s.group[b0]) * GROUP;
  int k = 0;
  const auto add = [&](int k) __attribute__((always_inline)) {
    const Part& p = parts[k % BEHIND];
    add_group<Q>(fo, sums + k % BEHIND, p.w, p.g, p.n);
  };
  const auto products = [&](auto pair, const uint8_t* w, const uint8_t* a, bool store) __attribute__((always_inline)) {
    int32_t (*const to)[16][R] = sums[pair.v];
    multiply<decltype(pair)::v>(w, a, store ? to[0] : nullptr, store ? to[1] : nullptr);
  };
  for (int b = b0; b < b0 + nb; b++, w += RECORD)
    for (int i = s.start[b]; i < s.start[b + 1]; i += BLOCK_C, g += GROUP, k++) {
      const int n = s.start[b + 1] - i < BLOCK_C ? s.start[b + 1] - i : int(BLOCK_C);
      for (int j = 0; j < GROUP; j += 64) __builtin_prefetch(g + GROUP + j, 0, 3);
      if (Q::HALVES || k % 2 == 0) products(Int<0>{}, w, g, k >= BEHIND);
      if (Q::HALVES || k % 2) products(Int<1>{}, Q::HALVES ? w + 8 * VB : w, Q::HALVES ? g + 16 : g, k >= BEHIND);
      if (k >= BEHIND) add(k - BEHIND);
      parts[k % BEHIND] = {w, g, n};
      const uint32_t* const columns = (const uint32_t*)(g + BLOCK_C * REC);
      ER_UNROLL for (int c = 0; c < 16; c++)
        for (int q = 0; q < 2; q++) __builtin_prefetch(fo + (size_t(columns[c] & ~FIRST) * 2 + q) * R, 1, 3);
    }
  if (k > 0) store_sums<0>(sums[0][0], sums[0][1]);
  if (Q::HALVES ? k > 0 : k > 1) store_sums<1>(sums[1][0], sums[1][1]);
  for (int i = k < BEHIND ? 0 : k - BEHIND; i < k; i++) add(i);
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

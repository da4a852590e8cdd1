// direct.h: one tile x C columns over all of K, straight from the packed tile, for every quantized type.
// Per output, in k order over blocks of 32, or of 16 where they have scales of their own: an exact int32 sum times the
// weights' scale, rounded; one fma with the column's scale; per 32 one more with the minimum. The second digits go the same
// way into a sum of their own, added last. C is nowhere in that, so every C and the byte kernel (gemm.h) give the same bits.
#pragma once
#include "act_q8.h"
#include "dots.h"
#include "format_k.h"
#include "format_q32.h"
#include "seconds.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// Whether sums of a type start at START (act_q8.h). A scale of one exponent byte may be too large for it.
template <class T> constexpr bool biased() { return FUSED && T::SCALE != 1; }

// START, if BIASED, less the zero point times the codes' sum.
template <int ZERO, bool BIASED>
ER_INL vi start_sum(const uint8_t* zero, const uint8_t* pair) {
  if constexpr (ZERO == 3 && (BIASED || START == 0)) return bci(zero);
  const vi start = all32(BIASED ? START : 0);
  if constexpr (ZERO < 0) return start;
  else return pair_dotb(start, all16(-(1 << (ZERO & 15))), pair);
}
// The same for one half of the block.
template <int ZERO, bool BIASED, int HALF>
ER_INL vi start_half(const uint8_t* pair) {
  const vi start = all32(BIASED ? START : 0);
  if constexpr (ZERO < 0) return start;
  else return pair_dotb(start, all32(HALF ? -(1 << (ZERO & 15)) * 65536 : -(1 << (ZERO & 15)) & 0xffff), pair);
}
// sum * d, rounded once
template <bool BIASED>
ER_INL vf scaled(vi sum, vf d, vf bias) {
  if constexpr (BIASED) return fma(as_float(sum), d, bias);
  else return mul(cvt(sum), d);
}
ER_INL vf bias_of(vf d) { return mul(d, splat_f(-START_FLOAT)); }

// A unit of a tile as blocks of 32, where HALVES of 16 are scaled apart.
//   scale(i) or scale(i, half), min(i)    floats, the minimum to be added
//   pair(i)                               where HALVES have minimums, those as int16, which min then multiplies
template <class T>
struct Unit32 {
  enum { BLOCKS = T::U, HALVES = 0 };
  const uint8_t* u;
  ER_INL void open(Unit32& x, const uint8_t* unit) { x.u = unit; }
  vf scale(int i) const { return T::scale(u + i * R * T::SCALE); }
  vf min(int) const { return h2f(u + 2 * R); }
};

// Floats of int16 pairs less OFFSET times a scale, rounded once. With 2^23's exponent put over counted bits they are floats already;
// those of the upper halves stand 2^16 higher.
struct PairScale {
  vf low, high, low_bias, high_bias;
  explicit PairScale(vf d)
      : low(d), high(mul(d, splat_f(0x1p-16f))), low_bias(mul(d, splat_f(-0x1p23f))), high_bias(mul(d, splat_f(-0x1p7f))) {}
};
template <int BITS, int OFFSET>
ER_INL void scale_pair(uint8_t* o, vi pair, const PairScale& s) {
  enum { MASK = (1 << BITS) - 1 };
  if constexpr (OFFSET != 0 || !FUSED) {
    const vi v = OFFSET != 0 ? sub16(pair, all16(OFFSET)) : and_(pair, all16(MASK));
    stf(o, mul(s.low, cvt(int_lo(v))));
    stf(o + VB, mul(s.low, cvt(int_hi(v))));
  } else {
    const vf a = as_float(sel(all32(MASK), pair, all32(0x4b000000))), b = as_float(sel(all32(MASK << 16), pair, all32(0x4b000000)));
    stf(o, fma(a, s.low, s.low_bias));
    stf(o + VB, fma(b, s.high, s.high_bias));
  }
}

template <class T>
struct Unit8 {  // K-quants with sub-blocks of 32
  enum { BLOCKS = 8, HALVES = 0 };
  const uint8_t* u;
  alignas(64) uint8_t d[8 * VB], m[8 * VB];
  ER_INL void open(Unit8& x, const uint8_t* unit) {
    x.u = unit;
    vi sc[4], mn[4];
    T::Head::get(unit, sc, mn);
    const PairScale scale(h2f(unit));
    for (int p = 0; p < 4; p++) scale_pair<T::Head::BITS, T::Head::OFFSET>(x.d + 2 * p * VB, sc[p], scale);
    if constexpr (T::MIN) {
      const PairScale low(mul(splat_f(-1.0f), h2f(unit + 2 * R)));
      for (int p = 0; p < 4; p++) scale_pair<T::Head::BITS, 0>(x.m + 2 * p * VB, mn[p], low);
    }
  }
  vf scale(int i) const { return ldf(d + i * VB); }
  vf min(int i) const { return ldf(m + i * VB); }
};
template <class T>
struct Unit16 {  // K-quants with sub-blocks of 16
  enum { BLOCKS = 8, HALVES = 1 };
  const uint8_t* u;
  alignas(64) uint8_t d[16 * VB], p[8 * VB], m[VB];
  ER_INL void open(Unit16& x, const uint8_t* unit) {
    x.u = unit;
    const vf d = h2f(unit);
    if constexpr (T::MIN) stf(x.m, mul(splat_f(-1.0f), h2f(unit + 2 * R)));
    if constexpr (T::Head::FLAT) {
      T::Head::scales(unit, d, x.d);
    } else {
      vi sc[8], mn[8];
      T::Head::get(unit, sc, mn);
      const PairScale scale(d);
      for (int i = 0; i < 8; i++) {
        scale_pair<T::Head::BITS, T::Head::OFFSET>(x.d + 2 * i * VB, sc[i], scale);
        if constexpr (T::MIN) sti(x.p + i * VB, mn[i]);
      }
    }
  }
  vf scale(int i, int half) const { return ldf(d + (2 * i + half) * VB); }
  vf min(int) const { return ldf(m); }
  vi pair(int i) const { return ldi(p + i * VB); }
};
template <class T, int KIND> struct UnitOf { typedef Unit32<T> type; };
template <class T> struct UnitOf<T, 8> { typedef Unit8<T> type; };
template <class T> struct UnitOf<T, 16> { typedef Unit16<T> type; };
template <class T> using Unit = typename UnitOf<T, T::NS>::type;

// Whether C columns get their sums' starts from a table that all tiles share: cheaper than a product each where it serves a few.
template <class T, int C>
constexpr bool has_starts() { return C >= 4 && T::ZERO >= 0 && (Unit<T>::HALVES || int(T::ZERO) != ZERO8); }
template <int C>
struct Started : Tiled<C> {
  const uint8_t* starts;  // int32 [halves][C]
  const uint8_t* start(int c, int half) const { return starts + (half * C + c) * 4; }
};
template <class T, int HALF = 0, int C>
ER_INL vi first_sum(const Started<C>& a, int c) { return bci(a.start(c, HALF)); }
template <class T, int HALF = 0, class A>
ER_INL vi first_sum(const A& a, int c) {
  if constexpr (Unit<T>::HALVES) return start_half<T::ZERO, biased<T>(), HALF>(a.pair(c));
  else return start_sum<T::ZERO, biased<T>()>(a.zero(c), a.pair(c));
}

// The table of all columns: of each column tile int32 [K / 32][halves][C]. Room for VB bytes behind it.
template <class T>
static void make_starts(const uint8_t* act, int K, int M, uint8_t* out) {
  enum { ZERO = T::ZERO & 15, SLOTS = Unit<T>::HALVES + 1 };
  const vi start = all32(biased<T>() ? START : 0);
  const int C = tile_cols(M);
  for (int m = 0; m < M; m += C, act += col_tile_bytes(K, C))
    for (int b = 0; b < K / 32; b++)
      for (int half = 0; half < SLOTS; half++, out += C * 4)
        for (int c = 0; c < C; c += R) {
          const vi pairs = ldi(act + b * C * REC + (C * 11 + c) * 4);
          const vi sum = SLOTS == 1 ? add32(int_lo(pairs), int_hi(pairs)) : half ? int_hi(pairs) : int_lo(pairs);
          sti(out + c * 4, sub32(start, sll32<ZERO>(sum)));
        }
}
ER_INL size_t starts_bytes(int K, int M) {
  return M > PASSES ? 0 : size_t((M + 11) / 12 * 12 + 12) * size_t(K / 32) * 8 + VB;
}

// f[c] += block i of the unit times column c
template <class T, int C, class A>
ER_INL void add_block(vf (&f)[C], const Unit<T>& u, int i, const A& a) {
  constexpr bool BIASED = biased<T>();
  const uint8_t* v = u.u + T::HEAD + i * T::BLOCK;
  if constexpr (!Unit<T>::HALVES) {
    vi acc[C];
    ER_EACH acc[c] = first_sum<T>(a, c);
    dots<8, T::Codes::BITS>(acc, [&](auto j) __attribute__((always_inline)) { return T::Codes::template get<j.v>(v); },
                            [&](int c) __attribute__((always_inline)) { return a.codes(c); });
    const vf d = u.scale(i), bias = BIASED ? bias_of(d) : d;
    ER_EACH f[c] = fma(scaled<BIASED>(acc[c], d, bias), bcf(a.d(c)), f[c]);
    if constexpr (T::MIN) {
      const vf m = u.min(i);
      ER_EACH f[c] = fma(m, bcf(a.x(c)), f[c]);
    }
  } else {
    steps<0, 2>([&](auto half) __attribute__((always_inline)) {
      vi acc[C];
      ER_EACH acc[c] = first_sum<T, half.v>(a, c);
      dots<4, T::Codes::BITS>(
          acc, [&](auto j) __attribute__((always_inline)) { return T::Codes::template get<j.v + half.v * 4>(v); },
          [&](int c) __attribute__((always_inline)) { return a.codes(c) + half.v * 16; });
      const vf d = u.scale(i, half.v), bias = BIASED ? bias_of(d) : d;
      ER_EACH f[c] = fma(scaled<BIASED>(acc[c], d, bias), bcf(a.d(c)), f[c]);
    });
    if constexpr (T::MIN) {
      const vi z = u.pair(i);
      const vf m = u.min(i);
      const vf bias = BIASED ? bias_of(m) : m;
      ER_EACH f[c] = fma(scaled<BIASED>(pair_dotb(all32(BIASED ? START : 0), z, a.pair(c)), m, bias), bcf(a.d(c)), f[c]);
    }
  }
}

// The second digits of block b, the unit's block i, while its codes are at hand. Apart from the loop, whose registers it would take.
template <class T>
static __attribute__((noinline)) void add_seconds(const Unit<T>& u, int i, const Seconds& s, const uint8_t* act, int b, float (*sum)[R],
                                                  uint32_t spare) {
  enum { C = 4 };
  each_second<C>(s, act, b, spare,
      [&](const Gathered<C>& g, const uint32_t* columns) __attribute__((always_inline)) {
        vf f[C];
        ER_EACH f[c] = ldf(sum[columns[c]]);
        add_block<T, C>(f, u, i, g);
        ER_EACH stf(sum[columns[c]], f[c]);
      },
      [&](const Gathered<1>& g, uint32_t column) __attribute__((always_inline)) {
        vf f[1] = {ldf(sum[column])};
        add_block<T, 1>(f, u, i, g);
        stf(sum[column], f[0]);
      });
}

// The second digits of M columns, once the first ones' sums lie in out: sums [M + 1][R], whose last is for filling up.
template <class T>
static void direct_seconds(const uint8_t* w, const uint8_t* act, int K, int M, float* out, int64_t ldo, const Seconds& s, float* sums) {
  memset(sums, 0, size_t(M + 1) * VB);
  Unit<T> u;
  for (int b = 0; b < K / 32; b++) {
    if (s.start[b] == s.start[b + 1]) continue;
    Unit<T>::open(u, w + size_t(b / int(Unit<T>::BLOCKS)) * T::UNIT);
    add_seconds<T>(u, b % int(Unit<T>::BLOCKS), s, act, b, (float(*)[R])sums, uint32_t(M));
  }
  for (int m = 0; m < M; m++)
    if (s.has[m]) stf(out + m * ldo, add(ldf(out + m * ldo), ldf(sums + m * R)));
}

// What is fetched while a tile is met. Tiles go in groups of `streams`: all of the next group are fetched side by side, each tile
// of this one bringing its part of them. A core's prefetches hold one of a few buffers until memory answers, hardware's do not;
// but these follow a stream no further than its page and then begin anew, so several have to be under way. 1.1 times as many
// tokens as with one, at eight columns.
struct Following {
  enum { MOST = 512 * 1024 };  // bytes of a group: they wait in the second level
  const uint8_t* from;
  size_t tile;
  int streams, stream = 0;
  Following(const uint8_t* w, size_t tile, int t, int tiles) : tile(tile), streams(STREAMS) {
    while (streams > 1 && (tiles % streams || size_t(streams) * tile > MOST)) streams--;
    from = streams == 1 ? w + size_t(t) * tile + FAR
                        : w + size_t(t / streams + 1) * size_t(streams) * tile + tile / size_t(streams) / 64 * 64 * size_t(t % streams);
  }
  template <int BYTES>
  void block() {
    prefetch<BYTES, 2>(from + size_t(stream) * tile);
    if (++stream < streams) return;
    stream = 0;
    from += BYTES;
  }
};

// `n` <= C columns are stored; the rest of the tile's columns may hold anything. starts: of make_starts, where they are used.
template <class T, int C>
static void direct(const uint8_t* w, const uint8_t* a, int K, float* out, int64_t ldo, int n, const Seconds& s, const uint8_t* starts,
                   Following following) {
  enum { BYTES = T::UNIT / Unit<T>::BLOCKS };
  const uint8_t* const act = a;
  const bool any = s.start && s.start[K / 32] > 0;
  alignas(64) float sum[DIRECT + 1][R];
  if (any)
    for (int m = 0; m <= DIRECT; m++) stf(sum[m], zero_f());
  vf f[C];
  ER_EACH f[c] = zero_f();
  Unit<T> u;
  const int32_t* next = s.start;
  for (int left = K / 32; left > 0; left -= Unit<T>::BLOCKS, w += T::UNIT) {
    Unit<T>::open(u, w);
    const int blocks = left < int(Unit<T>::BLOCKS) ? left : int(Unit<T>::BLOCKS);
#pragma GCC unroll 1
    for (int i = 0; i < blocks; i++, a += C * REC, next++) {
      following.block<BYTES>();
      prefetch<BYTES, 1>(w + i * BYTES + NEAR);
      if constexpr (has_starts<T, C>()) {
        add_block<T, C>(f, u, i, Started<C>{{a}, starts});
        starts += C * 4 * (Unit<T>::HALVES + 1);
      } else {
        add_block<T, C>(f, u, i, Tiled<C>{a});
      }
      if (any && next[0] != next[1]) add_seconds<T>(u, i, s, act, int(next - s.start), sum, DIRECT);
    }
  }
  ER_EACH if (c < n) stf(out + c * ldo, any && s.has[c] ? add(f[c], ldf(sum[c])) : f[c]);
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// direct_one.h: one column, several tiles at a time. A step of one token is bound by memory, and a core reads it fastest as a few
// streams: hardware prefetchers begin anew at every page, and meanwhile the others go on. Per output the same operations in the
// same order as in direct.h.
#pragma once
#include "direct.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// Where sums start, for all tiles at a time.
struct OneColumn : Tiled<1> { vi first[2]; };
template <class T, int HALF = 0>
ER_INL vi first_sum(const OneColumn& a, int) { return a.first[HALF]; }
template <class T>
ER_INL OneColumn one_column_at(const uint8_t* record) {
  const Tiled<1> a = {record};
  if constexpr (Unit<T>::HALVES) return {a, {first_sum<T, 0>(a, 0), first_sum<T, 1>(a, 0)}};
  else return {a, {first_sum<T>(a, 0), zero_i()}};
}

// Where scales have so few bits that they times d are exact, and times a half's sum stay integers below 2^22, they multiply the
// sums: the one rounding stays the same, and no float scales need be made.
template <class T>
struct SumScales {
  const uint8_t* u;
  alignas(64) uint8_t sc[16 * VB], p[8 * VB], d[2 * VB], m[2 * VB];
  ER_INL void open(SumScales& x, const uint8_t* unit) {
    static_assert(T::NS == 16 && T::ZERO < 0 && T::MIN && T::Head::BITS <= 4 && T::Codes::BITS <= 2, "a half's sum fits int16");
    x.u = unit;
    const vf d = h2f(unit), m = mul(splat_f(-1.0f), h2f(unit + 2 * R));
    stf(x.d, d);
    stf(x.d + VB, bias_of(d));
    stf(x.m, m);
    stf(x.m + VB, bias_of(m));
    vi sc[8], mn[8];
    T::Head::get(unit, sc, mn);
    const vi mask = all32((1 << T::Head::BITS) - 1);
    for (int i = 0; i < 8; i++) {
      sti(x.sc + 2 * i * VB, and_(sc[i], mask));
      sti(x.sc + (2 * i + 1) * VB, and_(srl32<16>(sc[i]), mask));
      sti(x.p + i * VB, mn[i]);
    }
  }
};
template <class T, int C, class A>
ER_INL void add_block(vf (&f)[C], const SumScales<T>& u, int i, const A& a) {
  constexpr bool BIASED = biased<T>();
  const uint8_t* v = u.u + T::HEAD + i * T::BLOCK;
  const vi start = all32(BIASED ? START : 0);
  steps<0, 2>([&](auto half) __attribute__((always_inline)) {
    vi acc[C];
    ER_EACH acc[c] = zero_i();
    dots<4, T::Codes::BITS>(
        acc, [&](auto j) __attribute__((always_inline)) { return T::Codes::template get<j.v + half.v * 4>(v); },
        [&](int c) __attribute__((always_inline)) { return a.codes(c) + half.v * 16; });
    const vi sc = ldi(u.sc + (2 * i + half.v) * VB);
    ER_EACH f[c] = fma(scaled<BIASED>(pair_dot(start, acc[c], sc), ldf(u.d), ldf(u.d + VB)), bcf(a.d(c)), f[c]);
  });
  const vi z = ldi(u.p + i * VB);
  ER_EACH f[c] = fma(scaled<BIASED>(pair_dotb(start, z, a.pair(c)), ldf(u.m), ldf(u.m + VB)), bcf(a.d(c)), f[c]);
}
template <class T> struct OneUnit { typedef Unit<T> type; };
template <> struct OneUnit<Q2_K> { typedef SumScales<Q2_K> type; };

template <class T>
static __attribute__((noinline)) void add_second(const typename OneUnit<T>::type& u, int i, const uint8_t* record, float* sum) {
  vf f[1] = {ldf(sum)};
  add_block<T, 1>(f, u, i, Gathered<1>{{record}});
  stf(sum, f[0]);
}

// N tiles, `tile` bytes each, against the one column at act. Those that follow are fetched towards their end.
template <class T, int N>
static void direct_one(const uint8_t* w, size_t tile, const uint8_t* act, int K, float* out, const Seconds& s) {
  enum { C = N, BYTES = T::UNIT / Unit<T>::BLOCKS };  // ER_EACH counts to C
  const bool any = s.start[K / 32] > 0;
  alignas(64) float sum[N][R];
  if (any) ER_EACH stf(sum[c], zero_f());
  vf f[N][1];
  ER_EACH f[c][0] = zero_f();
  typename OneUnit<T>::type u[N];
  const uint8_t *a = act, *const end = w + tile;
  const int32_t* next = s.start;
  for (int left = K / 32; left > 0; left -= Unit<T>::BLOCKS, w += T::UNIT) {
    ER_EACH u[c].open(u[c], w + c * tile);
    const int blocks = left < int(Unit<T>::BLOCKS) ? left : int(Unit<T>::BLOCKS);
    const uint8_t* ahead = w + STREAM_AHEAD + (w + STREAM_AHEAD < end ? 0 : (N - 1) * tile);
#pragma GCC unroll 1
    for (int i = 0; i < blocks; i++, a += REC, next++, ahead += BYTES) {
      const OneColumn column = one_column_at<T>(a);
      ER_EACH {
        prefetch<BYTES, 1>(ahead + c * tile);
        add_block<T, 1>(f[c], u[c], i, column);
      }
      if (any && next[0] != next[1])
        for (int n = 0; n < N; n++) add_second<T>(u[n], i, act + s.all[next[0]].at, sum[n]);
    }
  }
  ER_EACH stf(out + c * R, any ? add(f[c][0], ldf(sum[c])) : f[c][0]);
}

template <class T, int N>
ER_INL void in_groups(const uint8_t*& w, int& tiles, size_t tile, const uint8_t* act, int K, float*& out, const Seconds& s) {
  for (; tiles >= N; tiles -= N, w += N * tile, out += N * R) direct_one<T, N>(w, tile, act, K, out, s);
}
template <class T>
static void one_column(const uint8_t* w, int tiles, size_t tile, const uint8_t* act, int K, float* out, const Seconds& s) {
  in_groups<T, STREAMS>(w, tiles, tile, act, K, out, s);
  in_groups<T, 2>(w, tiles, tile, act, K, out, s);
  in_groups<T, 1>(w, tiles, tile, act, K, out, s);
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

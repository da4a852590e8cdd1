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

template <class T>
static __attribute__((noinline)) void add_second(const Unit<T>& u, int i, const uint8_t* record, float* sum) {
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
  Unit<T> u[N];
  const uint8_t *a = act, *const end = w + tile;
  const int32_t* next = s.start;
  for (int left = K / 32; left > 0; left -= Unit<T>::BLOCKS, w += T::UNIT) {
    ER_EACH Unit<T>::open(u[c], w + c * tile);
    const int blocks = left < int(Unit<T>::BLOCKS) ? left : int(Unit<T>::BLOCKS);
    const uint8_t* ahead = w + STREAM_AHEAD + (w + STREAM_AHEAD < end ? 0 : (N - 1) * tile);
#pragma GCC unroll 1
    for (int i = 0; i < blocks; i++, a += REC, next++, ahead += BYTES) {
      const OneColumn column = one_column_at<T>(a);
      ER_EACH {
        for (int line = 0; line < BYTES; line += 64) __builtin_prefetch(ahead + c * tile + line, 0, 3);
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

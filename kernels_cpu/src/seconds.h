// seconds.h: the second digits of an operand by block, so that those of several columns meet a block of weights together. Each
// thread makes its own index of an operand once and uses it for every tile.
//   int32 start[K / 32 + 1] | bytes has[M + 1] | Second[...], those of block b being start[b] .. start[b + 1], columns ascending
// For the tile multiplier (gemm_amx.h), which takes sixteen columns, copies of the records follow:
//   int32 group[K / 32 + 1] | groups of 16 records and uint32 column[16], those of block b being group[b] .. group[b + 1]
// The last one of a block is filled up with zeros for column M. FIRST is set in a column's first one, whose sum starts there.
#pragma once
#include "act_q8.h"

namespace er {
namespace ER_ISA {
namespace q8 {

struct Second { uint32_t column, at; };  // the record's bytes from the operand's start

struct Seconds {
  const int32_t* start;
  const uint8_t* has;  // [M]: whether the column has any
  const Second* all;
  const int32_t* group;
  const uint8_t* records;
};
enum { GROUP = BLOCK_C * (REC + 4), SECONDS_AHEAD = 12 };  // records on their way while one is copied
constexpr uint32_t FIRST = 0x80000000;

ER_INL size_t seconds_start_bytes(int K) { return (size_t(K / 32 + 1) * 4 + 63) / 64 * 64; }
ER_INL size_t seconds_has_bytes(int M) { return (size_t(M) + 64) / 64 * 64; }
ER_INL size_t seconds_all_bytes(int K, int M) { return (size_t(M) * size_t(K / 64) * sizeof(Second) + 63) / 64 * 64; }
ER_INL bool grouped(int M) { return TILES && M > PASSES; }
ER_INL size_t seconds_bytes(int K, int M) {
  const size_t index = seconds_start_bytes(K) + seconds_has_bytes(M) + seconds_all_bytes(K, M);
  return grouped(M) ? index + seconds_start_bytes(K) + (size_t(M) * size_t(K / 64) / BLOCK_C + size_t(K / 32)) * GROUP : index;
}
ER_INL Seconds seconds_at(const uint8_t* p, int K, int M) {
  const uint8_t *has = p + seconds_start_bytes(K), *all = has + seconds_has_bytes(M), *group = all + seconds_all_bytes(K, M);
  return {(const int32_t*)p, has, (const Second*)all, (const int32_t*)group, group + seconds_start_bytes(K)};
}

// A record of zeros fills up a group of columns.
alignas(64) static const uint8_t no_second[64] = {};

// One column's record to column c of a group.
ER_INL void put_second(const uint8_t* one, uint8_t* group, int c) {
  memcpy(group + c * 32, one, 32);
  for (int i = 0; i < 4; i++) memcpy(group + BLOCK_C * (32 + 4 * i) + c * 4, one + 32 + 4 * i, 4);
}
static void group_seconds(const uint8_t* act, int nb, int M, const Seconds& s) {
  enum { COLUMN = BLOCK_C * REC };
  int32_t* group = (int32_t*)s.group;
  uint8_t* to = (uint8_t*)s.records;
  const Second* const end = s.all + s.start[nb];
  const uint32_t spare = uint32_t(M) | FIRST;
  group[0] = 0;
  for (int b = 0; b < nb; b++) {
    const int n = s.start[b + 1] - s.start[b];
    group[b + 1] = group[b] + (n + BLOCK_C - 1) / BLOCK_C;
    const Second* one = s.all + s.start[b];
    for (int i = 0; i < n; i += BLOCK_C, to += GROUP) {
      int c = 0;
      for (; c < BLOCK_C && i + c < n; c++, one++) {
        const uint8_t* next = act + (one + SECONDS_AHEAD < end ? one + SECONDS_AHEAD : one)->at;
        __builtin_prefetch(next, 0, 3);
        __builtin_prefetch(next + REC - 1, 0, 3);
        put_second(act + one->at, to, c);
        memcpy(to + COLUMN + c * 4, &one->column, 4);
      }
      for (; c < BLOCK_C; c++) {
        put_second(no_second, to, c);
        memcpy(to + COLUMN + c * 4, &spare, 4);
      }
    }
  }
}

static void index_seconds(const uint8_t* act, int K, int M, uint8_t* p) {
  const int C = tile_cols(M), nb = K / 32;
  const Seconds s = seconds_at(p, K, M);
  const uint32_t first = grouped(M) ? FIRST : 0;
  int32_t* next = (int32_t*)p;  // first the counts, one place on; then where each block's next one goes
  memset(next, 0, size_t(nb + 1) * 4);
  for (int m = 0; m < M; m++) {
    // Other threads wrote most of them, each to lines of its own.
    if (m + SECONDS_AHEAD < M) __builtin_prefetch(second_of(act, K, C, m + SECONDS_AHEAD), 0, 3);
    const int32_t* list = (const int32_t*)second_of(act, K, C, m);
    ((uint8_t*)s.has)[m] = list[0] > 0;
    for (int i = 1; i <= list[0]; i++) next[list[i] + 1]++;
  }
  for (int b = 0; b < nb; b++) next[b + 1] += next[b];
  // Filling moves start[b] to start[b + 1]: shifted back at the end.
  for (int m = 0; m < M; m++) {
    const uint8_t* second = second_of(act, K, C, m);
    const int32_t* list = (const int32_t*)second;
    const size_t records = size_t(second - act) + second_index_bytes(K);
    for (int i = 1; i <= list[0]; i++)
      ((Second*)s.all)[next[list[i]]++] = {i == 1 ? m | first : uint32_t(m), uint32_t(records + size_t(i - 1) * REC)};
  }
  for (int b = nb; b > 0; b--) next[b] = next[b - 1];
  next[0] = 0;
  if (grouped(M)) group_seconds(act, nb, M, s);
}

// Where C columns' codes and numbers lie in a record of a tile, and in records of one column each.
template <int C>
struct Tiled {
  const uint8_t* a;
  const uint8_t* codes(int c) const { return a + c * 32; }
  const uint8_t* d(int c) const { return a + C * 32 + c * 4; }
  const uint8_t* x(int c) const { return a + C * 36 + c * 4; }
  const uint8_t* zero(int c) const { return a + C * 40 + c * 4; }
  const uint8_t* pair(int c) const { return a + C * 44 + c * 4; }
};
template <int C>
struct Gathered {
  const uint8_t* p[C];
  const uint8_t* codes(int c) const { return p[c]; }
  const uint8_t* d(int c) const { return p[c] + 32; }
  const uint8_t* x(int c) const { return p[c] + 36; }
  const uint8_t* zero(int c) const { return p[c] + 40; }
  const uint8_t* pair(int c) const { return p[c] + 44; }
};

// f(Gathered<C>, columns) for the second digits of block b, C at a time and the rest one by one; a group that lacks a few is
// filled with zeros, which go to column `spare`.
template <int C, class Wide, class One>
ER_INL void each_second(const Seconds& s, const uint8_t* act, int b, uint32_t spare, const Wide& wide, const One& one) {
  int i = s.start[b];
  const int end = s.start[b + 1];
  for (; end - i > C / 2; i += C) {
    Gathered<C> g;
    uint32_t columns[C];
    for (int c = 0; c < C; c++) {
      const bool there = i + c < end;
      g.p[c] = there ? act + s.all[i + c].at : no_second;
      columns[c] = there ? s.all[i + c].column : spare;
    }
    for (int c = 0; c < C && i + C + c < end; c++) __builtin_prefetch(act + s.all[i + C + c].at, 0, 3);
    wide(g, columns);
  }
  for (; i < end; i++) one(Gathered<1>{{act + s.all[i].at}}, s.all[i].column);
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// topk.cu: the TOP largest logits of a row, best first, of equals the lowest ids first: all that
// most ways of sampling need to know of it.
#include "softcap.cuh"

enum : int { TOP = 128, THREADS = 256, WARPS = THREADS / 32, EACH = 16, EACH_MERGED = 32 };
enum : unsigned { ALL = 0xffffffffu, INFINITE = 0xff800000u };

// A logit's place among others, and its id. Key 0: nothing, as is -inf; +inf is INFINITE, NaN above
// that. Zeros are equal.
struct Entry {
  uint32_t key;
  int id;
};
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return ALL;
  if (x == -INFINITY_F) return 0;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The keys of a block, N a thread, in order of their ids: thread l of warp w has those at
// w * 32 N + 32 j + l.
template <int N>
struct Keys {
  uint32_t key[N];
  int side = 0;  // of the room that is written next; the other one may still be read

  // Of a number that each warp has, its threads the same: the sum over warps before it, or over all.
  __device__ __forceinline__ int sum(int of_warp, bool all, int (&room)[2][WARPS]) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) room[side][warp] = of_warp;
    __syncthreads();
    int found = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) found += all || i < warp ? room[side][i] : 0;
    side ^= 1;
    return found;
  }
  __device__ __forceinline__ int count_from(uint32_t least, int (&room)[2][WARPS]) {
    int mine = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) mine += key[j] >= least;
#pragma unroll
    for (int o = 16; o; o >>= 1) mine += __shfl_xor_sync(ALL, mine, o);
    return sum(mine, true, room);
  }

  // Takes the TOP largest, of equals the first. put(j, at) of each in order of ids; returns how many.
  template <class Put>
  __device__ __forceinline__ int take(int (&room)[2][WARPS], Put put) {
    const unsigned before = (1u << threadIdx.x % 32) - 1;
    unsigned taken = 0;  // bit j
    uint32_t edge = 0;  // the largest that TOP keys reach
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
      const int n = count_from(edge | bit, room);
      if (n >= TOP) edge |= bit;
      if (n == TOP) break;  // so are all lower bits
    }
    // Of those at the edge the first ones; with fewer than TOP in all it is 0, which is nothing.
    const int spare = edge ? TOP - (edge == ALL ? 0 : count_from(edge + 1, room)) : 0;
    int equal = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) equal += __popc(__ballot_sync(ALL, key[j] == edge));
    int rank = sum(equal, false, room), n = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const unsigned at_edge = __ballot_sync(ALL, key[j] == edge);
      const bool first = key[j] == edge && rank + __popc(at_edge & before) < spare;
      const bool mine = key[j] > edge || first;
      rank += __popc(at_edge);
      n += __popc(__ballot_sync(ALL, mine));
      taken |= static_cast<unsigned>(mine) << j;
    }
    int at = sum(n, false, room);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const bool mine = taken >> j & 1;
      const unsigned all = __ballot_sync(ALL, mine);
      if (mine) put(j, at + __popc(all & before));
      at += __popc(all);
    }
    return sum(n, true, room);
  }
};

// grid (chunks, rows), block THREADS: parts[row][chunk][TOP] in order of ids. logits [rows][ld],
// capped on the way. Chunks are equal but the last, and of at most EACH * THREADS logits.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    topk_part(float* __restrict__ logits, int ld, int n_vocab, float cap, Entry* __restrict__ parts) {
  __shared__ int room[2][WARPS];
  float* row = logits + static_cast<size_t>(blockIdx.y) * ld;
  Entry* part = parts + (static_cast<size_t>(blockIdx.y) * gridDim.x + blockIdx.x) * TOP;
  const int size = (n_vocab + gridDim.x - 1) / gridDim.x, start = blockIdx.x * size;
  const int end = min(start + size, n_vocab);
  const int first = start + threadIdx.x / 32 * (32 * EACH) + threadIdx.x % 32;
  float x[EACH];
  Keys<EACH> keys;
#pragma unroll
  for (int j = 0; j < EACH; ++j) x[j] = first + 32 * j < end ? row[first + 32 * j] : -INFINITY_F;
  if (cap > 0.0f) {
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      if (first + 32 * j < end) row[first + 32 * j] = x[j] = capped(x[j], cap);
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) keys.key[j] = key_of(x[j]);
  const int n = keys.take(room, [&](int j, int at) { part[at] = Entry{keys.key[j], first + 32 * j}; });
  for (int i = n + threadIdx.x; i < TOP; i += THREADS) part[i] = Entry{0, -1};
}

// grid rows, block THREADS: ids, values [rows][TOP]. Behind the last logit above -inf are ids -1 of
// -inf, and nothing else in a row where a logit is NaN or +inf.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    topk(const Entry* __restrict__ parts, int chunks, const float* __restrict__ logits, int ld,
         int* __restrict__ ids, float* __restrict__ values) {
  __shared__ int room[2][WARPS];
  __shared__ Entry kept[TOP];
  const Entry* entries = parts + static_cast<size_t>(blockIdx.x) * chunks * TOP;
  const int place = threadIdx.x / 32 * (32 * EACH_MERGED) + threadIdx.x % 32;
  // As many at a time as the block's threads hold: those kept before, then further ones.
  Keys<EACH_MERGED> keys;
  int n = 0;
  for (int next = 0; next < chunks * TOP;) {
    int id[EACH_MERGED];
#pragma unroll
    for (int j = 0; j < EACH_MERGED; ++j) {
      const int at = place + 32 * j;
      Entry e = {0, -1};
      if (at < n)
        e = kept[at];
      else if (next + at - n < chunks * TOP)
        e = entries[next + at - n];
      keys.key[j] = e.key, id[j] = e.id;
    }
    next += EACH_MERGED * THREADS - n;
    n = keys.take(room, [&](int j, int at) { kept[at] = Entry{keys.key[j], id[j]}; });
  }
  const int i = threadIdx.x;
  if (i >= TOP) return;
  const uint32_t mine = i < n ? kept[i].key : 0;
  int rank = 0;
  bool infinite = false;
  for (int j = 0; j < n; ++j) {
    const uint32_t other = kept[j].key;
    rank += other > mine || (other == mine && j < i);
    infinite |= other >= INFINITE;
  }
  if (i >= n) rank = i;
  const bool there = i < n && !infinite;
  const size_t at = static_cast<size_t>(blockIdx.x) * TOP + rank;
  ids[at] = there ? kept[i].id : -1;
  values[at] = there ? logits[static_cast<size_t>(blockIdx.x) * ld + kept[i].id] : -INFINITY_F;
}

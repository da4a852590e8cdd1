// attention.cu: causal grouped-query attention over paged K and V, for any number of new tokens.
//
// One kernel serves decoding, verification and prefill. A block takes a tile of queries of one KV
// head (a query is a token and one of the `group` heads that share the KV head: query = token *
// group + head) and walks the sequence in steps of 128 tokens, a page a warp. Scores are products
// of tensor cores, with an online softmax (arXiv:1805.02867) over each step; then each warp weighs
// its share of the dimensions over all pages of the step. Neither K nor V passes through shared
// memory: a page lies in fragment order (kv.cuh).
//
// Bits: a query's sums depend on token positions alone. Steps begin at multiples of 128,
// SPLIT_STEPS of them make a split that starts from nothing, splits are folded in order, and a
// product's row knows nothing of other rows. So the size of a tile (MT, GROUPS) and whether a split
// is a block of its own (PARTS, folded by attention_merge) are matters of speed only: few queries
// take small tiles and many splits, a prompt's chunk large tiles that walk all of them. A step or a
// page that no query of the tile sees is left out: it would add zeros.
#include "attention_tile.cuh"

// Shared memory of a block: queries, weights of a step, a row's maxima and sums of each warp.
template <int DP, int MT, int GROUPS>
struct Shared {
  uint4 q[GROUPS][MT * (DP / 32) * 64], p[GROUPS][MT * WARPS * 64];
  float tops[GROUPS][WARPS][16 * MT], sums[GROUPS][WARPS][16 * MT];
};

// K and V of one head: page p of the sequence is at `at + table[p] * page_bytes`.
struct Pages {
  const uint8_t *k, *v;
  long long page_bytes;
  const int* table;
};

// One step of 128 tokens from `base`.
template <int DP, int KV, int MT, int NT, int GROUPS>
__device__ __forceinline__ void attend_step(const Tile& tile, const Pages& pages, int base,
                                            const int (&pos)[MT][2], float softcap_l2e,
                                            Shared<DP, MT, GROUPS>& shared, Sums<MT, NT>& sums) {
  const int lane = threadIdx.x, warp = threadIdx.y, rows = threadIdx.z, page = base / PAGE + warp;
  const bool seen = tile.sees(page * PAGE, PAGE);
  float s[MT][4][4];
#pragma unroll
  for (int i = 0; i < MT * 16; ++i) s[i / 16][i / 4 % 4][i % 4] = 0.0f;
  if (seen)
    score_page<DP, KV, MT>(pages.k + pages.table[page] * pages.page_bytes, shared.q[rows], lane, s);
  if (softcap_l2e > 0.0f) cap_scores<MT>(softcap_l2e, s);
  if (!tile.all_see(page, 16 * MT * GROUPS)) mask_scores<MT>(pos, page, lane & 3, tile.window, s);
  page_tops<MT>(s, lane, shared.tops[rows][warp]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) {
    float x = sums.top[i / 2][i % 2];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) x = fmaxf(x, shared.tops[rows][w][i * 8 + (lane >> 2)]);
    sums.raise(i / 2, i % 2, x);
  }
  if (seen) store_weights<MT, NT>(s, sums, lane, &shared.p[rows][warp * 64]);
  __syncthreads();
#pragma unroll(MT == 1 && DP <= 128 ? 2 : 1)
  for (int w = 0; w < WARPS; ++w) {
    const int p = base / PAGE + w;
    if (!tile.sees(p * PAGE, PAGE)) continue;
    const uint8_t* v = pages.v + pages.table[p] * pages.page_bytes;
    weigh_page<DP, KV, MT, NT>(v, &shared.p[rows][w * 64], warp, lane, sums.acc);
  }
}

// Queries of a tile that begins at q0 of a row; `bounds`: where the row's tokens begin and end in
// the batch.
__device__ __forceinline__ Tile tile_of(int q0, const int* bounds, int past, int group, int window,
                                        int rows) {
  Tile tile;
  tile.q0 = q0, tile.group = group, tile.window = window;
  tile.start = bounds[0], tile.past = past;
  tile.n_valid = min((bounds[1] - bounds[0]) * group - q0, rows);
  tile.first_pos = past + q0 / group;
  tile.last_pos = past + (q0 + tile.n_valid - 1) / group;
  tile.first_seen = window > 0 && tile.first_pos >= window ? tile.first_pos - window + 1 : 0;
  return tile;
}

// The rows of this lane: calls f(which 16, which half of them, the query's head among all of the
// batch).
template <int MT, class F>
__device__ __forceinline__ void each_row(const Tile& tile, size_t first_head, int n_heads,
                                         const F& f) {
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) {
    const int r = threadIdx.z * MT * 16 + i * 8 + (threadIdx.x >> 2), query = tile.q0 + r;
    if (r < tile.n_valid)
      f(i / 2, i % 2,
        first_head + static_cast<size_t>(query / tile.group) * n_heads + query % tile.group);
  }
}
template <int MT, int NT>
__device__ __forceinline__ void store_results(const Tile& tile, const Sums<MT, NT>& total,
                                              const float* sinks, size_t first_head, int n_heads,
                                              int head_dim, float* out) {
  each_row<MT>(tile, first_head, n_heads, [&](int m, int h, size_t head) {
    const float* sink = sinks ? sinks + head % n_heads : nullptr;
    const float scale = final_scale(sink, total.top[m][h], total.sum[m][h]);
    write_row<NT>(total.acc[m], h, threadIdx.y, threadIdx.x, head_dim, scale,
                  out + head * head_dim);
  });
}
// n: heads of all tokens.
template <int DP, int MT, int NT>
__device__ __forceinline__ void store_parts(const Tile& tile, const Sums<MT, NT>& sums,
                                            size_t first_head, int n_heads, size_t n, float* out) {
  float* rows = out + gridDim.z * n * DP;
  each_row<MT>(tile, first_head, n_heads, [&](int m, int h, size_t head) {
    const size_t part = blockIdx.z * n + head;
    write_row<NT>(sums.acc[m], h, threadIdx.y, threadIdx.x, DP, 1.0f, out + part * DP);
    if (threadIdx.y == 0 && (threadIdx.x & 3) == 0)
      store(rows + part * 2, make_float2(sums.top[m][h], sums.sum[m][h]));
  });
}

// Weighed sums of the splits before, which long heads keep in local memory, where they are touched
// once a split: registers hold those of one.
template <int MT, int NT, bool LOCAL>
struct Kept {
  volatile float acc[LOCAL ? MT * NT * 4 : 1];
  __device__ __forceinline__ void put(const Sums<MT, NT>& total) {
    if (!LOCAL) return;
#pragma unroll
    for (int i = 0; i < MT * NT * 4; ++i) acc[LOCAL ? i : 0] = total.acc[i / (NT * 4)][i / 4 % NT][i % 4];
  }
  __device__ __forceinline__ void get(Sums<MT, NT>& total) const {
    if (!LOCAL) return;
#pragma unroll
    for (int i = 0; i < MT * NT * 4; ++i) total.acc[i / (NT * 4)][i / 4 % NT][i % 4] = acc[LOCAL ? i : 0];
  }
};

// grid (n_tiles, n_kv, PARTS ? splits : 1), block (32, WARPS, GROUPS): a tile is 16 MT GROUPS
// queries.
//
// q: halves [T][n_heads][DP] as rope_kv leaves them. tiles: [n_tiles][2], a row of the batch (-1:
// nothing to do) and its query that comes first. sinks: null, or a score of each head. out: [T][n_heads * head_dim], or with PARTS
// [splits][T][n_heads][DP] weighed sums, then [splits][T][n_heads][2] maxima and sums of weights; a
// row's splits count from the first that its first token sees. Without the 1 in the launch bounds
// ptxas spills, to fit more blocks.
template <int DP, int KV, int MT, int GROUPS, int PARTS>
__global__ void __launch_bounds__(32 * WARPS * GROUPS, 1)
    attention(const uint16_t* __restrict__ q, const uint8_t* __restrict__ pool,
              long long page_bytes, long long k_off, long long v_off, const int* __restrict__ tiles,
              const int* __restrict__ row_start, const int* __restrict__ n_past,
              const int* __restrict__ block_tables, int table_stride, int n_tokens, int n_heads,
              int n_kv, int head_dim, int window, float softcap_l2e,
              const float* __restrict__ sinks, float* __restrict__ out) {
  constexpr int NT = value_tiles(DP, KV), ROWS = 16 * MT;
  __shared__ Shared<DP, MT, GROUPS> shared;
  const int row = tiles[2 * blockIdx.x], kv_head = blockIdx.y, lane = threadIdx.x,
            warp = threadIdx.y;
  if (row < 0) return;

  const Tile tile = tile_of(tiles[2 * blockIdx.x + 1], row_start + row, n_past[row], n_heads / n_kv,
                            window, ROWS * GROUPS);
  const int row_split = first_split(tile.past, window);
  int split = first_split(tile.first_pos, window), split_end = tile.last_pos / SPLIT + 1;
  if (PARTS) {
    const int mine = row_split + static_cast<int>(blockIdx.z);
    if (mine < split || mine >= split_end) return;
    split = mine, split_end = mine + 1;
  }
  const size_t head_at = static_cast<size_t>(kv_head) * kv_head_bytes(KV, DP);
  const Pages pages = {pool + k_off + head_at, pool + v_off + head_at, page_bytes,
                       block_tables + static_cast<size_t>(row) * table_stride};
  const size_t first_head = static_cast<size_t>(tile.start) * n_heads + kv_head * tile.group;
  load_queries<DP>(q + first_head * DP, tile, ROWS * GROUPS, n_heads, &shared.q[0][0]);
  __syncthreads();

  int pos[MT][2];  // of the lane's rows; those that are no queries see nothing
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) {
    const int r = threadIdx.z * ROWS + i * 8 + (lane >> 2);
    pos[i / 2][i % 2] = r < tile.n_valid ? tile.past + (tile.q0 + r) / tile.group : -1;
  }
  Sums<MT, NT> sums, total;
  total.clear();
  Kept<MT, NT, (DP > 256 && !PARTS)> kept;
  kept.put(total);
  for (; split < split_end; ++split) {
    sums.clear();
    for (int base = split * SPLIT; base < (split + 1) * SPLIT; base += STEP)
      if (tile.sees(base, STEP))
        attend_step<DP, KV, MT, NT, GROUPS>(tile, pages, base, pos, softcap_l2e, shared, sums);
    float l[MT][2];
    add_up_rows<MT, NT>(sums, warp, lane, shared.sums[threadIdx.z], l);
    kept.get(total);
#pragma unroll
    for (int i = 0; i < MT * 2; ++i) {
      if (PARTS)
        sums.sum[i / 2][i % 2] = l[i / 2][i % 2];
      else
        total.fold(sums, i / 2, i % 2, l[i / 2][i % 2]);
    }
    kept.put(total);
  }

  if (PARTS)
    store_parts<DP>(tile, sums, first_head, n_heads, static_cast<size_t>(n_tokens) * n_heads, out);
  else
    store_results(tile, total, sinks, first_head, n_heads, head_dim, out);
}

// Folds the splits of every query: grid (T, n_heads), block DP threads. splits: z of attention's
// grid. kvpos: [T], a token's place in its sequence, -1 for padding.
template <int DP>
__global__ void __launch_bounds__(DP)
    attention_merge(const float* __restrict__ parts, const int* __restrict__ row_of,
                    const int* __restrict__ kvpos, const int* __restrict__ n_past, int splits,
                    int n_tokens, int n_heads, int head_dim, int window,
                    const float* __restrict__ sinks, float* __restrict__ out) {
  const int token = blockIdx.x, head = blockIdx.y, d = threadIdx.x, pos = kvpos[token];
  if (pos < 0) return;
  const int row_split = first_split(n_past[row_of[token]], window);
  const int first = first_split(pos, window) - row_split, end = pos / SPLIT + 1 - row_split;
  const size_t n = static_cast<size_t>(n_tokens) * n_heads,
               at = static_cast<size_t>(token) * n_heads + head;
  const float* rows = parts + splits * n * DP;
  float top = -INFINITY_F, sum = 0.0f, total = 0.0f;
  for (int i = first; i < end; ++i) {
    const float2 part = load<float2>(rows + (i * n + at) * 2);
    float before, now;
    fold_factors(part.x, top, before, now);
    sum = folded(sum, before, part.y, now);
    total = folded(total, before, parts[(i * n + at) * DP + d], now);
  }
  const float scale = final_scale(sinks ? sinks + head : nullptr, top, sum);
  if (d < head_dim) out[at * head_dim + d] = total * scale;
}

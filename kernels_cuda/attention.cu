// attention.cu: causal grouped-query attention over paged K and V, for any number of new tokens.
//
// One kernel serves decoding, verification and prefill. A block takes a tile of queries of one KV head (a query is
// a token and one of the `group` heads that share the KV head: query = token * group + head) and walks the sequence
// in steps of 128 tokens, a page a warp. Scores are products of tensor cores, with an online softmax
// (arXiv:1805.02867) over each step; then each warp weighs its share of the dimensions over all pages of the step.
// Neither K nor V passes through shared memory: a page lies in fragment order (kv.cuh).
//
// Bits: a query's sums depend on token positions alone. Steps begin at multiples of 128, SPLIT_STEPS of them make a
// split that starts from nothing, splits are folded in order, and a product's row knows nothing of other rows. So
// the size of a tile (MT, GROUPS) and whether a split is a block of its own (PARTS, folded by attention_merge) are
// matters of speed only: few queries take small tiles and many splits, a prompt's chunk large tiles that walk all
// of them. A step or a page that no query of the tile sees is left out: it would add zeros.
#include "kv.cuh"

enum : int { WARPS = 4, STEP = WARPS * PAGE, SPLIT_STEPS = 2, SPLIT = STEP * SPLIT_STEPS };
enum : unsigned { ALL = 0xffffffffu };
// Weights are exp2(score - maximum + 12): those down to 2^-26 of the largest keep all digits of a half.
#define WEIGHT_SHIFT 12.0f

// Tiles of 8 dimensions that a warp weighs; q4r keeps two of them in one byte.
__device__ constexpr int value_tiles(int dp, int kv) {
  return kv == KV_Q4R ? (dp / 16 + WARPS - 1) / WARPS * 2 : dp / 8 / WARPS;
}

// The factors by which a split with maximum m is folded into those before, whose maximum is mt; mt becomes the
// common one.
__device__ __forceinline__ void fold_factors(float m, float& mt, float& before, float& now) {
  const float top = fmaxf(mt, m);
  before = mt == -INFINITY_F ? 0.0f : exp2_fast(mt - top);
  now = m == -INFINITY_F ? 0.0f : exp2_fast(m - top);
  mt = top;
}
__device__ __forceinline__ float folded(float total, float before, float part, float now) {
  return __fmaf_rn(total, before, part * now);
}
// The first split that a token at `pos` sees any of.
__device__ __forceinline__ int first_split(int pos, int window) {
  return window > 0 && pos >= window ? (pos - window + 1) / SPLIT : 0;
}

// What a block works on. Rows past n_valid of its tile are no queries.
struct Tile {
  int q0, n_valid, group, start, past, window;
  int first_pos, last_pos, first_seen;  // of the tile's first and last token; the first position any of them sees

  __device__ __forceinline__ bool sees(int from, int n) const { return from <= last_pos && from + n > first_seen; }
  // Whether every row sees all of a page: then no token of it needs a test.
  __device__ __forceinline__ bool all_see(int page, int rows) const {
    return page * PAGE + PAGE - 1 <= first_pos && n_valid == rows && (window <= 0 || page * PAGE > last_pos - window);
  }
};

// A lane's part of the softmax and the weighed sums of a split: rows g and g + 8 of each of MT tiles of 16.
template <int MT, int NT>
struct Sums {
  float top[MT][2], sum[MT][2], acc[MT][NT][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) top[m][h] = -INFINITY_F, sum[m][h] = 0.0f;
#pragma unroll
      for (int i = 0; i < NT * 4; ++i) acc[m][i / 4][i % 4] = 0.0f;
    }
  }
  // x: the row's new maximum. What was summed so far shrinks to it.
  __device__ __forceinline__ void raise(int m, int h, float x) {
    const float shrink = x == top[m][h] ? 1.0f : exp2_fast(top[m][h] - x);
    top[m][h] = x;
    sum[m][h] *= shrink;
#pragma unroll
    for (int i = 0; i < NT * 2; ++i) acc[m][i / 2][2 * h + i % 2] *= shrink;
  }
  // Fold a split, `l` its sum of weights, into this.
  __device__ __forceinline__ void fold(const Sums& part, int m, int h, float l) {
    float before, now;
    fold_factors(part.top[m][h], top[m][h], before, now);
    sum[m][h] = folded(sum[m][h], before, l, now);
#pragma unroll
    for (int i = 0; i < NT * 2; ++i) {
      float& total = acc[m][i / 2][2 * h + i % 2];
      total = folded(total, before, part.acc[m][i / 2][2 * h + i % 2], now);
    }
  }
};

// The tile's queries in fragment order: of each 16 rows and 32 dimensions a lane's 8 dimensions of row g, then of
// row g + 8. q: the first token's first head of the group.
template <int DP>
__device__ __forceinline__ void load_queries(const uint16_t* q, const Tile& tile, int rows, int n_heads, uint4* out) {
  constexpr int NB = DP / 32, CHUNKS = DP / 8;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * 32 + threadIdx.x;
  for (int c = thread; c < rows * CHUNKS; c += blockDim.z * blockDim.y * 32) {
    const int r = c / CHUNKS, b = c % CHUNKS / 4, t = c % 4, query = tile.q0 + r;
    uint4 x = {0, 0, 0, 0};
    if (r < tile.n_valid) {
      const size_t head = static_cast<size_t>(query / tile.group) * n_heads + query % tile.group;
      x = load<uint4>(q + head * DP + b * 32 + t * 8);
    }
    out[((r / 16 * NB + b) * 2 + r % 16 / 8) * 32 + r % 8 * 4 + t] = x;
  }
}

// Adds Q K of one block of 32 dimensions. s[m][i][e]: row g + 8 (e / 2) of tile m, token 8 t + 2 i + e % 2.
template <int KV, int MT, int NB>
__device__ __forceinline__ void score_block(const uint4* q, int b, const uint32_t (&k)[4][4], uint4 scales,
                                            float (&s)[MT][4][4]) {
  const uint32_t scale[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const uint4 x = q[(m * NB + b) * 64], y = q[(m * NB + b) * 64 + 32];
    const uint32_t a0[4] = {x.x, y.x, x.y, y.y}, a1[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t b0[2] = {k[i][0], k[i][1]}, b1[2] = {k[i][2], k[i][3]};
      if (KV == KV_F16) {
        mma_f16(s[m][i], a0, b0);
        mma_f16(s[m][i], a1, b1);
      } else {  // codes are whole numbers, so the scale comes after
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma_f16(c, a0, b0);
        mma_f16(c, a1, b1);
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][i][e] = __fmaf_rn(c[e], half_of(scale[i], e & 1), s[m][i][e]);
      }
    }
  }
}

// Scores of a warp's rows with one page of K.
template <int DP, int KV, int MT>
__device__ __forceinline__ void score_page(const uint8_t* k, const uint4* q, int lane, float (&s)[MT][4][4]) {
  // Few queries wait for memory, many for registers.
  constexpr int NB = DP / 32, V = MT == 1 ? kv_vector(KV, NB) : 1, WORDS = kv_group_bytes(KV) / 4;
  const int g = lane >> 2, t = lane & 3;
#pragma unroll(MT == 1 && DP <= 128 ? 2 : 1)
  for (int bv = 0; bv < NB / V; ++bv) {
    uint32_t words[4][V * WORDS];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 8 * (g >> 1) + 2 * i + (g & 1);
      load_words<V * WORDS>(k + kv_k_at(KV, NB, token, bv * V, t), words[i]);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int b = bv * V + v;
      uint32_t codes[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) k_operand<KV>(words[i] + v * WORDS, codes[i]);
      uint4 scales = {0, 0, 0, 0};
      if (KV != KV_F16) scales = load<uint4>(k + kv_code_bytes(KV, DP) + b * 64 + t * 16);
      score_block<KV, MT, NB>(q + lane, b, codes, scales, s);
    }
  }
}

// softcap * tanh(.), of exponents of 2 as they come and go: s holds 2 log2(e) score / softcap.
template <int MT>
__device__ __forceinline__ void cap_scores(float softcap_l2e, float (&s)[MT][4][4]) {
#pragma unroll
  for (int i = 0; i < MT * 16; ++i) {
    float& x = s[i / 16][i / 4 % 4][i % 4];
    x = softcap_l2e * (1.0f - 2.0f * reciprocal_fast(1.0f + exp2_fast(x)));
  }
}

// What a row does not see is dropped by selection: it may be another sequence's old bytes.
template <int MT>
__device__ __forceinline__ void mask_scores(const int (&pos)[MT][2], int page, int t, int window, float (&s)[MT][4][4]) {
#pragma unroll
  for (int i = 0; i < MT * 16; ++i) {
    const int token = page * PAGE + 8 * t + i / 4 % 4 * 2 + i % 2, at = pos[i / 16][i / 2 % 2];
    if (token > at || (window > 0 && token <= at - window)) s[i / 16][i / 4 % 4][i % 4] = -INFINITY_F;
  }
}

// The largest score of each row on the warp's page. NaN is passed over: its weight will be NaN.
template <int MT>
__device__ __forceinline__ void page_tops(const float (&s)[MT][4][4], int lane, float* out) {
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) {
    const int m = i / 2, h = i % 2;
    float x = -INFINITY_F;
#pragma unroll
    for (int j = 0; j < 8; ++j) x = fmaxf(x, s[m][j / 2][2 * h + j % 2]);
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 1));
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 2));
    if ((lane & 3) == 0) out[m * 16 + h * 8 + (lane >> 2)] = x;
  }
}

// Scores become weights: added up in `sums`, stored as halves in fragment order for all warps.
template <int MT, int NT>
__device__ __forceinline__ void store_weights(const float (&s)[MT][4][4], Sums<MT, NT>& sums, int lane, uint4* out) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    uint32_t p[2][4];  // [pair of tiles of 8 tokens][(tile of the pair) * 2 + half of the rows]
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Where nothing counts yet, what is not masked is NaN and stays so.
      const float zero = (sums.top[m][h] == -INFINITY_F ? 0.0f : sums.top[m][h]) - WEIGHT_SHIFT;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = exp2_fast(s[m][i][2 * h] - zero), y = exp2_fast(s[m][i][2 * h + 1] - zero);
        sums.sum[m][h] += x;
        sums.sum[m][h] += y;
        p[i / 2][i % 2 * 2 + h] = half_pair(x, y);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) out[(m * WARPS * 2 + i) * 32 + lane] = make_uint4(p[i][0], p[i][1], p[i][2], p[i][3]);
  }
}

// acc += the weights of one page times its V, for the warp's tiles of dimensions.
template <int DP, int KV, int MT, int NT>
__device__ __forceinline__ void weigh_page(const uint8_t* v, const uint4* weights, int warp, int lane,
                                           float (&acc)[MT][NT][4]) {
  constexpr int PER = KV == KV_Q4R ? 2 : 1;
  const int g = lane >> 2, t = lane & 3;
  uint4 p[MT][2];
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) p[i / 2][i % 2] = weights[(i / 2 * WARPS * 2 + i % 2) * 32 + lane];
#pragma unroll
  for (int j = 0; j < NT; j += PER) {
    const int d = (warp * NT + j) * 8 + g;
    if (NT * WARPS * 8 != DP && d >= DP) break;  // dimensions that four warps do not share evenly
    uint32_t words[kv_group_bytes(KV) * PER / 4];
    load_words<kv_group_bytes(KV) * PER / 4>(v + kv_v_at(KV, 8 * t, d), words);
    uint4 scales = {0, 0, 0, 0};
    if (KV != KV_F16) scales = load<uint4>(v + kv_code_bytes(KV, DP) + d / 32 * 64 + t * 16);
#pragma unroll
    for (int odd = 0; odd < PER; ++odd) {
      uint32_t b0[2], b1[2];
      v_operands<KV>(words, scales, odd, b0, b1);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        const uint32_t a0[4] = {p[m][0].x, p[m][0].y, p[m][0].z, p[m][0].w};
        const uint32_t a1[4] = {p[m][1].x, p[m][1].y, p[m][1].z, p[m][1].w};
        mma_f16(acc[m][j + odd], a0, b0);
        mma_f16(acc[m][j + odd], a1, b1);
      }
    }
  }
}

// A row's sum of weights over its four lanes and the warps.
template <int MT, int NT>
__device__ __forceinline__ void add_up_rows(const Sums<MT, NT>& sums, int warp, int lane, float (*room)[16 * MT],
                                            float (&l)[MT][2]) {
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) {
    float x = sums.sum[i / 2][i % 2];
    x += __shfl_xor_sync(ALL, x, 1);
    x += __shfl_xor_sync(ALL, x, 2);
    if ((lane & 3) == 0) room[warp][i * 8 + (lane >> 2)] = x;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) {
    const int r = i * 8 + (lane >> 2);
    l[i / 2][i % 2] = ((room[0][r] + room[1][r]) + room[2][r]) + room[3][r];
  }
}

// One row's sums times `scale` into its place, the first `end` of them.
template <int NT>
__device__ __forceinline__ void write_row(const float (&acc)[NT][4], int h, int warp, int lane, int end, float scale,
                                          float* out) {
#pragma unroll
  for (int i = 0; i < NT * 2; ++i) {
    const int d = (warp * NT + i / 2) * 8 + 2 * (lane & 3) + i % 2;
    if (d < end) out[d] = acc[i / 2][2 * h + i % 2] * scale;
  }
}

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
__device__ __forceinline__ void attend_step(const Tile& tile, const Pages& pages, int base, const int (&pos)[MT][2],
                                            float softcap_l2e, Shared<DP, MT, GROUPS>& shared, Sums<MT, NT>& sums) {
  const int lane = threadIdx.x, warp = threadIdx.y, rows = threadIdx.z, page = base / PAGE + warp;
  const bool seen = tile.sees(page * PAGE, PAGE);
  float s[MT][4][4];
#pragma unroll
  for (int i = 0; i < MT * 16; ++i) s[i / 16][i / 4 % 4][i % 4] = 0.0f;
  if (seen) score_page<DP, KV, MT>(pages.k + pages.table[page] * pages.page_bytes, shared.q[rows], lane, s);
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

// grid (n_tiles, n_kv, PARTS ? splits : 1), block (32, WARPS, GROUPS): a tile is 16 MT GROUPS queries.
//
// q: halves [T][n_heads][DP] as rope_kv leaves them. tiles: [n_tiles][2], a row of the batch (-1: nothing to do) and
// its query that comes first. out: [T][n_heads * head_dim], or with PARTS [splits][T][n_heads][DP] weighed sums, then
// [splits][T][n_heads][2] maxima and sums of weights; a row's splits count from the first that its first token sees.
template <int DP, int KV, int MT, int GROUPS, int PARTS>
__global__ void __launch_bounds__(32 * WARPS * GROUPS, 1)  // without the 1, ptxas spills to fit more blocks
    attention(const uint16_t* __restrict__ q, const uint8_t* __restrict__ pool, long long page_bytes, long long k_off,
              long long v_off, const int* __restrict__ tiles, const int* __restrict__ row_start,
              const int* __restrict__ n_past, const int* __restrict__ block_tables, int table_stride, int n_tokens,
              int n_heads, int n_kv, int head_dim, int window, float softcap_l2e, float* __restrict__ out) {
  constexpr int NT = value_tiles(DP, KV), ROWS = 16 * MT;
  __shared__ Shared<DP, MT, GROUPS> shared;
  const int row = tiles[2 * blockIdx.x], kv_head = blockIdx.y, lane = threadIdx.x, warp = threadIdx.y;
  if (row < 0) return;

  Tile tile;
  tile.q0 = tiles[2 * blockIdx.x + 1], tile.group = n_heads / n_kv, tile.window = window;
  tile.start = row_start[row], tile.past = n_past[row];
  tile.n_valid = min((row_start[row + 1] - tile.start) * tile.group - tile.q0, ROWS * GROUPS);
  tile.first_pos = tile.past + tile.q0 / tile.group;
  tile.last_pos = tile.past + (tile.q0 + tile.n_valid - 1) / tile.group;
  tile.first_seen = window > 0 && tile.first_pos >= window ? tile.first_pos - window + 1 : 0;
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
  for (; split < split_end; ++split) {
    sums.clear();
    for (int base = split * SPLIT; base < (split + 1) * SPLIT; base += STEP)
      if (tile.sees(base, STEP)) attend_step<DP, KV, MT, NT, GROUPS>(tile, pages, base, pos, softcap_l2e, shared, sums);
    float l[MT][2];
    add_up_rows<MT, NT>(sums, warp, lane, shared.sums[threadIdx.z], l);
#pragma unroll
    for (int i = 0; i < MT * 2; ++i) {
      if (PARTS) sums.sum[i / 2][i % 2] = l[i / 2][i % 2];
      else total.fold(sums, i / 2, i % 2, l[i / 2][i % 2]);
    }
  }

  const size_t n = static_cast<size_t>(n_tokens) * n_heads;
#pragma unroll
  for (int i = 0; i < MT * 2; ++i) {
    const int m = i / 2, h = i % 2, r = threadIdx.z * ROWS + i * 8 + (lane >> 2), query = tile.q0 + r;
    if (r >= tile.n_valid) continue;
    const size_t at = first_head + static_cast<size_t>(query / tile.group) * n_heads + query % tile.group;
    if (PARTS) {
      const size_t part = static_cast<size_t>(blockIdx.z) * n + at;
      write_row<NT>(sums.acc[m], h, warp, lane, DP, 1.0f, out + part * DP);
      if (warp == 0 && (lane & 3) == 0) store(out + gridDim.z * n * DP + part * 2, make_float2(sums.top[m][h], sums.sum[m][h]));
    } else {
      write_row<NT>(total.acc[m], h, warp, lane, head_dim, reciprocal_fast(total.sum[m][h]), out + at * head_dim);
    }
  }
}

// Folds the splits of every query: grid (T, n_heads), block DP threads. splits: z of attention's grid.
// kvpos: [T], a token's place in its sequence, -1 for padding.
template <int DP>
__global__ void __launch_bounds__(DP)
    attention_merge(const float* __restrict__ parts, const int* __restrict__ row_of, const int* __restrict__ kvpos,
                    const int* __restrict__ n_past, int splits, int n_tokens, int n_heads, int head_dim, int window,
                    float* __restrict__ out) {
  const int token = blockIdx.x, head = blockIdx.y, d = threadIdx.x, pos = kvpos[token];
  if (pos < 0) return;
  const int row_split = first_split(n_past[row_of[token]], window);
  const int first = first_split(pos, window) - row_split, end = pos / SPLIT + 1 - row_split;
  const size_t n = static_cast<size_t>(n_tokens) * n_heads, at = static_cast<size_t>(token) * n_heads + head;
  const float* rows = parts + splits * n * DP;
  float top = -INFINITY_F, sum = 0.0f, total = 0.0f;
  for (int i = first; i < end; ++i) {
    const float2 part = load<float2>(rows + (i * n + at) * 2);
    float before, now;
    fold_factors(part.x, top, before, now);
    sum = folded(sum, before, part.y, now);
    total = folded(total, before, parts[(i * n + at) * DP + d], now);
  }
  if (d < head_dim) out[at * head_dim + d] = total * reciprocal_fast(sum);
}

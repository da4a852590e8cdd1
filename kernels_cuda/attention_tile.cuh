// attention_tile.cuh: what attention.cu does with a tile of queries and one page: scores, weights,
// weighed sums. A lane is (g, t) = (lane / 4, lane % 4); of every 16 rows of queries, g and g + 8
// are its own.
#pragma once
#include "kv.cuh"

enum : int { WARPS = 4, STEP = WARPS * PAGE, SPLIT_STEPS = 2, SPLIT = STEP * SPLIT_STEPS };
enum : unsigned { ALL = 0xffffffffu };
// Weights are exp2(score - maximum + 12): those down to 2^-26 of the largest keep all digits of a
// half.
#define WEIGHT_SHIFT 12.0f
#define SHIFTED_ONE 4096.0f  // the weight of a row's maximum
#define LOG2_E 1.4426950408889634f

// Tiles of 8 dimensions that a warp weighs; q4r keeps two of them in one byte.
__device__ constexpr int value_tiles(int dp, int kv) {
  return kv == KV_Q4R ? (dp / 16 + WARPS - 1) / WARPS * 2 : dp / 8 / WARPS;
}

// The factors by which a split with maximum m is folded into those before, whose maximum is mt; mt
// becomes the common one.
__device__ __forceinline__ void fold_factors(float m, float& mt, float& before, float& now) {
  const float top = fmaxf(mt, m);
  before = mt == -INFINITY_F ? 0.0f : exp2_fast(mt - top);
  now = m == -INFINITY_F ? 0.0f : exp2_fast(m - top);
  mt = top;
}
__device__ __forceinline__ float folded(float total, float before, float part, float now) {
  return __fmaf_rn(total, before, part * now);
}
// What a row's weighed sums are multiplied by in the end. A sink is one more score, for no token:
// it is folded in as one more split, the sum of whose weights is the weight of its maximum and whose
// values are zeros.
__device__ __forceinline__ float final_scale(const float* sink, float top, float sum) {
  float before = 1.0f, now;
  if (sink) {
    fold_factors(*sink * LOG2_E, top, before, now);
    sum = folded(sum, before, SHIFTED_ONE, now);
  }
  return before * reciprocal_fast(sum);
}
// The first split that a token at `pos` sees any of.
__device__ __forceinline__ int first_split(int pos, int window) {
  return window > 0 && pos >= window ? (pos - window + 1) / SPLIT : 0;
}

// What a block works on. Rows past n_valid of its tile are no queries.
struct Tile {
  int q0, n_valid, group, start, past, window;
  int first_pos, last_pos,
      first_seen;  // of the tile's first and last token; the first position any of them sees

  __device__ __forceinline__ bool sees(int from, int n) const {
    return from <= last_pos && from + n > first_seen;
  }
  // Whether every row sees all of a page: then no token of it needs a test.
  __device__ __forceinline__ bool all_see(int page, int rows) const {
    return page * PAGE + PAGE - 1 <= first_pos && n_valid == rows &&
           (window <= 0 || page * PAGE > last_pos - window);
  }
};

// A lane's part of the softmax and the weighed sums of a split: rows g and g + 8 of each of MT
// tiles of 16.
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

// The tile's queries in fragment order: of each 16 rows and 32 dimensions a lane's 8 dimensions of
// row g, then of row g + 8. q: the first token's first head of the group.
template <int DP>
__device__ __forceinline__ void load_queries(const uint16_t* q, const Tile& tile, int rows,
                                             int n_heads, uint4* out) {
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

// Adds Q K of one block of 32 dimensions. s[m][i][e]: row g + 8 (e / 2) of tile m, token 8 t + 2 i
// + e % 2.
template <int KV, int MT, int NB>
__device__ __forceinline__ void score_block(const uint4* q, int b, const uint32_t (&k)[4][4],
                                            uint4 scales, float (&s)[MT][4][4]) {
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
        for (int e = 0; e < 4; ++e)
          s[m][i][e] = __fmaf_rn(c[e], half_of(scale[i], e & 1), s[m][i][e]);
      }
    }
  }
}

// Scores of a warp's rows with one page of K.
template <int DP, int KV, int MT>
__device__ __forceinline__ void score_page(const uint8_t* k, const uint4* q, int lane,
                                           float (&s)[MT][4][4]) {
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
__device__ __forceinline__ void mask_scores(const int (&pos)[MT][2], int page, int t, int window,
                                            float (&s)[MT][4][4]) {
#pragma unroll
  for (int i = 0; i < MT * 16; ++i) {
    const int token = page * PAGE + 8 * t + i / 4 % 4 * 2 + i % 2, at = pos[i / 16][i / 2 % 2];
    if (token > at || (window > 0 && token <= at - window))
      s[i / 16][i / 4 % 4][i % 4] = -INFINITY_F;
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
__device__ __forceinline__ void store_weights(const float (&s)[MT][4][4], Sums<MT, NT>& sums,
                                              int lane, uint4* out) {
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
    for (int i = 0; i < 2; ++i)
      out[(m * WARPS * 2 + i) * 32 + lane] = make_uint4(p[i][0], p[i][1], p[i][2], p[i][3]);
  }
}

// acc += the weights of one page times its V, for the warp's tiles of dimensions.
template <int DP, int KV, int MT, int NT>
__device__ __forceinline__ void weigh_page(const uint8_t* v, const uint4* weights, int warp,
                                           int lane, float (&acc)[MT][NT][4]) {
  constexpr int PER = KV == KV_Q4R ? 2 : 1;
  const int g = lane >> 2, t = lane & 3;
  uint4 p[MT][2];
#pragma unroll
  for (int i = 0; i < MT * 2; ++i)
    p[i / 2][i % 2] = weights[(i / 2 * WARPS * 2 + i % 2) * 32 + lane];
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
__device__ __forceinline__ void add_up_rows(const Sums<MT, NT>& sums, int warp, int lane,
                                            float (*room)[16 * MT], float (&l)[MT][2]) {
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
__device__ __forceinline__ void write_row(const float (&acc)[NT][4], int h, int warp, int lane,
                                          int end, float scale, float* out) {
#pragma unroll
  for (int i = 0; i < NT * 2; ++i) {
    const int d = (warp * NT + i / 2) * 8 + 2 * (lane & 3) + i % 2;
    if (d < end) out[d] = acc[i / 2][2 * h + i % 2] * scale;
  }
}

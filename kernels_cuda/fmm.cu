// fmm.cu: y[T][rows] = x[T][K] * W[rows][K], W and x floats: F32, F16 and BF16 weights, as they are, with float32 products.
//
// A lane owns a row: 32 rows, two tiles, to a warp. Chunk i of 256 k belongs to warp i % W as in qmm.cu, its products are added in
// rising k by fma, the parts of the warps in rising order: the same bits for any number of tokens. The tensor cores have no such
// order, and would round x.
//
// A tile's layout: formats.cuh.
// fmm: grid = (ceil(T / 8), tiles / 2 / G), block = (32, W, G): G pairs of tiles share a block; blocks next to one another read the
// same rows, so that they come from L2 for all but the first.
// fmm_experts: grid = (tiles of an expert / 2 / G, items of 8 columns at most); items: experts.cuh.
#include "epilogue.cuh"
#include "experts.cuh"
#include "formats.cuh"

constexpr int STEP_BYTES = 256;  // of 16 rows: 16 bytes a row
constexpr int TOKENS = 8;

template <int Q>
__device__ constexpr int step_k() {
  return Q == F32 ? 4 : 8;
}
template <int Q>
__device__ __forceinline__ float weight(const uint4& v, int i) {
  if (Q == F32) return __uint_as_float(word(v, i));
  if (Q == F16) return half_of(word(v, i >> 1), i & 1);
  return __uint_as_float(i & 1 ? word(v, i >> 1) & 0xffff0000u : word(v, i >> 1) << 16);
}

// Four values of a token, one by one, zeros behind its end.
__device__ __forceinline__ float4 last_four(const float* x, int left) {
  float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
  if (left > 0) v.x = __ldg(x);
  if (left > 1) v.y = __ldg(x + 1);
  if (left > 2) v.z = __ldg(x + 2);
  if (left > 3) v.w = __ldg(x + 3);
  return v;
}

// o[n] += 16 bytes of a row times token n; WHOLE: all of the tokens' values are there, and lie at multiples of 16 bytes.
template <int Q, bool WHOLE>
__device__ __forceinline__ void add_step(const uint8_t* w, const float* x, int ldx, int left, int tokens, float (&o)[TOKENS]) {
  const uint4 v = load_stream(w);
#pragma unroll
  for (int half = 0; half < step_k<Q>(); half += 4)
#pragma unroll
    for (int n = 0; n < TOKENS; ++n) {
      const float* at = x + static_cast<size_t>(min(n, tokens - 1)) * ldx + half;
      const float4 u = WHOLE ? load_const<float4>(at) : last_four(at, left - half);
      o[n] = __fmaf_rn(weight<Q>(v, half), u.x, o[n]);
      o[n] = __fmaf_rn(weight<Q>(v, half + 1), u.y, o[n]);
      o[n] = __fmaf_rn(weight<Q>(v, half + 2), u.z, o[n]);
      o[n] = __fmaf_rn(weight<Q>(v, half + 3), u.w, o[n]);
    }
}

template <int Q>
__device__ __forceinline__ void row_pair(const uint8_t* w, const float* x, int ldx, int k, int tokens, int warp, int W, float (&o)[TOKENS]) {
  constexpr int K = step_k<Q>();
  const bool aligned = (ldx & 3) == 0 && (reinterpret_cast<uintptr_t>(x) & 15) == 0;
#pragma unroll 1
  for (int k0 = warp * CHUNK; k0 < k; k0 += W * CHUNK) {
    const int end = min(k0 + CHUNK, k), whole = aligned ? end - (end - k0) % K : k0;
#pragma unroll (Q == F32 ? 4 : 2)
    for (int at = k0; at < whole; at += K)
      add_step<Q, true>(w + static_cast<size_t>(at / K) * STEP_BYTES, x + at, ldx, K, tokens, o);
#pragma unroll 1
    for (int at = whole; at < end; at += K)
      add_step<Q, false>(w + static_cast<size_t>(at / K) * STEP_BYTES, x + at, ldx, k - at, tokens, o);
  }
}

// 8 tokens from token0 on, x the first's, of the pairs of tiles that are the block's.
template <int Q>
__device__ __forceinline__ void product(const uint8_t* w, const float* x, int ldx, int block, int token0, int tiles, int k, const Output& out) {
  constexpr int LD = 36;  // 32 rows and 4
  __shared__ float part[8 * TOKENS * LD];
  const int lane = threadIdx.x, warp = threadIdx.y, W = blockDim.y;
  const int tile = 2 * (block * blockDim.z + threadIdx.z);
  float* own = part + threadIdx.z * W * TOKENS * LD;
  if (tile < tiles) {
    float o[TOKENS] = {};
    const uint8_t* row = w + min(tile + (lane >> 4), tiles - 1) * float_tile_bytes<Q>(k) + (lane & 15) * 16;
    row_pair<Q>(row, x, ldx, k, out.tokens - token0, warp, W, o);
#pragma unroll
    for (int n = 0; n < TOKENS; ++n) own[(warp * TOKENS + n) * LD + lane] = o[n];
  }
  __syncthreads();
  for (int i = 0; i < 2 && tile + i < tiles; ++i)
    finish_parts<TOKENS, LD>(out, own + 16 * i, W, tile + i, token0, warp * 32 + lane, 32 * W);
}

template <int Q>
__global__ void __launch_bounds__(256, 1)  // the tokens' values in flight take the registers
    fmm(const uint8_t* __restrict__ w, const float* __restrict__ x, const float* __restrict__ bias, const float* residual, float* y,
        int tiles, int k, int T, int ldx, int rows, int ld, int epilogue) {
  const Output out = {bias, second_bias(bias, rows), residual, y, rows, T, ld, epilogue};
  const int token0 = blockIdx.x * TOKENS;
  product<Q>(w, x + static_cast<size_t>(token0) * ldx, ldx, blockIdx.y, token0, tiles, k, out);
}

template <int Q>
__global__ void __launch_bounds__(256, 1)
    fmm_experts(const uint8_t* __restrict__ w, const float* __restrict__ x, const int4* __restrict__ items,
                const float* __restrict__ bias, const float* __restrict__ bias_up, float* y, int tiles, int k, int ldx, int rows, int ld,
                int epilogue) {
  const Item item(items);
  if (!item.there()) return;
  const uint8_t* own = w + static_cast<size_t>(item.expert) * tiles * float_tile_bytes<Q>(k);
  product<Q>(own, x + item.first_column() * ldx, ldx, blockIdx.x, 0, tiles, k, item.output(bias, bias_up, y, rows, ld, epilogue));
}

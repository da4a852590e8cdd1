// qmm.cu: y[T][rows] = act[T][K] * W[rows][K] for 1 to 16 tokens, W quantized.
//
// Chunk i of 256 k belongs to warp i % W of its block, W = parts_of(chunks); a warp adds its chunks in rising order, then the
// parts of the warps are added in rising order: an output has the same bits for any number of tokens, and in qgemm.cu.
// Reading the weights once is the cost; the products fill the time between.
//
// qmm: grid = row tiles / G, block = (32, W, G): G row tiles share a block. Tiles from tiles_a on are of another tensor, of type QB.
// qmm_experts: grid = (row tiles of an expert / G, items); items: experts.cuh.
#include "dot.cuh"
#include "epilogue.cuh"
#include "experts.cuh"

template <int Q, int NT>
__device__ __forceinline__ void row_tile(const uint8_t* w, const uint8_t* act, uint32_t stride, int groups, int warp, int W, int lane,
                                         float (&o)[NT][4]) {
  const int chunks = (groups + 3) / 4;
#pragma unroll 1
  for (int i = warp; i < chunks; i += W) {
    Chunk<Q> chunk;
    chunk.load(w + static_cast<size_t>(i) * chunk_bytes<Q>(), groups - 4 * i, lane);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (!whole_chunks<Q>() && 4 * i + c >= groups) break;
      const uint8_t* x = act + static_cast<size_t>(4 * i + c) * RECORD;
      dot_group<Q, NT, false>(chunk, c, {x, x + SECOND_AT, stride, stride, NT}, lane, o);
    }
  }
}

// stride: from one column tile of activations to the next.
template <int QA, int QB, int NT>
__device__ __forceinline__ void product(const uint8_t* wa, const uint8_t* wb, const uint8_t* act, uint32_t stride, int tiles_a, int tiles,
                                        int groups, const Output& out) {
  constexpr int TOKENS = 8 * NT, LD = 20;  // 16 rows and 4: neither stores nor loads have bank conflicts
  __shared__ float part[8 * TOKENS * LD];
  const int lane = threadIdx.x, warp = threadIdx.y, W = blockDim.y, mine = threadIdx.z;
  const int tile = blockIdx.x * blockDim.z + mine;
  float* own = part + mine * W * TOKENS * LD;
  if (tile < tiles) {
    float o[NT][4] = {};
    if (QA == QB || tile < tiles_a)
      row_tile<QA, NT>(wa + tile * tile_bytes<QA>(groups), act, stride, groups, warp, W, lane, o);
    else
      row_tile<QB, NT>(wb + (tile - tiles_a) * tile_bytes<QB>(groups), act, stride, groups, warp, W, lane, o);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        own[(warp * TOKENS + n * 8 + (lane & 3) * 2 + (i & 1)) * LD + (lane >> 2) + (i >> 1) * 8] = o[n][i];
  }
  __syncthreads();
  if (tile >= tiles) return;
  finish_parts<TOKENS, LD>(out, own, W, tile, 0, warp * 32 + lane, 32 * W);
}

template <int QA, int QB, int NT>
__global__ void __launch_bounds__(256, 2)
    qmm(const uint8_t* __restrict__ wa, const uint8_t* __restrict__ wb, const uint8_t* __restrict__ act,
        const float* __restrict__ bias, const float* residual, float* y, int tiles_a, int tiles, int groups, int T, int rows,
        int ld, int epilogue) {
  const Output out = {bias, second_bias(bias, rows), residual, y, rows, T, ld, epilogue};
  product<QA, QB, NT>(wa, wb, act, column_tile_bytes(groups), tiles_a, tiles, groups, out);
}

template <int Q, int NT>
__global__ void __launch_bounds__(256, 2)
    qmm_experts(const uint8_t* __restrict__ w, const uint8_t* __restrict__ act, const int4* __restrict__ items,
                const float* __restrict__ bias, const float* __restrict__ bias_up, float* y, int tiles, int groups, int rows, int ld,
                int epilogue) {
  const Item item(items);
  if (!item.there()) return;
  const uint8_t* own = w + static_cast<size_t>(item.expert) * tiles * tile_bytes<Q>(groups);
  const uint32_t stride = column_tile_bytes(groups);
  const Output out = item.output(bias, bias_up, y, rows, ld, epilogue);
  // Of a second column tile that is not there the first is read, and nothing stored.
  product<Q, Q, NT>(own, own, act + static_cast<size_t>(item.tile) * stride, item.columns > 8 ? stride : 0, tiles, tiles, groups, out);
}

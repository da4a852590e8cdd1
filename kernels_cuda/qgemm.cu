// qgemm.cu: y[T][rows] = act[T][K] * W[rows][K] for many tokens, with the bits of qmm.cu.
//
// A warp owns 16 rows and 8 NT tokens, all of K: it walks the chunks part by part, as qmm.cu's warps share them, and adds the parts.
// The warps of a block share their tokens, which come to shared memory a group of 64 k at a time, three groups ahead; second
// digits are few and read where they lie. Weights go from global memory to the registers of the one warp that needs them.
//
// qgemm: grid = (ceil(T / (8 NT)), ceil(tiles_a / 6) + ceil(tiles_b / 6)), block = (32, 6): blocks next to one another read the same
// rows. qgemm_experts: grid = (ceil(tiles of an expert / 6), items); items: experts.cuh.
#include "dot.cuh"
#include "epilogue.cuh"
#include "experts.cuh"

constexpr int STAGES = 4, WARPS = 6;  // two blocks of six warps leave a thread 168 registers
constexpr int STAGED = SECOND_AT;  // bytes of a record that are staged: first digits and lines

// The groups of 64 k in the order of the sums.
struct Walk {
  int groups, part = 0, chunk = 0, c = 0;
  __device__ explicit Walk(int groups_) : groups(groups_) {}
  __device__ int chunks() const { return (groups + 3) / 4; }
  __device__ bool done() const { return part >= parts_of(chunks()); }
  __device__ int group() const { return 4 * chunk + c; }
  __device__ void next() {
    if (++c < 4 && group() < groups) return;
    c = 0;
    chunk += parts_of(chunks());
    if (chunk >= chunks()) chunk = ++part;
  }
};

template <int NT>
struct Stages {
  uint8_t* shared;
  const uint8_t* act;  // of the block's first column tile
  uint32_t stride;
  int tiles;  // column tiles that exist
  Walk ahead;
  int filled = 0, used = 0;

  __device__ void fill() {  // always one group of copies, empty at the end, so that waits count right
    if (!ahead.done()) {
      const uint8_t* from = act + static_cast<size_t>(ahead.group()) * RECORD;
      uint8_t* to = shared + filled * (NT * STAGED);
      for (int e = threadIdx.y * 32 + threadIdx.x; e < NT * (STAGED / 16); e += WARPS * 32) {
        const int tile = e / (STAGED / 16), piece = e % (STAGED / 16);
        cp_async16(to + e * 16, from + min(tile, tiles - 1) * stride + piece * 16);
      }
      ahead.next();
    }
    filled = (filled + 1) % STAGES;
    cp_async_commit();
  }
  // The next group, once all threads' copies of it are there; the stage used before it is filled again.
  __device__ Columns take(int group) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fill();
    const uint8_t* at = shared + used * (NT * STAGED);
    used = (used + 1) % STAGES;
    return {at, act + static_cast<size_t>(group) * RECORD + SECOND_AT, STAGED, stride, tiles};
  }
};

template <int Q, int NT>
__device__ __forceinline__ void row_tile(const uint8_t* w, bool mine, Stages<NT>& stages, int groups, int lane, volatile float (&total)[NT][4]) {
  const int chunks = (groups + 3) / 4, parts = parts_of(chunks);
#pragma unroll 1
  for (int part = 0; part < parts; ++part) {
    float o[NT][4] = {};
#pragma unroll 1
    for (int i = part; i < chunks; i += parts) {
      Chunk<Q> chunk;
      const uint8_t* at = w + static_cast<size_t>(i) * chunk_bytes<Q>();
      if (mine) chunk.load_scales(at, lane);
      if (mine) chunk.load_codes(at, 0, lane);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (!whole_chunks<Q>() && 4 * i + c >= groups) break;
        if (mine && c < 3 && (whole_chunks<Q>() || 4 * i + c + 1 < groups)) chunk.load_codes(at, c + 1, lane);
        const Columns x = stages.take(4 * i + c);
        if (mine) dot_group<Q, NT, true>(chunk, c, x, lane, o);
      }
    }
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[n][i] = part ? __fadd_rn(total[n][i], o[n][i]) : o[n][i];
  }
}

// Tokens from token0 on, whose column tiles begin at act, of row blocks from `block` on.
template <int QA, int QB, int NT>
__device__ __forceinline__ void product(const uint8_t* wa, const uint8_t* wb, const uint8_t* act, int block, int token0, int tiles_a,
                                        int tiles, int groups, const Output& out) {
  __shared__ __align__(16) uint8_t staged[STAGES * NT * STAGED];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int blocks_a = (tiles_a + WARPS - 1) / WARPS;
  const bool second = block >= blocks_a;  // of the two tensors
  const int tile = second ? tiles_a + (block - blocks_a) * WARPS + warp : block * WARPS + warp;
  const bool mine = tile < (second ? tiles : tiles_a);
  Stages<NT> stages = {staged, act, column_tile_bytes(groups), min(NT, (out.tokens - token0 + 7) / 8), Walk(groups)};
  for (int i = 0; i < STAGES - 1; ++i) stages.fill();
  volatile float total[NT][4];  // in memory: touched once a part, its registers would halve the warps of an SM
  if (QA == QB || !second)
    row_tile<QA, NT>(wa + tile * tile_bytes<QA>(groups), mine, stages, groups, lane, total);
  else
    row_tile<QB, NT>(wb + (tile - tiles_a) * tile_bytes<QB>(groups), mine, stages, groups, lane, total);
  if (!mine) return;
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = token0 + n * 8 + 2 * t + i;
      if (out.epilogue != STORE) {
        put_pair(out, tile, g, token, total[n][i], total[n][2 + i]);
        continue;
      }
      put(out, tile, g, token, total[n][i]);
      put(out, tile, g + 8, token, total[n][2 + i]);
    }
}

template <int QA, int QB, int NT>
__global__ void __launch_bounds__(32 * WARPS, 2)
    qgemm(const uint8_t* __restrict__ wa, const uint8_t* __restrict__ wb, const uint8_t* __restrict__ act,
          const float* __restrict__ bias, const float* residual, float* y, int tiles_a, int tiles, int groups, int T, int rows,
          int ld, int epilogue) {
  const Output out = {bias, second_bias(bias, rows), residual, y, rows, T, ld, epilogue};
  const uint8_t* columns = act + static_cast<size_t>(blockIdx.x) * NT * column_tile_bytes(groups);
  product<QA, QB, NT>(wa, wb, columns, blockIdx.y, blockIdx.x * (8 * NT), tiles_a, tiles, groups, out);
}

template <int Q, int NT>
__global__ void __launch_bounds__(32 * WARPS, 2)
    qgemm_experts(const uint8_t* __restrict__ w, const uint8_t* __restrict__ act, const int4* __restrict__ items,
                  const float* __restrict__ bias, const float* __restrict__ bias_up, float* y, int tiles, int groups, int rows, int ld,
                  int epilogue) {
  const Item item(items);
  if (!item.there()) return;
  const uint8_t* own = w + static_cast<size_t>(item.expert) * tiles * tile_bytes<Q>(groups);
  const uint8_t* columns = act + static_cast<size_t>(item.tile) * column_tile_bytes(groups);
  product<Q, Q, NT>(own, own, columns, blockIdx.x, 0, tiles, tiles, groups, item.output(bias, bias_up, y, rows, ld, epilogue));
}

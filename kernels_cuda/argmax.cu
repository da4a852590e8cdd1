// argmax.cu: the id of the largest logit, the lowest of equals, -1 where some logit is not finite;
// and the soft-cap of logits on the way.
#include "softcap.cuh"

enum : int { THREADS = 256, AT_ONCE = 4 };
enum : unsigned { ALL = 0xffffffffu };

// A logit and its id; id -1 beats everything: something was not finite.
struct Best {
  float value;
  int id;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  if (a.id < 0 || b.id < 0) return a.id < 0 ? a : b;
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}
__device__ __forceinline__ Best best_of_block(Best mine, Best (&room)[THREADS / 32]) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const Best other = {__shfl_xor_sync(ALL, mine.value, o), __shfl_xor_sync(ALL, mine.id, o)};
    mine = better(mine, other);
  }
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; ++i) mine = better(mine, room[i]);
  return mine;
}

// grid (chunks, rows), block THREADS: parts[row][chunk] of (value, id) pairs. logits [rows][ld];
// cap > 0: they become cap * tanh(logit / cap). Chunks are equal but the last.
extern "C" __global__ void __launch_bounds__(THREADS)
    argmax_part(float* __restrict__ logits, int ld, int n_vocab, float cap,
                float2* __restrict__ parts) {
  __shared__ Best room[THREADS / 32];
  float* row = logits + static_cast<size_t>(blockIdx.y) * ld;
  const int size = (n_vocab + gridDim.x - 1) / gridDim.x, start = blockIdx.x * size;
  const int end = min(start + size, n_vocab);
  Best mine = {-INFINITY_F, 0x7fffffff};
  for (int first = start + static_cast<int>(threadIdx.x); first < end; first += AT_ONCE * THREADS) {
    float x[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      const int i = first + j * THREADS;
      x[j] = i < end ? row[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      const int i = first + j * THREADS;
      if (i >= end) break;
      if (cap > 0.0f) row[i] = x[j] = capped(x[j], cap);
      mine = better(mine, Best{x[j], finite(x[j]) ? i : -1});
    }
  }
  mine = best_of_block(mine, room);
  if (threadIdx.x == 0)
    parts[static_cast<size_t>(blockIdx.y) * gridDim.x + blockIdx.x] =
        make_float2(mine.value, __int_as_float(mine.id));
}

// grid rows, block THREADS.
extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(const float2* __restrict__ parts, int chunks, int* __restrict__ best) {
  __shared__ Best room[THREADS / 32];
  Best mine = {-INFINITY_F, 0x7fffffff};
  for (int i = threadIdx.x; i < chunks; i += THREADS) {
    const float2 part = parts[static_cast<size_t>(blockIdx.x) * chunks + i];
    mine = better(mine, Best{part.x, __float_as_int(part.y)});
  }
  mine = best_of_block(mine, room);
  if (threadIdx.x == 0) best[blockIdx.x] = mine.id;
}

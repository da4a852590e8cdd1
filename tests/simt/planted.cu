// planted.cu: kernels with one fault each, and their sound twins: what the engine must tell apart (tests/kernels/test_simt.py).
#include "ptx.cuh"

#define KERNEL extern "C" __global__ void

// ---- sound
KERNEL reverse(float* x) {  // through shared memory, any block size up to 256
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
KERNEL warp_sum(float* x) {
  float v = x[threadIdx.x];
  for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(0xffffffffu, v, i);
  x[threadIdx.x] = v;
}
KERNEL half_warps(int* x) {  // two masks, shuffles of width 16, a vote
  const unsigned lane = threadIdx.x & 31;
  int v = static_cast<int>(lane);
  if (lane < 16)
    v = __shfl_xor_sync(0x0000ffffu, v, 1, 16);
  else
    v = __shfl_down_sync(0xffff0000u, v, 2, 16);
  x[threadIdx.x] = v + (__ballot_sync(0xffffffffu, lane & 1) == 0xaaaaaaaau ? 100 : 0);
}
KERNEL copy_waits(float* x) {
  __shared__ __align__(16) float s[128];
  cp_async16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  x[threadIdx.x] = s[127 - threadIdx.x];
}
KERNEL count_all(int* x) { atomicAdd(x, 1); }
KERNEL dynamic(float* x) {
  DYN_SHARED(float, s);
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x ^ 1];
}

// ---- wrong
KERNEL no_barrier(float* x) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
KERNEL no_second_barrier(float* x) {  // s is written again while others still read it
  __shared__ float s[256];
  for (int i = 0; i < 4; ++i) {
    s[threadIdx.x] = x[threadIdx.x] + 1.f;
    __syncthreads();
    x[threadIdx.x] = s[(threadIdx.x + 32) % blockDim.x];
  }
}
KERNEL barrier_in_branch(float* x) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    x[threadIdx.x] = 0;
    __syncthreads();
  }
}
KERNEL barrier_of_some(float* x) {
  if (threadIdx.x >= 32) __shfl_sync(0xffffffffu, 1.f, 0);
  if (threadIdx.x < 16) __syncthreads();
  x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}
KERNEL shuffle_of_some(float* x) {
  float v = x[threadIdx.x];
  if (threadIdx.x & 1) v += __shfl_xor_sync(0xffffffffu, v, 2);
  x[threadIdx.x] = v;
}
KERNEL shuffle_of_ended(float* x) {
  if (threadIdx.x >= 20) return;
  x[threadIdx.x] += __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}
KERNEL copy_does_not_wait(float* x) {
  __shared__ __align__(16) float s[128];
  cp_async16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  x[threadIdx.x] = s[127 - threadIdx.x];
}
KERNEL misaligned(float* x) { x[threadIdx.x] = load<float4>(x + 1).x; }
KERNEL misaligned_plain(float* x) { x[threadIdx.x] = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) + 2); }
KERNEL uninitialized(float* x) {
  __shared__ float s[32];
  if (threadIdx.x < 31) s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x];
}
KERNEL past_shared(float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x + 1];
}
KERNEL past_dynamic(float* x) {
  DYN_SHARED(float, s);
  s[threadIdx.x + 1] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x];
}
KERNEL past_global(float* x) { x[threadIdx.x + 1] = 1.f; }
KERNEL past_local(float* x) {
  float a[4] = {1, 2, 3, 4};
  x[0] = a[static_cast<int>(x[0])];
}
KERNEL race(float* x) { x[0] += 1.f; }
KERNEL race_of_blocks(float* x) { x[threadIdx.x] = static_cast<float>(blockIdx.x); }

// ---- one tensor core instruction: fragments as the lanes hold them
KERNEL one_imma_s8(const uint32_t* a, const uint32_t* b, int* d) {
  const uint32_t x[4] = {a[threadIdx.x * 4], a[threadIdx.x * 4 + 1], a[threadIdx.x * 4 + 2], a[threadIdx.x * 4 + 3]};
  const uint32_t y[2] = {b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]};
  const int c[4] = {1, 2, 3, 4};
  int r[4];
  imma_16832<false>(r, x, y, c);
  for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = r[i];
}
KERNEL one_imma_u8(const uint32_t* a, const uint32_t* b, int* d) {
  const uint32_t x[2] = {a[threadIdx.x * 4], a[threadIdx.x * 4 + 1]};
  const uint32_t y[1] = {b[threadIdx.x * 2]};
  const int c[4] = {0, 0, 0, 0};
  int r[4];
  imma_16816<true>(r, x, y, c);
  for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = r[i];
}
KERNEL one_mma_f16(const uint16_t* a, const uint16_t* b, float* d) {  // a [16][16], b [8][16]: through ldmatrix
  __shared__ __align__(16) uint16_t s[16 * 16];
  for (int i = 0; i < 8; ++i) s[threadIdx.x * 8 + i] = a[threadIdx.x * 8 + i];
  __syncwarp();
  uint32_t x[4];
  ldmatrix_x4(x, s + (threadIdx.x & 15) * 16 + (threadIdx.x >> 4) * 8);
  const int g = threadIdx.x >> 2, t = threadIdx.x & 3;
  const uint32_t y[2] = {load<uint32_t>(b + g * 16 + t * 2), load<uint32_t>(b + g * 16 + t * 2 + 8)};
  float r[4] = {0, 0, 0, 0};
  mma_f16(r, x, y);
  for (int i = 0; i < 4; ++i) d[(g + (i >> 1) * 8) * 8 + t * 2 + (i & 1)] = r[i];
}

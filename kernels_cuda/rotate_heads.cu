// rotate_heads.cu: turns attention's results back where K and V are stored turned (q4r).
#include "hadamard.cuh"

// x [T][n_heads * head_dim], in place: grid (T, n_heads), block head_dim rounded up to 32.
extern "C" __global__ void rotate_heads(float* __restrict__ x, int head_dim) {
  __shared__ float room[2][MAX_HEAD];
  float* head = x + (static_cast<size_t>(blockIdx.x) * gridDim.y + blockIdx.y) * head_dim;
  const int d = threadIdx.x;
  const float turned = hadamard(d < head_dim ? head[d] : 0.0f, d, head_dim, room);
  if (d < head_dim) head[d] = turned;
}

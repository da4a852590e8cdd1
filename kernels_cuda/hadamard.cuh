// hadamard.cuh: the rotation of kernels_cpu/src/kv_q4.h, one thread a dimension.
#pragma once
#include "ptx.cuh"

enum : int { MAX_HEAD = 1024 };  // dimensions of a head, and threads of a block that turns one

// x of thread d < head_dim -> its value after a Hadamard transform over blocks of the largest power
// of two that divides head_dim, divided by that power's root: its own inverse. Additions of
// neighbours, always in this order. The whole block calls it; `room` is free again for it at once.
__device__ __forceinline__ float hadamard(float x, int d, int head_dim,
                                          float (&room)[2][MAX_HEAD]) {
  const int n = head_dim & -head_dim, i = d & (n - 1), base = d - i,
            from = base + 2 * (i & (n / 2 - 1));
  int side = 0;
  for (int m = 1; m < n; m *= 2) {
    if (d < head_dim) room[side][d] = x;
    __syncthreads();
    if (d < head_dim)
      x = i < n / 2 ? room[side][from] + room[side][from + 1]
                    : room[side][from] - room[side][from + 1];
    side ^= 1;  // the next round writes where nobody reads any more
  }
  __syncthreads();
  return n > 1 ? x * (1.0f / sqrtf(static_cast<float>(n))) : x;
}

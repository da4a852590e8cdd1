// softcap.cuh: the soft-cap of a logit, for whoever reads it first.
#pragma once
#include "ptx.cuh"

__device__ __forceinline__ bool finite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// What is not finite must show.
__device__ __forceinline__ float capped(float x, float cap) {
  return finite(x) ? cap * tanhf(x / cap) : x;
}

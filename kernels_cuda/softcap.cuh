// softcap.cuh: the soft-cap of logits, by whoever reads them first.
#pragma once
#include "ptx.cuh"

__device__ __forceinline__ bool finite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// The logit at x; cap > 0: it becomes cap * tanh(logit / cap). What is not finite must show.
__device__ __forceinline__ float capped(float* x, float cap) {
  const float logit = *x;
  return cap > 0.0f && finite(logit) ? *x = cap * tanhf(logit / cap) : logit;
}

// gated.cuh: the units of a gated feed-forward layer, wherever they are computed.
#pragma once
#include "ptx.cuh"

enum Epilogue : int { STORE = 0, SILU_MUL = 1, GELU_MUL = 2, SWIGLU_OAI = 3 };

// act(gate) * up; gelu in its tanh approximation, which is gate * sigmoid(2 u); gpt-oss's with limits, by comparisons, which leave
// what is not a number as it is.
__device__ __forceinline__ float gated(float gate, float up, int epilogue) {
  float u = gate;
  if (epilogue == GELU_MUL) u = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
  if (epilogue == SWIGLU_OAI) {
    gate = gate > 7.f ? 7.f : gate;
    up = __fadd_rn(up > 7.f ? 7.f : up < -7.f ? -7.f : up, 1.f);
    u = 1.702f * gate;
  }
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.f, expf(-u))), up);
}

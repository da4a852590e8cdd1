// epilogue.cuh: what happens to the sums of a matrix product on their way to memory.
#pragma once
#include "ptx.cuh"

enum Epilogue : int { STORE = 0, SILU_MUL = 1, GELU_MUL = 2 };

struct Output {
  const float *bias, *residual;  // null: none. The bias has 16 values a tile; the residual lies as y does
  float* y;
  int rows, tokens, ld;  // y[token * ld + row]
  int epilogue;
};

// act(gate) * up; gelu in its tanh approximation, which is gate * sigmoid(2 u)
__device__ __forceinline__ float glu(float gate, float up, int epilogue) {
  float u = gate;
  if (epilogue == GELU_MUL) u = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.f, expf(-u))), up);
}

__device__ __forceinline__ float with_bias(const Output& out, int tile, int r, float v) {
  return out.bias ? __fadd_rn(v, out.bias[tile * 16 + r]) : v;
}
// Row r of the tile for a token.
__device__ __forceinline__ void put(const Output& out, int tile, int r, int token, float v) {
  const int row = tile * 16 + r;
  if (row >= out.rows || token >= out.tokens) return;
  const size_t at = static_cast<size_t>(token) * out.ld + row;
  v = with_bias(out, tile, r, v);
  out.y[at] = out.residual ? __fadd_rn(v, out.residual[at]) : v;
}
// Rows r and r + 8 of a tile whose first half is the gate's and second half the up projection's; r < 8.
__device__ __forceinline__ void put_pair(const Output& out, int tile, int r, int token, float gate, float up) {
  const int row = tile * 8 + r;
  if (row >= out.rows || token >= out.tokens) return;
  out.y[static_cast<size_t>(token) * out.ld + row] =
      glu(with_bias(out, tile, r, gate), with_bias(out, tile, r + 8, up), out.epilogue);
}

// The sums of W warps' parts, added in order: part[warp][token][LD] holds 16 rows.
template <int TOKENS, int LD>
__device__ __forceinline__ void finish_parts(const Output& out, const float* part, int W, int tile, int token0, int first, int step) {
  const bool pairs = out.epilogue != STORE;
  const int rows = pairs ? 8 : 16;
  const auto sum = [&](int token, int r) {
    float v = part[token * LD + r];
    for (int w = 1; w < W; ++w) v = __fadd_rn(v, part[(w * TOKENS + token) * LD + r]);
    return v;
  };
  for (int e = first; e < rows * TOKENS; e += step) {
    const int r = e % rows, token = e / rows;
    if (token0 + token >= out.tokens) break;
    if (pairs)
      put_pair(out, tile, r, token0 + token, sum(token, r), sum(token, r + 8));
    else
      put(out, tile, r, token0 + token, sum(token, r));
  }
}

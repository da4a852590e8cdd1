// epilogue.cuh: what happens to the sums of a matrix product on their way to memory.
#pragma once
#include "gated.cuh"

struct Output {
  const float *bias, *bias_up, *residual;  // null: none. By rows, of gate and up apart; the residual lies as y does
  float* y;
  int rows, tokens, ld;  // y[token * ld + row]
  int epilogue;
};

// Of a product with two matrices' biases behind one another: where the second begins, as rows are padded to 16.
__device__ __forceinline__ const float* second_bias(const float* bias, int rows) { return bias ? bias + (rows + 15) / 16 * 16 : nullptr; }
__device__ __forceinline__ float with_bias(const float* bias, int row, float v) { return bias ? __fadd_rn(v, bias[row]) : v; }
// Row r of the tile for a token.
__device__ __forceinline__ void put(const Output& out, int tile, int r, int token, float v) {
  const int row = tile * 16 + r;
  if (row >= out.rows || token >= out.tokens) return;
  const size_t at = static_cast<size_t>(token) * out.ld + row;
  v = with_bias(out.bias, row, v);
  out.y[at] = out.residual ? __fadd_rn(v, out.residual[at]) : v;
}
// Rows r and r + 8 of a tile whose first half is the gate's and second half the up projection's; r < 8.
__device__ __forceinline__ void put_pair(const Output& out, int tile, int r, int token, float gate, float up) {
  const int row = tile * 8 + r;
  if (row >= out.rows || token >= out.tokens) return;
  out.y[static_cast<size_t>(token) * out.ld + row] =
      gated(with_bias(out.bias, row, gate), with_bias(out.bias_up, row, up), out.epilogue);
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

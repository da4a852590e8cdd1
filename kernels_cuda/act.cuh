// act.cuh: activations as int8, in blocks of 32 with a float scale each, in the order of the B operand.
//
// Eight tokens make a column tile; its k in groups of 64, a record of RECORD bytes each, zeros where k has ended:
//   int8 q[8 tokens][64]       k = 32 j + 16 h + 4 t + i of the group is byte 16 t + 8 j + 4 h + i
//   for each block j = 0, 1:   float d[8] | x0[8] | x1[8] | d2[8], a line of 128 bytes
//   int8 q2[8 tokens][64]      the second digits, written for blocks with d2 != 0 only
// A value is d q + d2 q2, d = amax / 127, q = rint(v * (127 / amax)); x0 and x1 are the sums of the block's halves of 16 values.
// Blocks whose amax^2 is above three times the row's mean get a second digit: d2 = d / 254, q2 = rint((v - d q) * (254 / d)); the
// others have d2 = 0. Trained models have few such blocks, and most of the error of a dot product comes from them.
// A block that holds NaN or infinity has q = 0 and d = x0 = x1 = NaN; one whose amax is below 1e-36 is zero.
#pragma once
#include "ptx.cuh"

constexpr int RECORD = 1280;
constexpr int LINES_AT = 512, LINE = 128, X0_AT = 32, X1_AT = 64, D2_AT = 96;  // within a record, within a line
constexpr int SECOND_AT = 768;

// Where byte 0 of k .. k + 3 of a token stands, from the column tile's start; k is a multiple of 4.
__device__ __forceinline__ size_t digit_at(int token, int k) {
  const int r = k & 63;
  return static_cast<size_t>(k >> 6) * RECORD + token * 64 + (r >> 2 & 3) * 16 + (r >> 5) * 8 + (r >> 4 & 1) * 4;
}
// Where d of a token's block of 32 stands.
__device__ __forceinline__ size_t line_at(int token, int block) {
  return static_cast<size_t>(block >> 1) * RECORD + LINES_AT + (block & 1) * LINE + token * 4;
}
__device__ __forceinline__ size_t column_tile_bytes(int groups) { return static_cast<size_t>(groups) * RECORD; }

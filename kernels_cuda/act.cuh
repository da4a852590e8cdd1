// act.cuh: activations as int8, in blocks of 32 with a float scale each, in the order of the B operand.
//
// Eight tokens make a column tile; its k in groups of 64, a record of RECORD bytes each, zeros where k has ended:
//   int8 q[8 tokens][64]       k = 32 j + 16 h + 4 t + i of the group is byte 16 t + 8 j + 4 h + i
//   for each block j = 0, 1:   a line of 128 bytes, float {d, d, x, x} of tokens 2 p and 2 p + 1 [4 p] | x1[8] | d2[8]
//   int8 q2[8 tokens][64]      the second digits, written for blocks with d2 != 0 only
// A value is d q + d2 q2, d = amax / 127, q = rint(v * (127 / amax)); x is the sum of a block's values, x1 of
// its second half.
// Blocks whose amax^2 is above three times the row's mean get a second digit: d2 = d / 254, q2 = rint((v - d q) * (254 / d)); the
// others have d2 = 0. Trained models have few such blocks, and most of the error of a dot product comes from them.
// A block that holds NaN or infinity has q = 0 and d = x = x1 = NaN; one whose amax is below 1e-36 is zero.
#pragma once
#include "ptx.cuh"

constexpr int RECORD = 1280;
constexpr int LINES_AT = 512, LINE = 128, X1_AT = 64, D2_AT = 96;  // within a record, within a line
constexpr int SECOND_AT = 768;

// Where byte 0 of k .. k + 3 of a token stands, from the column tile's start; k is a multiple of 4.
__device__ __forceinline__ size_t digit_at(int token, int k) {
  const int r = k & 63;
  return static_cast<size_t>(k >> 6) * RECORD + token * 64 + (r >> 2 & 3) * 16 + (r >> 5) * 8 + (r >> 4 & 1) * 4;
}
// What is to be known of a token's block of 32 beside its digits.
__device__ __forceinline__ void put_line(uint8_t* column_tile, int token, int block, float d, float x, float x1, float d2) {
  uint8_t* line = column_tile + static_cast<size_t>(block >> 1) * RECORD + LINES_AT + (block & 1) * LINE;
  store<float>(line + (token >> 1) * 16 + (token & 1) * 4, d);
  store<float>(line + (token >> 1) * 16 + (token & 1) * 4 + 8, x);
  store<float>(line + X1_AT + token * 4, x1);
  store<float>(line + D2_AT + token * 4, d2);
}
__device__ __forceinline__ uint32_t column_tile_bytes(int groups) { return groups * RECORD; }

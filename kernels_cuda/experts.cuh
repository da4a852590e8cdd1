// experts.cuh: what a block of a product with experts works on.
//
// A pair of a token and one of its experts is a column. Columns stand in the order of experts, an expert's in the order of tokens, and
// an expert begins with a column tile of 8 of its own: a column tile has one expert. An item is an expert and as many of its columns
// as a block takes, int4 {expert, its column tile that comes first, columns, 0}; those behind the last have expert -1.
// Experts lie behind one another in their matrix and in their biases. Which they are the device alone knows: launches are cut for
// the most items there can be.
#pragma once
#include "epilogue.cuh"

struct Item {
  int expert, tile, columns;

  __device__ __forceinline__ explicit Item(const int4* items) {
    const int4 v = load_const<int4>(items + blockIdx.y);
    expert = v.x, tile = v.y, columns = v.z;
  }
  __device__ __forceinline__ bool there() const { return expert >= 0; }
  __device__ __forceinline__ size_t first_column() const { return static_cast<size_t>(tile) * 8; }
  __device__ __forceinline__ Output output(const float* bias, const float* bias_up, float* y, int rows, int ld, int epilogue) const {
    const size_t own = static_cast<size_t>(expert) * rows;
    return {bias ? bias + own : nullptr, bias_up ? bias_up + own : nullptr, nullptr, y + first_column() * ld, rows, columns, ld, epilogue};
  }
};

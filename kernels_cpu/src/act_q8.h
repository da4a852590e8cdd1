// act_q8.h: activations as int8 with one scale per block, and the block sums that weights with a zero point or a minimum need.
//
// Columns lie in tiles of C, C a function of M alone. Per tile and block one record, everything at fixed displacements:
//   ACT_Q8_32  (32 k) : int8 q[C][32] | float d[C] | float d*sum[C] | int32 -8*sum[C]                              44 C bytes
//   ACT_Q8_256 (256 k): int8 q[8][C][32] | float d[C] | int16 sums of 16, pairs [8][C][2] | of 32, pairs [4][C][2]  308 C bytes
// d = amax / 127, q = round to even (x * (127 / amax)). A block holding NaN or infinity gets d = NaN and codes 0, so
// that it poisons its outputs and nothing else; below 1e-36 a block is zero.
#pragma once
#include "kernels.h"
#include "simd_int.h"

namespace er {
namespace ER_ISA {
namespace q8 {

enum { REC32 = 44, REC256 = 308 };  // bytes a column
#if defined(__AVX512VNNI__)
enum { DIRECT = 12, BLOCK_C = 6 };  // columns on the weight stream; columns of a block of the byte kernel
#elif defined(__AVXVNNI__) || defined(__ARM_NEON)
enum { DIRECT = 6, BLOCK_C = 4 };
#else
enum { DIRECT = 6, BLOCK_C = 4 };
#endif

// Columns of a tile of an M-column operand: the direct kernels that exist, or the byte kernel's block.
ER_INL int tile_cols(int M) {
  if (M > DIRECT) return BLOCK_C;
  return M <= 4 ? M : M <= 6 ? 6 : M <= 8 ? 8 : 12;
}
ER_INL size_t col_tile_bytes(Act act, int K, int C) {
  return act == ACT_Q8_32 ? size_t(K / 32) * size_t(C * REC32) : size_t(K / 256) * size_t(C * REC256);
}

static size_t act_bytes(Act act, int K, int M) {
  if (act == ACT_F32) return size_t(M) * size_t(K) * 4;
  const int C = tile_cols(M);
  return size_t((M + C - 1) / C) * col_tile_bytes(act, K, C);
}

// B values -> codes and their sums by 16; returns d. Plain loops: every compiler makes vectors of them.
template <int B>
ER_INL float quantize_block(const float* x, int8_t* q, int* sum16) {
  uint32_t top = 0;  // of the absolute values' bits, which order as the values do, NaN on top
  for (int i = 0; i < B; i++) {
    uint32_t b;
    memcpy(&b, x + i, 4);
    b &= 0x7fffffffu;
    top = b > top ? b : top;
  }
  float amax;
  memcpy(&amax, &top, 4);
  if (top >= 0x7f800000u || amax < 1e-36f) {
    memset(q, 0, B);
    memset(sum16, 0, B / 16 * sizeof(int));
    return top >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
  }
  const float id = 127.0f / amax;
  for (int i = 0; i < B; i++) {  // adding 1.5 * 2^23 rounds to the nearest even integer, held in the low bits
    const float t = x[i] * id + 12582912.0f;
    int32_t b;
    memcpy(&b, &t, 4);
    q[i] = int8_t(b - 0x4b400000);
  }
  for (int s = 0; s < B / 16; s++) {
    int sum = 0;
    for (int i = 0; i < 16; i++) sum += q[s * 16 + i];
    sum16[s] = sum;
  }
  return amax / 127.0f;
}

static void quantize32(const float* x, int K, int C, int c, uint8_t* tile) {
  for (int b = 0; b < K / 32; b++, x += 32, tile += C * REC32) {
    alignas(64) int s[2];
    const float d = quantize_block<32>(x, (int8_t*)tile + c * 32, s);
    const int sum = s[0] + s[1], zero = -8 * sum;
    const float ds = d * float(sum);
    memcpy(tile + C * 32 + c * 4, &d, 4);
    memcpy(tile + C * 36 + c * 4, &ds, 4);
    memcpy(tile + C * 40 + c * 4, &zero, 4);
  }
}

static void quantize256(const float* x, int K, int C, int c, uint8_t* tile) {
  for (int b = 0; b < K / 256; b++, x += 256, tile += C * REC256) {
    alignas(64) int8_t q[256];
    alignas(64) int s[16];
    const float d = quantize_block<256>(x, q, s);
    for (int i = 0; i < 8; i++) memcpy(tile + (i * C + c) * 32, q + i * 32, 32);
    uint8_t* meta = tile + C * 256;
    memcpy(meta + c * 4, &d, 4);
    for (int p = 0; p < 8; p++) {
      const int16_t v[2] = {int16_t(s[2 * p]), int16_t(s[2 * p + 1])};
      memcpy(meta + C * 4 + (p * C + c) * 4, v, 4);
    }
    for (int p = 0; p < 4; p++) {
      const int16_t v[2] = {int16_t(s[4 * p] + s[4 * p + 1]), int16_t(s[4 * p + 2] + s[4 * p + 3])};
      memcpy(meta + C * 36 + (p * C + c) * 4, v, 4);
    }
  }
}

static void quantize(Act act, const float* x, int64_t ldx, int K, int M, int m0, int m1, uint8_t* out) {
  const int C = tile_cols(M);
  for (int m = m0; m < m1; m++) {
    const float* row = x + m * ldx;
    if (act == ACT_F32) {
      memcpy(out + size_t(m) * size_t(K) * 4, row, size_t(K) * 4);
      continue;
    }
    uint8_t* tile = out + size_t(m / C) * col_tile_bytes(act, K, C);
    if (act == ACT_Q8_32) quantize32(row, K, C, m % C, tile);
    else quantize256(row, K, C, m % C, tile);
  }
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

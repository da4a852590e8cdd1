// act_q8.h: activations as int8, in blocks of 32 with a scale each, and the block sums that weights with a zero point or a
// minimum need. One format for every quantized weight type, so that one copy serves all that share an input.
//
// Columns lie in tiles of C, C a function of M alone. Per tile and block one record, everything at fixed displacements:
//   int8 q[C][32] | float d[C] | float x[C] | int32 -8*sum[C] | int16 pairs sum16[C][2]                         48 C bytes
// d = amax / 127, q = round to even (v * (127 / amax)), sum = of the codes, x = of the values. A block holding NaN or
// infinity gets d = NaN and codes 0, so that it poisons its outputs and nothing else; below 1e-36 a block is zero.
//
// Second digit: in trained models a few blocks tower over the rest, and their rounding error is most of the error of a dot
// product. Blocks whose amax^2 exceeds twice the column's mean (fewer than half, about a tenth in practice) get another
// int8 digit for what the first one left: q2 = round((v - d q) * 254 / d), d2 = d / 254. It is summed apart from the
// first digits. Measured on Gemma 3 270M it halves the noise of the logits; without it greedy text strays from the float model.
// A tile's records are followed by its columns' second digits, each: int32 n, block index[n] | records of one column
// (x = 0: the first digit's x counts both) from a line of their own.
#pragma once
#include "kernels.h"
#include "simd_int.h"

namespace er {
namespace ER_ISA {
namespace q8 {

enum { REC = 48 };  // bytes a column
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
ER_INL size_t second_index_bytes(int K) { return (size_t(K / 64 + 1) * 4 + 63) / 64 * 64; }
ER_INL size_t second_bytes(int K) { return second_index_bytes(K) + (size_t(K / 64) * REC + 63) / 64 * 64; }
ER_INL size_t first_bytes(int K, int C) { return (size_t(K / 32) * size_t(C * REC) + 63) / 64 * 64; }
ER_INL size_t col_tile_bytes(int K, int C) { return first_bytes(K, C) + size_t(C) * second_bytes(K); }
ER_INL const uint8_t* second_of(const uint8_t* act, int K, int C, int m) {
  return act + size_t(m / C) * col_tile_bytes(K, C) + first_bytes(K, C) + size_t(m % C) * second_bytes(K);
}

static size_t act_bytes(Act act, int K, int M) {
  if (act == ACT_F32) return size_t(M) * size_t(K) * 4;
  const int C = tile_cols(M);
  return size_t((M + C - 1) / C) * col_tile_bytes(K, C);
}

// The largest absolute value of 32, NaN and infinity above all: their bits order as the values do.
ER_INL float top_of(const float* v) {
  uint32_t top = 0;
  for (int i = 0; i < 32; i++) {
    uint32_t b;
    memcpy(&b, v + i, 4);
    b &= 0x7fffffffu;
    top = b > top ? b : top;
  }
  float amax;
  memcpy(&amax, &top, 4);
  return amax;
}
ER_INL bool usable(float amax) { return amax >= 1e-36f && amax < __builtin_inff(); }

// codes = round to even (v * scale), |v * scale| <= 127. Adding 1.5 * 2^23 leaves the integer in the low bits.
ER_INL void round_codes(const float* v, float scale, int8_t* q) {
  for (int i = 0; i < 32; i++) {
    const float t = v[i] * scale + 12582912.0f;
    int32_t b;
    memcpy(&b, &t, 4);
    q[i] = int8_t(b - 0x4b400000);
  }
}
// What follows the codes of column c in a tile of C: `rec` is the block's record.
ER_INL int store_sums(uint8_t* rec, int C, int c, const int8_t* q, float d) {
  int s[2] = {0, 0};
  for (int i = 0; i < 16; i++) s[0] += q[i], s[1] += q[i + 16];
  const int zero = -8 * (s[0] + s[1]);
  const int16_t pair[2] = {int16_t(s[0]), int16_t(s[1])};
  memcpy(rec + C * 32 + c * 4, &d, 4);
  memcpy(rec + C * 40 + c * 4, &zero, 4);
  memcpy(rec + C * 44 + c * 4, pair, 4);
  return s[0] + s[1];
}

// The second digit of a block, as a record of one column; returns the sum of its values.
ER_INL float quantize_second(const float* v, float d, const int8_t* q, uint8_t* rec) {
  alignas(64) float rest[32];
  for (int i = 0; i < 32; i++) rest[i] = v[i] - d * float(q[i]);
  round_codes(rest, 254.0f / d, (int8_t*)rec);
  const float d2 = d / 254.0f, none = 0.0f;
  memcpy(rec + 36, &none, 4);
  return d2 * float(store_sums(rec, 1, 0, (const int8_t*)rec, d2));
}

static void quantize_q8(const float* v, int K, int C, int c, uint8_t* tile) {
  const int nb = K / 32;
  float squares = 0;
  for (int b = 0; b < nb; b++) {
    const float a = top_of(v + b * 32);
    squares += a * a;
  }
  const float bar = 2.0f * squares / float(nb);  // NaN and infinity: no block is above
  uint8_t* second = tile + first_bytes(K, C) + size_t(c) * second_bytes(K);
  int32_t n = 0;
  for (int b = 0; b < nb; b++, v += 32) {
    uint8_t* rec = tile + size_t(b) * size_t(C * REC);
    int8_t* q = (int8_t*)rec + c * 32;
    const float a = top_of(v);
    float d = a / 127.0f, x = 0;
    if (usable(a)) {
      round_codes(v, 127.0f / a, q);
    } else {
      memset(q, 0, 32);
      d = a < 1.0f ? 0.0f : __builtin_nanf("");
      x = d;
    }
    const int sum = store_sums(rec, C, c, q, d);
    if (usable(a)) x = d * float(sum);
    if (usable(a) && a * a > bar && n < K / 64) {
      memcpy(second + 4 + 4 * n, &b, 4);
      x += quantize_second(v, d, q, second + second_index_bytes(K) + size_t(n++) * REC);
    }
    memcpy(rec + C * 36 + c * 4, &x, 4);
  }
  memcpy(second, &n, 4);
}

static void quantize(Act act, const float* x, int64_t ldx, int K, int M, int m0, int m1, uint8_t* out) {
  const int C = tile_cols(M);
  for (int m = m0; m < m1; m++) {
    const float* row = x + m * ldx;
    if (act == ACT_F32) {
      memcpy(out + size_t(m) * size_t(K) * 4, row, size_t(K) * 4);
      continue;
    }
    quantize_q8(row, K, C, m % C, out + size_t(m / C) * col_tile_bytes(K, C));
  }
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// dequant_small.h: blocks of the formats without a codebook: one-bit Q1_0, ternary TQ1_0 and TQ2_0, and NVFP4. The bits are those of
// the gguf package's dequantizer. Layouts after ggml-common.h (block_q1_0, block_tq1_0, block_tq2_0, block_nvfp4).
#pragma once
#include "dequant_iq.h"

namespace er {
namespace ER_ISA {
namespace deq {

struct Q1_0 {  // f16 d; 128 bits: d where set, -d where not
  enum { TYPE = 41, VALUES = 128, BYTES = 18, GRID = -1 };
  ER_INL void block(const uint8_t* b, const int8_t*, float* out) {
    const float d = f16(b);
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 8; j++) out[8 * i + j] = b[2 + i] >> j & 1 ? d : -d;
  }
};

struct TQ1_0 {  // 48 x u8 of five base-3 digits, 4 x u8 of four; f16 d. A byte holds its digits as a fraction of 256.
  enum { TYPE = 34, VALUES = 256, BYTES = 54, GRID = -1 };
  ER_INL void digits(const uint8_t* q, int bytes, int count, float d, float*& out) {
    uint32_t power = 1;
    for (int n = 0; n < count; n++, power *= 3, out += bytes)
      for (int i = 0; i < bytes; i++) out[i] = d * float(int((q[i] * power & 255) * 3 >> 8) - 1);
  }
  ER_INL void block(const uint8_t* b, const int8_t*, float* out) {
    const float d = f16(b + 52);
    digits(b, 32, 5, d, out);
    digits(b + 32, 16, 5, d, out);
    digits(b + 48, 4, 4, d, out);
  }
};

struct TQ2_0 {  // 64 x u8 of four 2-bit digits; f16 d
  enum { TYPE = 35, VALUES = 256, BYTES = 66, GRID = -1 };
  ER_INL void block(const uint8_t* b, const int8_t*, float* out) {
    const float d = f16(b + 64);
    for (int half = 0; half < 2; half++)
      for (int n = 0; n < 4; n++, out += 32)
        for (int i = 0; i < 32; i++) out[i] = d * float(int(b[32 * half + i] >> 2 * n & 3) - 1);
  }
};

// Half of an unsigned E4M3 value (bias 7), since the E2M1 codes below are doubled. 0x7f is NaN in the OCP format and 0 here,
// as in ggml; the sign bit is ignored.
ER_INL float half_e4m3(uint8_t x) {
  if (x == 0x7f) return 0.0f;
  const uint32_t e = x >> 3 & 15, m = x & 7;
  if (!e) return float(m) * (1.0f / 1024);
  const uint32_t bits = (e + 119) << 23 | m << 20;
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

struct NVFP4 {  // 4 x u8 E4M3 scale; 4 x 8 x u8: low nibbles values 0..7, high nibbles 8..15
  enum { TYPE = 40, VALUES = 64, BYTES = 36, GRID = -1 };
  ER_INL void block(const uint8_t* b, const int8_t*, float* out) {
    static const float e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int s = 0; s < 4; s++, out += 16) {
      const float d = half_e4m3(b[s]);
      for (int i = 0; i < 8; i++) {
        const uint8_t q = b[4 + 8 * s + i];
        out[i] = d * e2m1[q & 15];
        out[i + 8] = d * e2m1[q >> 4];
      }
    }
  }
};

}  // namespace deq
}  // namespace ER_ISA
}  // namespace er

// dequant_iq.h: 256-value blocks of ggml's IQ1, IQ2 and IQ3 formats to float. Each value is
// scale * codebook entry (* sign); every product is exact in float32 but for the last, so the bits are those of the
// gguf package's dequantizer. Layouts after ggml-common.h (block_iq1_s ... block_iq3_s).
#pragma once
#include "grids.h"
#include "vec16.h"

namespace er {
namespace ER_ISA {
namespace deq {

ER_INL float f16(const uint8_t* p) {
  alignas(32) uint16_t h[16] = {};
  memcpy(h, p, 2);
  alignas(64) float f[16];
  store(f, load_f16(h));
  return f[0];
}
ER_INL uint32_t u16(const uint8_t* p) { uint16_t v; memcpy(&v, p, 2); return v; }
ER_INL uint32_t u32(const uint8_t* p) { uint32_t v; memcpy(&v, p, 4); return v; }

// out[i] = scale * code[i], negated where bit i of signs is set.
template <int N>
ER_INL void signed_codes(float* out, float scale, const int8_t* code, uint32_t signs) {
  for (int i = 0; i < N; i++) {
    const float v = scale * float(code[i]);
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits ^= (signs >> i & 1) << 31;
    memcpy(out + i, &bits, 4);
  }
}

// Seven stored sign bits; the eighth makes their number even.
ER_INL uint32_t even_signs(uint32_t s) { return s | uint32_t(__builtin_parity(s)) << 7; }

struct IQ2_XXS {  // f16 d; 8 x (4 x u8 code, u32: 4 x 7 sign bits, 4 bits scale)
  enum { TYPE = 16, VALUES = 256, BYTES = 66, GRID = GRID_IQ2_XXS };
  ER_INL void block(const uint8_t* b, const int8_t* grid, float* out) {
    const float d = f16(b);
    for (int i = 0; i < 8; i++, out += 32) {
      const uint8_t* q = b + 2 + 8 * i;
      const uint32_t s = u32(q + 4);
      const float db = d * (0.5f + float(s >> 28)) * 0.25f;
      for (int j = 0; j < 4; j++) signed_codes<8>(out + 8 * j, db, grid + 8 * q[j], even_signs(s >> 7 * j & 127));
    }
  }
};

struct IQ2_XS {  // f16 d; 32 x u16 (9 bits code, 7 sign bits); 16 x 4 bits scale
  enum { TYPE = 17, VALUES = 256, BYTES = 74, GRID = GRID_IQ2_XS };
  ER_INL void block(const uint8_t* b, const int8_t* grid, float* out) {
    const float d = f16(b);
    const uint8_t* scales = b + 66;
    for (int i = 0; i < 32; i++, out += 8) {
      const uint32_t q = u16(b + 2 + 2 * i);
      const float db = d * (0.5f + float(scales[i / 4] >> 4 * (i / 2 % 2) & 15)) * 0.25f;
      signed_codes<8>(out, db, grid + 8 * (q & 511), even_signs(q >> 9));
    }
  }
};

struct IQ2_S {  // f16 d; 32 x u8 code; 32 x u8 signs; 8 x u8 high code bits; 16 x 4 bits scale
  enum { TYPE = 22, VALUES = 256, BYTES = 82, GRID = GRID_IQ2_S };
  ER_INL void block(const uint8_t* b, const int8_t* grid, float* out) {
    const float d = f16(b);
    const uint8_t *code = b + 2, *signs = b + 34, *high = b + 66, *scales = b + 74;
    for (int i = 0; i < 32; i++, out += 8) {
      const uint32_t q = code[i] | (high[i / 4] >> 2 * (i % 4) & 3u) << 8;
      const float db = d * (0.5f + float(scales[i / 4] >> 4 * (i / 2 % 2) & 15)) * 0.25f;
      signed_codes<8>(out, db, grid + 8 * q, signs[i]);
    }
  }
};

struct IQ3_XXS {  // f16 d; 64 x u8 code; 8 x u32 (4 x 7 sign bits, 4 bits scale)
  enum { TYPE = 18, VALUES = 256, BYTES = 98, GRID = GRID_IQ3_XXS };
  ER_INL void block(const uint8_t* b, const int8_t* grid, float* out) {
    const float d = f16(b);
    for (int i = 0; i < 8; i++, out += 32) {
      const uint8_t* q = b + 2 + 8 * i;
      const uint32_t s = u32(b + 66 + 4 * i);
      const float db = d * (0.5f + float(s >> 28)) * 0.5f;
      for (int j = 0; j < 4; j++) {
        const uint32_t signs = even_signs(s >> 7 * j & 127);
        signed_codes<4>(out + 8 * j, db, grid + 4 * q[2 * j], signs);
        signed_codes<4>(out + 8 * j + 4, db, grid + 4 * q[2 * j + 1], signs >> 4);
      }
    }
  }
};

struct IQ3_S {  // f16 d; 64 x u8 code; 8 x u8 high code bits; 32 x u8 signs; 8 x 4 bits scale
  enum { TYPE = 21, VALUES = 256, BYTES = 110, GRID = GRID_IQ3_S };
  ER_INL void block(const uint8_t* b, const int8_t* grid, float* out) {
    const float d = f16(b);
    const uint8_t *code = b + 2, *high = b + 66, *signs = b + 74, *scales = b + 106;
    for (int i = 0; i < 64; i++, out += 4) {
      const uint32_t q = code[i] | (high[i / 8] >> i % 8 & 1u) << 8;
      const float db = d * float(1 + 2 * (scales[i / 16] >> 4 * (i / 8 % 2) & 15));
      signed_codes<4>(out, db, grid + 4 * q, uint32_t(signs[i / 2]) >> 4 * (i % 2));
    }
  }
};

// scale * (code + delta), codes -1, 0, 1.
ER_INL void shifted_codes(float* out, float scale, const int8_t* code, float delta) {
  for (int i = 0; i < 8; i++) out[i] = scale * (float(code[i]) + delta);
}

struct IQ1_S {  // f16 d; 32 x u8 code; 8 x u16 (4 x 3 high code bits, 3 bits scale, sign of delta)
  enum { TYPE = 19, VALUES = 256, BYTES = 50, GRID = GRID_IQ1_S };
  ER_INL void block(const uint8_t* b, const int8_t* grid, float* out) {
    const float d = f16(b);
    for (int i = 0; i < 8; i++, out += 32) {
      const uint32_t h = u16(b + 34 + 2 * i);
      const float dl = d * float(2 * (h >> 12 & 7) + 1), delta = h & 0x8000 ? -0.125f : 0.125f;
      for (int j = 0; j < 4; j++)
        shifted_codes(out + 8 * j, dl, grid + 8 * (b[2 + 4 * i + j] | (h >> 3 * j & 7) << 8), delta);
    }
  }
};

struct IQ1_M {  // 32 x u8 code; 32 x (3 high code bits, sign of delta); 4 x u16 (4 x 3 bits scale, a quarter of f16 d)
  enum { TYPE = 29, VALUES = 256, BYTES = 56, GRID = GRID_IQ1_S };
  ER_INL void block(const uint8_t* b, const int8_t* grid, float* out) {
    const uint8_t *high = b + 32, *scales = b + 48;
    uint16_t half = 0;
    for (int i = 0; i < 4; i++) half = uint16_t(half | (u16(scales + 2 * i) >> 12) << 4 * i);
    const float d = f16((const uint8_t*)&half);
    for (int i = 0; i < 32; i++, out += 8) {
      const uint32_t h = high[i / 2] >> 4 * (i % 2) & 15u;
      const float dl = d * float(2 * (u16(scales + 2 * (i / 8)) >> 3 * (i / 2 % 4) & 7) + 1);
      shifted_codes(out, dl, grid + 8 * (b[i] | (h & 7) << 8), h & 8 ? -0.125f : 0.125f);
    }
  }
};

}  // namespace deq
}  // namespace ER_ISA
}  // namespace er

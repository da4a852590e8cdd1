// format_q32.h: the ggml types with blocks of 32, as a file holds them and as a tile holds them.
// File block: scale (fp16, or one exponent byte) | min fp16 | 4 bytes of fifth bits | codes, k and k + 16 in one byte.
// Tile unit, U blocks of R rows: [U][R] scales | [R] mins (U = 1 then) | U x VEC registers. Same codes, same scales.
// U makes the scales whole lines at R = 16; a K that leaves part of a unit open pads it.
#pragma once
#include "codes.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// Powers of two: what a code's zero point is. SIGNED8 sets keep full bytes signed, with none.
enum { NO_ZERO = -1, ZERO8 = 3, ZERO16 = 4, ZERO_BYTE = SIGNED8 ? int(NO_ZERO) : 7 };

template <int ID, int U_, int SCALE_, int MIN_, int ZERO_, class Codes_>
struct Format32 {
  typedef Codes_ Codes;
  enum { TYPE = ID, U = U_, SCALE = SCALE_, MIN = MIN_, ZERO = ZERO_, NS = 0 };
  enum { FIFTH = SCALE + MIN * 2, CODES = FIFTH + (Codes::VEC == 5 ? 4 : 0), FILE = CODES + (Codes::VEC == 8 ? 32 : 16) };
  enum { HEAD = (U * SCALE + MIN * 2) * R, BLOCK = Codes::VEC * VB, UNIT = HEAD + U * BLOCK };

  ER_INL vf scale(const uint8_t* p) {
    if constexpr (SCALE == 1) return e8m0(p);
    else return h2f(p);
  }
};
struct Q4_0 : Format32<2, 2, 2, 0, ZERO8, Nib> {};
struct Q4_1 : Format32<3, 1, 2, 1, NO_ZERO, Nib> {};
struct Q5_0 : Format32<6, 2, 2, 0, ZERO16, Nib5> {};
struct Q5_1 : Format32<7, 1, 2, 1, NO_ZERO, Nib5> {};
struct Q8_0 : Format32<8, 2, 2, 0, ZERO_BYTE, Byte> {};
struct IQ4_NL : Format32<20, 2, 2, 0, ZERO_BYTE, Lut<Iq4Values>> {};
struct MXFP4 : Format32<39, 4, 1, 0, ZERO16, Lut<Mxfp4Values>> {};

template <class T>
static size_t tile_bytes32(int K) { return size_t((K / 32 + T::U - 1) / T::U) * size_t(T::UNIT); }

// One file block's codes as eight dwords.
template <class T>
ER_INL void read32(const uint8_t* b, uint32_t* w) {
  if constexpr (T::Codes::VEC == 8) {
    memcpy(w, b + T::CODES, 32);
  } else {
    memcpy(w, b + T::CODES, 16);
    for (int j = 0; j < 4; j++) w[j + 4] = (w[j] >> 4) & W4, w[j] &= W4;
  }
  if constexpr (T::Codes::VEC == 5) {
    uint32_t h;
    memcpy(&h, b + T::FIFTH, 4);
    // four bits to bit 4 of four bytes: the product puts bit i at bits i + {0, 7, 14, 21}
    for (int j = 0; j < 8; j++, h >>= 4) w[j] |= (((h & 15) * 0x00204081u) & W1) << 4;
  }
}

template <class T>
static void pack32(const uint8_t* src, size_t row_bytes, int rows, int K, uint8_t* dst) {
  const int nb = K / 32;
  memset(dst, 0, tile_bytes32<T>(K));
  for (int b = 0; b < nb; b++) {
    uint8_t* unit = dst + size_t(b / T::U) * T::UNIT;
    const int h = b % T::U;
    for (int r = 0; r < rows; r++) {
      const uint8_t* f = src + size_t(r) * row_bytes + size_t(b) * T::FILE;
      memcpy(unit + (h * R + r) * T::SCALE, f, T::SCALE);
      if (T::MIN) memcpy(unit + (R + r) * 2, f + T::SCALE, 2);
      alignas(64) uint32_t w[8];
      read32<T>(f, w);
      T::Codes::put(w, unit + T::HEAD + h * T::BLOCK, r);
    }
  }
}

ER_INL float half_to_float1(const uint8_t* p) {
  alignas(64) uint8_t t[2 * R] = {};
  alignas(64) float f[R];
  memcpy(t, p, 2);
  stf(f, h2f(t));
  return f[0];
}
template <class T>
ER_INL float scale1(const uint8_t* p) {
  alignas(64) uint8_t t[2 * R] = {};
  alignas(64) float f[R];
  memcpy(t, p, T::SCALE);
  stf(f, T::scale(t));
  return f[0];
}

// A plain code's value.
template <class V>
ER_INL float table_value(const Lut<V>*, uint8_t q, int) { return float(V::v[q & 15]); }
ER_INL float table_value(const Byte*, uint8_t q, int) { return float(int8_t(q)); }
template <class C>
ER_INL float table_value(const C*, uint8_t q, int zero) { return float(int(q) - zero); }
template <class T>
ER_INL float value_of(uint8_t q) { return table_value((const typename T::Codes*)nullptr, q, T::ZERO < 0 ? 0 : 1 << (T::ZERO & 15)); }

template <class T>
static void unpack_row32(const uint8_t* tile, int r, int K, float* out) {
  for (int b = 0; b < K / 32; b++) {
    const uint8_t* unit = tile + size_t(b / T::U) * T::UNIT;
    const int h = b % T::U;
    const float d = scale1<T>(unit + (h * R + r) * T::SCALE);
    const float m = T::MIN ? half_to_float1(unit + (R + r) * 2) : 0.0f;
    alignas(64) uint32_t w[8];
    alignas(64) uint8_t q[32];
    T::Codes::take(unit + T::HEAD + h * T::BLOCK, r, w);
    memcpy(q, w, 32);
    for (int i = 0; i < 32; i++) {
      const float v = d * value_of<T>(q[i]);
      out[b * 32 + i] = T::MIN ? v + m : v;
    }
  }
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

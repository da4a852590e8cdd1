// codes.h: how 32 consecutive codes of R rows lie in registers. Dword j (codes 4j .. 4j+3) of row r is lane r.
// Each kind has VEC registers per 32 k, get<J> (dword j of all rows, ready for the dot product), and put / take: one row's
// eight dwords of plain codes into and out of the same place.
//   Nib    dword j in nibble j & 1 of register j / 2       Nib5  Nib, then bit 4 of dword j as bit j of register 4
//   Two    dword j at bits 2 (j & 3) of register j / 4     Three Two, then bit 2 of dword j as bit j of register 2
//   Six    Nib, then bits 4-5 of dword j at 2 (j & 3) of register 4 + j / 4
//   Byte   dword j is register j                           Lut   Nib through a table of 16 values
#pragma once
#include "simd_int.h"

namespace er {
namespace ER_ISA {
namespace q8 {

ER_INL uint32_t word(const uint8_t* v, int i, int r) { uint32_t w; memcpy(&w, v + i * VB + r * 4, 4); return w; }
ER_INL void put_word(uint8_t* v, int i, int r, uint32_t w) { memcpy(v + i * VB + r * 4, &w, 4); }
// Shifts both ways by a constant: bit FROM of each byte to bit TO; the neighbours' bits must be masked away.
template <int FROM, int TO>
ER_INL vi move(vi x) {
  if constexpr (FROM < TO) return sll16<TO - FROM>(x);
  else if constexpr (FROM > TO) return srl16<FROM - TO>(x);
  else return x;
}
enum : uint32_t { W1 = 0x01010101u, W3 = 0x03030303u, W4 = 0x0f0f0f0fu };

struct Nib {
  enum { VEC = 4, BITS = 4 };
  template <int J> ER_INL vi get(const uint8_t* v) { return and_(move<J % 2 * 4, 0>(ldi(v + J / 2 * VB)), all8(15)); }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    for (int i = 0; i < 4; i++) put_word(v, i, r, (w[2 * i] & W4) | (w[2 * i + 1] & W4) << 4);
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    for (int j = 0; j < 8; j++) w[j] = (word(v, j / 2, r) >> (j % 2 * 4)) & W4;
  }
};

struct Nib5 {
  enum { VEC = 5, BITS = 5 };
  template <int J> ER_INL vi get(const uint8_t* v) {
    const vi low = move<J % 2 * 4, 0>(ldi(v + J / 2 * VB)), high = move<J, 4>(ldi(v + 4 * VB));
    return and_(sel(all8(15), low, high), all8(31));
  }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    Nib::put(w, v, r);
    uint32_t h = 0;
    for (int j = 0; j < 8; j++) h |= ((w[j] >> 4) & W1) << j;
    put_word(v, 4, r, h);
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    Nib::take(v, r, w);
    for (int j = 0; j < 8; j++) w[j] |= ((word(v, 4, r) >> j) & W1) << 4;
  }
};

struct Two {
  enum { VEC = 2, BITS = 2 };
  template <int J> ER_INL vi get(const uint8_t* v) { return and_(move<J % 4 * 2, 0>(ldi(v + J / 4 * VB)), all8(3)); }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    for (int i = 0; i < 2; i++) {
      uint32_t x = 0;
      for (int j = 0; j < 4; j++) x |= (w[4 * i + j] & W3) << 2 * j;
      put_word(v, i, r, x);
    }
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    for (int j = 0; j < 8; j++) w[j] = (word(v, j / 4, r) >> (j % 4 * 2)) & W3;
  }
};

struct Three {
  enum { VEC = 3, BITS = 3 };
  template <int J> ER_INL vi get(const uint8_t* v) {
    const vi low = move<J % 4 * 2, 0>(ldi(v + J / 4 * VB)), high = move<J, 2>(ldi(v + 2 * VB));
    return and_(sel(all8(3), low, high), all8(7));
  }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    Two::put(w, v, r);
    uint32_t h = 0;
    for (int j = 0; j < 8; j++) h |= ((w[j] >> 2) & W1) << j;
    put_word(v, 2, r, h);
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    Two::take(v, r, w);
    for (int j = 0; j < 8; j++) w[j] |= ((word(v, 2, r) >> j) & W1) << 2;
  }
};

struct Six {
  enum { VEC = 6, BITS = 6 };
  template <int J> ER_INL vi get(const uint8_t* v) {
    const vi low = move<J % 2 * 4, 0>(ldi(v + J / 2 * VB)), high = move<J % 4 * 2, 4>(ldi(v + (4 + J / 4) * VB));
    return and_(sel(all8(15), low, high), all8(63));
  }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    Nib::put(w, v, r);
    for (int i = 0; i < 2; i++) {
      uint32_t x = 0;
      for (int j = 0; j < 4; j++) x |= ((w[4 * i + j] >> 4) & W3) << 2 * j;
      put_word(v, 4 + i, r, x);
    }
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    Nib::take(v, r, w);
    for (int j = 0; j < 8; j++) w[j] |= ((word(v, 4 + j / 4, r) >> (j % 4 * 2)) & W3) << 4;
  }
};

struct Byte {
  enum { VEC = 8, BITS = 8 };
  static constexpr uint32_t FLIP = SIGNED8 ? 0 : 0x80808080u;
  template <int J> ER_INL vi get(const uint8_t* v) { return ldi(v + J * VB); }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) { for (int j = 0; j < 8; j++) put_word(v, j, r, w[j] ^ FLIP); }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) { for (int j = 0; j < 8; j++) w[j] = word(v, j, r) ^ FLIP; }
};

// The two tables of the ggml formats; MXFP4's values are the e2m1 numbers doubled.
struct Iq4Values {
  enum { BITS = 8 };
  static constexpr int8_t v[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
};
struct Mxfp4Values {
  enum { BITS = 5 };
  static constexpr int8_t v[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};
// Values are offset to be unsigned (by 16 or 128, the format's ZERO) unless 8-bit codes are signed here.
template <class T>
struct Lut {
  enum { VEC = 4, BITS = T::BITS };
  struct Table { alignas(16) uint8_t v[16]; };
  static constexpr Table table() {
    Table t{};
    const int offset = BITS == 8 ? (SIGNED8 ? 0 : 128) : 16;
    for (int i = 0; i < 16; i++) t.v[i] = uint8_t(T::v[i] + offset);
    return t;
  }
  static constexpr Table offset_table = table();
  template <int J> ER_INL vi get(const uint8_t* v) { return lut16(table16(offset_table.v), Nib::get<J>(v)); }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) { Nib::put(w, v, r); }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) { Nib::take(v, r, w); }
};

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// codes.h: how 32 consecutive codes of R rows lie in registers. Dword j (codes 4j .. 4j+3) of row r is lane r.
// Each kind has VEC registers per 32 k, get<J> (dword j of all rows, ready for the dot product), and put / take: one row's
// eight dwords of plain codes into and out of the same place.
//   Nib    dword j in nibble j & 1 of register j / 2       Two    dword j at bits 2 (j & 3) of register j / 4
//   Byte   dword j is register j                           Lut    Nib through a table of 16 values
// In the others register i holds dword i at its low bits, and what bits are left above hold the dwords that are left:
//   Nib5   dword 5: register 0 bits 5-7, 1 bits 6-7        Three  dword 3 + i: register i bits 3-5
//          dword 6: register 2 bits 5-7, 3 bits 6-7               dword 6: register 0 bits 6-7, 2 bit 6
//          dword 7: register 4 bits 5-7, 1 bit 5, 3 bit 5         dword 7: register 1 bits 6-7, 2 bit 7
//   Six    dword 6: bits 6-7 of registers 0, 1, 2          dword 7: of 3, 4, 5
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
// Bits FROM .. FROM + WIDTH - 1 of each byte to bit TO, the others 0.
template <int FROM, int TO, int WIDTH>
ER_INL vi bits(vi x) {
#if defined(ER_BIT_MATRIX)
  if constexpr (FROM != TO) return bit_matrix<FROM, TO, WIDTH>(x);
#endif
  return and_(move<FROM, TO>(x), all8(((1 << WIDTH) - 1) << TO));
}
// The same of register i of a block.
template <int FROM, int TO, int WIDTH>
ER_INL vi bits(const uint8_t* v, int i) { return bits<FROM, TO, WIDTH>(ldi(v + i * VB)); }
// Register i of a block with bits N and up of each byte at 0; the neighbours' bits must be masked away.
template <int N>
ER_INL vi above(const uint8_t* v, int i) { return srl16<N>(ldi(v + i * VB)); }
// Where one instruction moves and masks, pieces are put together by or; elsewhere by sel, and masked once.
#if defined(ER_BIT_MATRIX)
enum { BIT_MATRIX = 1 };
#else
enum { BIT_MATRIX = 0 };
ER_INL vi or3(vi a, vi b, vi c) { return or_(or_(a, b), c); }
#endif
enum : uint32_t { W1 = 0x01010101u, W3 = 0x03030303u, W7 = 0x07070707u, W4 = 0x0f0f0f0fu };

struct Nib {
  enum { VEC = 4, BITS = 4 };
  template <int J> ER_INL vi get(const uint8_t* v) { return bits<J % 2 * 4, 0, 4>(v, J / 2); }
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
    if constexpr (J < 5) return bits<0, 0, 5>(v, J);
    else if constexpr (BIT_MATRIX && J < 7) return or_(bits<5, 0, 3>(v, 2 * J - 10), bits<6, 3, 2>(v, 2 * J - 9));
    else if constexpr (BIT_MATRIX) return or3(bits<5, 0, 3>(v, 4), bits<5, 3, 1>(v, 1), bits<5, 4, 1>(v, 3));
    else if constexpr (J < 7) return and_(sel(all8(7), above<5>(v, 2 * J - 10), above<3>(v, 2 * J - 9)), all8(31));
    else return and_(sel(all8(7), above<5>(v, 4), sel(all8(15), above<2>(v, 1), above<1>(v, 3))), all8(31));
  }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    const uint32_t a = w[5], b = w[6], c = w[7];
    put_word(v, 0, r, w[0] | (a & W7) << 5);
    put_word(v, 1, r, w[1] | ((a >> 3) & W3) << 6 | ((c >> 3) & W1) << 5);
    put_word(v, 2, r, w[2] | (b & W7) << 5);
    put_word(v, 3, r, w[3] | ((b >> 3) & W3) << 6 | ((c >> 4) & W1) << 5);
    put_word(v, 4, r, w[4] | (c & W7) << 5);
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    uint32_t x[5];
    for (int i = 0; i < 5; i++) x[i] = word(v, i, r), w[i] = x[i] & (W1 | W4 << 1);
    w[5] = ((x[0] >> 5) & W7) | ((x[1] >> 6) & W3) << 3;
    w[6] = ((x[2] >> 5) & W7) | ((x[3] >> 6) & W3) << 3;
    w[7] = ((x[4] >> 5) & W7) | ((x[1] >> 5) & W1) << 3 | ((x[3] >> 5) & W1) << 4;
  }
};

struct Two {
  enum { VEC = 2, BITS = 2 };
  template <int J> ER_INL vi get(const uint8_t* v) { return bits<J % 4 * 2, 0, 2>(v, J / 4); }
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
    if constexpr (J < 6) return bits<J / 3 * 3, 0, 3>(v, J % 3);
    else if constexpr (BIT_MATRIX) return or_(bits<6, 0, 2>(v, J - 6), bits<J, 2, 1>(v, 2));
    else return and_(sel(all8(3), above<6>(v, J - 6), above<J - 2>(v, 2)), all8(7));
  }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    put_word(v, 0, r, w[0] | w[3] << 3 | (w[6] & W3) << 6);
    put_word(v, 1, r, w[1] | w[4] << 3 | (w[7] & W3) << 6);
    put_word(v, 2, r, w[2] | w[5] << 3 | ((w[6] >> 2) & W1) << 6 | ((w[7] >> 2) & W1) << 7);
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    uint32_t x[3];
    for (int i = 0; i < 3; i++) x[i] = word(v, i, r), w[i] = x[i] & W7, w[i + 3] = (x[i] >> 3) & W7;
    w[6] = ((x[0] >> 6) & W3) | ((x[2] >> 6) & W1) << 2;
    w[7] = ((x[1] >> 6) & W3) | ((x[2] >> 7) & W1) << 2;
  }
};

struct Six {
  enum { VEC = 6, BITS = 6 };
  template <int J> ER_INL vi get(const uint8_t* v) {
    if constexpr (J < 6) return bits<0, 0, 6>(v, J);
    else if constexpr (BIT_MATRIX) return or3(bits<6, 0, 2>(v, 3 * J - 18), bits<6, 2, 2>(v, 3 * J - 17), bits<6, 4, 2>(v, 3 * J - 16));
    else return and_(sel(all8(3), above<6>(v, 3 * J - 18), sel(all8(15), above<4>(v, 3 * J - 17), above<2>(v, 3 * J - 16))), all8(63));
  }
  ER_INL void put(const uint32_t* w, uint8_t* v, int r) {
    for (int i = 0; i < 6; i++) put_word(v, i, r, w[i] | ((w[6 + i / 3] >> (i % 3 * 2)) & W3) << 6);
  }
  ER_INL void take(const uint8_t* v, int r, uint32_t* w) {
    w[6] = w[7] = 0;
    for (int i = 0; i < 6; i++) {
      const uint32_t x = word(v, i, r);
      w[i] = x & (W4 | W3 << 4);
      w[6 + i / 3] |= ((x >> 6) & W3) << (i % 3 * 2);
    }
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

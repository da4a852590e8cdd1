// format_k.h: the ggml types with blocks of 256, as a file holds them and as a tile holds them.
// A value is d * scale[s] * (code - zero) - dmin * min[s], s a sub-block of 256 / NS codes. Tile unit, R rows x 256 k:
//   [R] d fp16 | [R] dmin fp16 (or unused, or IQ4_XS: high bits of its scales) | packed scales | 8 x VEC registers.
// Scales stay as narrow as the file's. Order: bytes [pair s / 2][row][s % 2], "pair p" below being 2R of them; of Q6_K [s][row],
// "pair p" being scales 2p and 2p + 1.
//   Q2_K: 8 pairs, scale in the low nibble, min in the high one. Q6_K: 8 pairs, int8.
//   Q4_K, Q5_K: registers A, B, H. A: low nibbles of scale (low) and min (high), pairs 0, 1; B: pairs 2, 3;
//     H: their high bits: pairs 0, 1 scale at bits 0-1, min 2-3; pairs 2, 3 scale 4-5, min 6-7.
//   Q3_K: three registers, a row's scales being three dwords: scale 5 i + j at bits 6 j of dword i, the last one in bits 30-31 of
//     all three. Scales are kept + 32.
//   IQ4_XS: one register: low nibbles of pairs 0, 1 (low) and 2, 3 (high); in dmin's place 2R bytes, bits 2p of pair p. + 32.
#pragma once
#include "codes.h"
#include "format_q32.h"

namespace er {
namespace ER_ISA {
namespace q8 {

// One file block, decoded but for its float scales. Aligned by word: gcc 12 otherwise raises the alignment itself for its
// vector loops and then places the object without it.
struct alignas(64) BlockK {
  uint8_t q[256];
  uint8_t sc[16], mn[16];  // as stored: int8 for Q6_K, + 32 for Q3_K and IQ4_XS
  uint8_t d[2], dmin[2];
};

ER_INL void scales12(const uint8_t* s, BlockK& o) {  // eight pairs of 6 bits in 12 bytes
  for (int j = 0; j < 4; j++) {
    o.sc[j] = s[j] & 63;
    o.mn[j] = s[j + 4] & 63;
    o.sc[j + 4] = uint8_t((s[j + 8] & 15) | (s[j] >> 6) << 4);
    o.mn[j + 4] = uint8_t((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
  }
}
// Scale byte s of row r, in full bytes.
ER_INL int at(int s, int r) { return s / 2 * 2 * R + r * 2 + s % 2; }
ER_INL int flat_at(int s, int r) { return s * R + r; }

// Heads give scales as int16 pairs plus OFFSET, the bits from BITS up being anything where there is none (get), or where they are
// FLAT as floats [s][row], already times d (scales).

struct Head12 {  // Q4_K, Q5_K
  enum { NS = 8, MIN = 1, BYTES = 16 * R, OFFSET = 0, FLAT = 0, BITS = 6 };
  ER_INL void put(const BlockK& b, int r, uint8_t* u) {
    u += 4 * R;
    for (int s = 0; s < 8; s++) {
      const int i = at(s % 4, r);
      u[s / 4 * VB + i] |= uint8_t((b.sc[s] & 15) | b.mn[s] << 4);
      u[2 * VB + i] |= uint8_t(((b.sc[s] >> 4) | (b.mn[s] >> 4) << 2) << (s / 4 * 4));
    }
  }
  ER_INL void take(const uint8_t* u, int r, BlockK& b) {
    u += 4 * R;
    for (int s = 0; s < 8; s++) {
      const int i = at(s % 4, r), low = u[s / 4 * VB + i], high = u[2 * VB + i] >> (s / 4 * 4);
      b.sc[s] = uint8_t((low & 15) | (high & 3) << 4);
      b.mn[s] = uint8_t((low >> 4) | (high & 12) << 2);
    }
  }
  ER_INL void get(const uint8_t* u, vi* sc, vi* mn) {
    const vi a = ldi(u + 4 * R), b = ldi(u + 4 * R + VB), h = ldi(u + 4 * R + 2 * VB);
    const vi m15 = all8(15), m63 = all8(63);
    alignas(64) uint8_t t[4 * VB];
    sti(t, and_(sel(m15, a, sll16<4>(h)), m63));
    sti(t + VB, and_(sel(m15, b, h), m63));
    sti(t + 2 * VB, and_(sel(m15, srl16<4>(a), sll16<2>(h)), m63));
    sti(t + 3 * VB, and_(sel(m15, srl16<4>(b), srl16<2>(h)), m63));
    for (int p = 0; p < 4; p++) sc[p] = wide_u8(t + p * 2 * R), mn[p] = wide_u8(t + 2 * VB + p * 2 * R);
  }
};

struct Head2 {  // Q2_K
  enum { NS = 16, MIN = 1, BYTES = 20 * R, OFFSET = 0, FLAT = 0, BITS = 4 };
  ER_INL void put(const BlockK& b, int r, uint8_t* u) {
    for (int s = 0; s < 16; s++) u[4 * R + at(s, r)] = uint8_t(b.sc[s] | b.mn[s] << 4);
  }
  ER_INL void take(const uint8_t* u, int r, BlockK& b) {
    for (int s = 0; s < 16; s++) b.sc[s] = u[4 * R + at(s, r)] & 15, b.mn[s] = u[4 * R + at(s, r)] >> 4;
  }
  ER_INL void get(const uint8_t* u, vi* sc, vi* mn) {
    for (int p = 0; p < 8; p++) {
      const vi x = wide_u8(u + 4 * R + p * 2 * R);
      sc[p] = x;
      mn[p] = srl16<4>(x);
    }
  }
};

struct Head6 {  // Q6_K
  enum { NS = 16, MIN = 0, BYTES = 20 * R, OFFSET = 0, FLAT = 1 };
  ER_INL void put(const BlockK& b, int r, uint8_t* u) { for (int s = 0; s < 16; s++) u[4 * R + flat_at(s, r)] = b.sc[s]; }
  ER_INL void take(const uint8_t* u, int r, BlockK& b) { for (int s = 0; s < 16; s++) b.sc[s] = u[4 * R + flat_at(s, r)]; }
  ER_INL void scales(const uint8_t* u, vf d, uint8_t* out) {
    for (int s = 0; s < 16; s++) stf(out + s * VB, mul(d, cvt(lanes_i8(u + 4 * R + s * R))));
  }
};

struct Head3 {  // Q3_K
  enum { NS = 16, MIN = 0, BYTES = 16 * R, OFFSET = 32, FLAT = 1 };
  ER_INL void put(const BlockK& b, int r, uint8_t* u) {
    for (int i = 0; i < 3; i++) {
      uint32_t x = uint32_t((b.sc[15] >> 2 * i) & 3) << 30;
      for (int j = 0; j < 5; j++) x |= uint32_t(b.sc[5 * i + j] & 63) << 6 * j;
      put_word(u + 4 * R, i, r, x);
    }
  }
  ER_INL void take(const uint8_t* u, int r, BlockK& b) {
    b.sc[15] = 0;
    for (int i = 0; i < 3; i++) {
      const uint32_t x = word(u + 4 * R, i, r);
      for (int j = 0; j < 5; j++) b.sc[5 * i + j] = (x >> 6 * j) & 63;
      b.sc[15] |= uint8_t((x >> 30) << 2 * i);
    }
  }
  // The field at bit AT of each lane, less OFFSET, times d: exact. Under the exponent of 2^(23 - AT) it is a float already, plus that
  // power, which with OFFSET has few enough bits for an exact product with a half from AT = 6 on.
  template <int AT>
  ER_INL vf scaled_field(vi x, vf d, vf bias) {
    if constexpr (FUSED) return fma(as_float(sel(all32(63 << AT), x, all32((150 - AT) << 23))), d, bias);
    else return mul(d, cvt(sub32(and_(srl32<AT>(x), all32(63)), all32(OFFSET))));
  }
  ER_INL void scales(const uint8_t* u, vf d, uint8_t* out) {
    const vf bias6 = mul(d, splat_f(-0x1p17f - OFFSET)), bias12 = mul(d, splat_f(-0x1p11f - OFFSET));
    vi x[3];
    for (int i = 0; i < 3; i++, out += 5 * VB) {
      x[i] = ldi(u + 4 * R + i * VB);
      const vi high = srl32<12>(x[i]);
      stf(out, scaled_field<6>(sll32<6>(x[i]), d, bias6));
      stf(out + VB, scaled_field<6>(x[i], d, bias6));
      stf(out + 2 * VB, scaled_field<12>(x[i], d, bias12));
      stf(out + 3 * VB, scaled_field<6>(high, d, bias6));
      stf(out + 4 * VB, scaled_field<12>(high, d, bias12));
    }
    const vi last = sel(all32(3 << 6), srl32<24>(x[0]), sel(all32(3 << 8), srl32<22>(x[1]), srl32<20>(x[2])));
    stf(out, scaled_field<6>(last, d, bias6));
  }
};

struct HeadXs {  // IQ4_XS
  enum { NS = 8, MIN = 0, BYTES = 8 * R, OFFSET = 32, FLAT = 0, BITS = 6 };
  ER_INL void put(const BlockK& b, int r, uint8_t* u) {
    for (int s = 0; s < 8; s++) {
      u[4 * R + at(s % 4, r)] |= uint8_t((b.sc[s] & 15) << (s / 4 * 4));
      u[2 * R + r * 2 + s % 2] |= uint8_t((b.sc[s] >> 4) << (s / 2 * 2));
    }
  }
  ER_INL void take(const uint8_t* u, int r, BlockK& b) {
    for (int s = 0; s < 8; s++)
      b.sc[s] = uint8_t(((u[4 * R + at(s % 4, r)] >> (s / 4 * 4)) & 15) | ((u[2 * R + r * 2 + s % 2] >> (s / 2 * 2)) & 3) << 4);
  }
  ER_INL void get(const uint8_t* u, vi* sc, vi*) {
    const vi h = wide_u8(u + 2 * R), m15 = all16(15), m48 = all16(48), low0 = wide_u8(u + 4 * R), low1 = wide_u8(u + 6 * R);
    sc[0] = or_(and_(low0, m15), and_(sll16<4>(h), m48));
    sc[1] = or_(and_(low1, m15), and_(sll16<2>(h), m48));
    sc[2] = or_(srl16<4>(low0), and_(h, m48));
    sc[3] = or_(srl16<4>(low1), and_(srl16<2>(h), m48));
  }
};

template <int ID, int FILE_, int ZERO_, class Head_, class Codes_>
struct FormatK {
  typedef Head_ Head;
  typedef Codes_ Codes;
  enum { TYPE = ID, SCALE = 2, FILE = FILE_, ZERO = ZERO_, NS = Head::NS, MIN = Head::MIN };
  enum { HEAD = Head::BYTES, BLOCK = Codes::VEC * VB, UNIT = HEAD + 8 * BLOCK };
};
struct Q2_K : FormatK<10, 84, NO_ZERO, Head2, Two> {
  ER_INL void read(const uint8_t* b, BlockK& o) {
    memcpy(o.d, b + 80, 2);
    memcpy(o.dmin, b + 82, 2);
    for (int s = 0; s < 16; s++) o.sc[s] = b[s] & 15, o.mn[s] = b[s] >> 4;
    for (int i = 0; i < 8; i++)
      for (int l = 0; l < 32; l++) o.q[i * 32 + l] = (b[16 + i / 4 * 32 + l] >> (i % 4 * 2)) & 3;
  }
};
struct Q3_K : FormatK<11, 110, 2, Head3, Three> {
  ER_INL void read(const uint8_t* b, BlockK& o) {
    memcpy(o.d, b + 108, 2);
    for (int s = 0; s < 16; s++)
      o.sc[s] = uint8_t(((b[96 + s % 8] >> (s / 8 * 4)) & 15) | ((b[104 + s % 4] >> (s / 4 * 2)) & 3) << 4);
    for (int i = 0; i < 8; i++)
      for (int l = 0; l < 32; l++)
        o.q[i * 32 + l] = uint8_t(((b[32 + i / 4 * 32 + l] >> (i % 4 * 2)) & 3) | ((b[l] >> i) & 1) << 2);
  }
};
ER_INL void nibbles256(const uint8_t* b, uint8_t* q) {
  for (int i = 0; i < 8; i++)
    for (int l = 0; l < 32; l++) q[i * 32 + l] = (b[i / 2 * 32 + l] >> (i % 2 * 4)) & 15;
}
struct Q4_K : FormatK<12, 144, NO_ZERO, Head12, Nib> {
  ER_INL void read(const uint8_t* b, BlockK& o) {
    memcpy(o.d, b, 2);
    memcpy(o.dmin, b + 2, 2);
    scales12(b + 4, o);
    nibbles256(b + 16, o.q);
  }
};
struct Q5_K : FormatK<13, 176, NO_ZERO, Head12, Nib5> {
  ER_INL void read(const uint8_t* b, BlockK& o) {
    memcpy(o.d, b, 2);
    memcpy(o.dmin, b + 2, 2);
    scales12(b + 4, o);
    nibbles256(b + 48, o.q);
    for (int i = 0; i < 8; i++)
      for (int l = 0; l < 32; l++) o.q[i * 32 + l] |= uint8_t(((b[16 + l] >> i) & 1) << 4);
  }
};
struct Q6_K : FormatK<14, 210, 5, Head6, Six> {
  ER_INL void read(const uint8_t* b, BlockK& o) {
    memcpy(o.d, b + 208, 2);
    memcpy(o.sc, b + 192, 16);
    for (int i = 0; i < 8; i++) {  // i = half * 4 + quarter
      const uint8_t *low = b + i / 4 * 64 + i % 2 * 32, *high = b + 128 + i / 4 * 32;
      for (int l = 0; l < 32; l++)
        o.q[i * 32 + l] = uint8_t(((low[l] >> (i % 4 / 2 * 4)) & 15) | ((high[l] >> (i % 4 * 2)) & 3) << 4);
    }
  }
};
struct IQ4_XS : FormatK<23, 136, ZERO_BYTE, HeadXs, Lut<Iq4Values>> {
  ER_INL void read(const uint8_t* b, BlockK& o) {
    memcpy(o.d, b, 2);
    const int high = b[2] | b[3] << 8;
    for (int s = 0; s < 8; s++)
      o.sc[s] = uint8_t(((b[4 + s / 2] >> (s % 2 * 4)) & 15) | ((high >> (2 * s)) & 3) << 4);
    for (int i = 0; i < 8; i++)
      for (int l = 0; l < 16; l++) o.q[i * 32 + l] = b[8 + i * 16 + l] & 15, o.q[i * 32 + 16 + l] = b[8 + i * 16 + l] >> 4;
  }
};

template <class T>
static size_t tile_bytes_k(int K) { return size_t(K / 256) * size_t(T::UNIT); }

template <class T>
static void pack_k(const uint8_t* src, size_t row_bytes, int rows, int K, uint8_t* dst) {
  memset(dst, 0, tile_bytes_k<T>(K));
  for (int b = 0; b < K / 256; b++, dst += T::UNIT)
    for (int r = 0; r < rows; r++) {
      BlockK o;
      alignas(64) uint32_t w[64];
      T::read(src + size_t(r) * row_bytes + size_t(b) * T::FILE, o);
      memcpy(w, o.q, 256);
      memcpy(dst + r * 2, o.d, 2);
      if (T::MIN) memcpy(dst + (R + r) * 2, o.dmin, 2);
      T::Head::put(o, r, dst);
      for (int i = 0; i < 8; i++) T::Codes::put(w + i * 8, dst + T::HEAD + i * T::BLOCK, r);
    }
}

template <class T>
static void unpack_row_k(const uint8_t* u, int r, int K, float* out) {
  for (int b = 0; b < K / 256; b++, u += T::UNIT, out += 256) {
    BlockK o;
    const float d = half_to_float1(u + r * 2), dmin = T::MIN ? half_to_float1(u + (R + r) * 2) : 0.0f;
    T::Head::take(u, r, o);
    for (int i = 0; i < 8; i++) {
      alignas(64) uint32_t w[8];
      T::Codes::take(u + T::HEAD + i * T::BLOCK, r, w);
      memcpy(o.q + i * 32, w, 32);
    }
    for (int s = 0; s < T::NS; s++) {
      const float dl = d * float(int(T::Head::OFFSET) != 0 ? int(o.sc[s]) - int(T::Head::OFFSET) : int(int8_t(o.sc[s])));
      const float ml = T::MIN ? dmin * float(o.mn[s]) : 0.0f;
      for (int i = s * 256 / T::NS; i < (s + 1) * 256 / T::NS; i++) {
        const float v = dl * value_of<T>(o.q[i]);
        out[i] = T::MIN ? v - ml : v;
      }
    }
  }
}

}  // namespace q8
}  // namespace ER_ISA
}  // namespace er

// blocks.h: GGUF's block formats. A lane takes a share of 16 weights: four quads of four consecutive ones, read so that every
// byte of a block has one reader. Blocks lie as in the file, so their fields are aligned to 2 bytes or to none.
// Formats: ggml's block structures, as the gguf package decodes them.

// weight = scale * code - least; RUN consecutive quads have the same scale and least. STEP / 16 consecutive shares hold STEP
// weights side by side.
struct Share {
  float4 code[4];
  float scale[4];
  float least[4];
};

inline uint read2(const device uchar* p) { return *reinterpret_cast<const device ushort*>(p); }
inline float read_half(const device uchar* p) { return float(*reinterpret_cast<const device half*>(p)); }
inline uint read4(const device uchar* p) { return read2(p) | read2(p + 2) << 16; }
inline uint read4_bytes(const device uchar* p) { return uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24; }

inline float4 bytes_of(uint v) { return float4(float(v & 255), float(v >> 8 & 255), float(v >> 16 & 255), float(v >> 24)); }
inline float4 signed_bytes_of(uint v) { return bytes_of(v ^ 0x80808080u) - 128.0f; }

constant float IQ4_LEVELS[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                                 1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};
constant float MXFP4_LEVELS[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                   0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};
inline float4 levels_of(constant float* table, uint v) {
  return float4(table[v & 15], table[v >> 8 & 15], table[v >> 16 & 15], table[v >> 24 & 15]);
}

// ---- blocks of 32: share 0 holds weights 0-7 and 16-23, whose codes are the low and high halves of 8 bytes; share 1 the rest
struct Halves {
  enum { WEIGHTS = 32, RUN = 4, STEP = 32 };
  static uint at(uint share, uint quad) { return (share << 3) + ((quad & 1) << 2) + ((quad & 2) << 3); }
};
// Codes of two words of bytes: quads 0 and 1 are their low halves, 2 and 3 their high ones.
inline void halves_of(uint a, uint b, thread uint* codes) {
  codes[0] = a & 0x0F0F0F0Fu;
  codes[1] = b & 0x0F0F0F0Fu;
  codes[2] = a >> 4 & 0x0F0F0F0Fu;
  codes[3] = b >> 4 & 0x0F0F0F0Fu;
}
// Bits 0-3 of v, each in a byte of its own, at bit 4.
inline uint fifth_bits(uint v) { return (v & 1) << 4 | (v & 2) << 11 | (v & 4) << 18 | (v & 8) << 25; }

template <int TYPE>
struct Format;

template <>
struct Format<2> : Halves {  // Q4_0
  enum { BYTES = 18, HAS_LEAST = 0 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    uint codes[4];
    halves_of(read4(b + 2 + 8 * share), read4(b + 6 + 8 * share), codes);
    for (int j = 0; j < 4; ++j) s.code[j] = bytes_of(codes[j]) - 8.0f;
    s.scale[0] = read_half(b);
  }
};
template <>
struct Format<3> : Halves {  // Q4_1
  enum { BYTES = 20, HAS_LEAST = 1 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    uint codes[4];
    halves_of(read4(b + 4 + 8 * share), read4(b + 8 + 8 * share), codes);
    for (int j = 0; j < 4; ++j) s.code[j] = bytes_of(codes[j]);
    s.scale[0] = read_half(b);
    s.least[0] = -read_half(b + 2);
  }
};
// Codes of Q5_0 and Q5_1: `high` has the fifth bit of weight i at bit i.
inline void fives_of(uint a, uint b, uint high, uint share, thread Share& s) {
  uint codes[4];
  halves_of(a, b, codes);
  for (uint j = 0; j < 4; ++j) s.code[j] = bytes_of(codes[j] | fifth_bits(high >> Halves::at(share, j) & 15));
}
template <>
struct Format<6> : Halves {  // Q5_0
  enum { BYTES = 22, HAS_LEAST = 0 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    fives_of(read4(b + 6 + 8 * share), read4(b + 10 + 8 * share), read4(b + 2), share, s);
    for (int j = 0; j < 4; ++j) s.code[j] = s.code[j] - 16.0f;
    s.scale[0] = read_half(b);
  }
};
template <>
struct Format<7> : Halves {  // Q5_1
  enum { BYTES = 24, HAS_LEAST = 1 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    fives_of(read4(b + 8 + 8 * share), read4(b + 12 + 8 * share), read4(b + 4), share, s);
    s.scale[0] = read_half(b);
    s.least[0] = -read_half(b + 2);
  }
};
template <>
struct Format<8> {  // Q8_0: a share is 16 consecutive weights
  enum { WEIGHTS = 32, RUN = 4, STEP = 32, BYTES = 34, HAS_LEAST = 0 };
  static uint at(uint share, uint quad) { return (share << 4) + (quad << 2); }
  static void decode(const device uchar* b, uint share, thread Share& s) {
    for (uint j = 0; j < 4; ++j) s.code[j] = signed_bytes_of(read4(b + 2 + at(share, j)));
    s.scale[0] = read_half(b);
  }
};
template <>
struct Format<20> : Halves {  // IQ4_NL
  enum { BYTES = 18, HAS_LEAST = 0 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    uint codes[4];
    halves_of(read4(b + 2 + 8 * share), read4(b + 6 + 8 * share), codes);
    for (int j = 0; j < 4; ++j) s.code[j] = levels_of(IQ4_LEVELS, codes[j]);
    s.scale[0] = read_half(b);
  }
};
template <>
struct Format<39> : Halves {  // MXFP4: levels are doubled, so the power of two is one less
  enum { BYTES = 17, HAS_LEAST = 0 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    uint codes[4];
    halves_of(read4_bytes(b + 1 + 8 * share), read4_bytes(b + 5 + 8 * share), codes);
    for (int j = 0; j < 4; ++j) s.code[j] = levels_of(MXFP4_LEVELS, codes[j]);
    const uint e = b[0];
    s.scale[0] = as_type<float>(e < 2 ? 0x200000u << e : (e - 1) << 23);
  }
};
template <>
struct Format<23> {  // IQ4_XS: 8 blocks of 32 with 6-bit scales; two shares a block
  enum { WEIGHTS = 256, RUN = 4, STEP = 32, BYTES = 136, HAS_LEAST = 0 };
  static uint at(uint share, uint quad) { return (share >> 1 << 5) + Halves::at(share & 1, quad); }
  static void decode(const device uchar* b, uint share, thread Share& s) {
    const uint block = share >> 1;
    uint codes[4];
    halves_of(read4(b + 8 + 8 * share), read4(b + 12 + 8 * share), codes);
    for (int j = 0; j < 4; ++j) s.code[j] = levels_of(IQ4_LEVELS, codes[j]);
    const uint low = b[4 + (block >> 1)] >> 4 * (block & 1) & 15, high = read2(b + 2) >> 2 * block & 3;
    s.scale[0] = read_half(b) * (float(low | high << 4) - 32.0f);
  }
};

// ---- blocks of 256 in two halves: quad j of a share is in the j-th 32 weights of its half; a scale is of 16 weights
struct Quarters {
  enum { WEIGHTS = 256, RUN = 1, STEP = 128 };
  static uint at(uint share, uint quad) { return (share >> 3 << 7) + (quad << 5) + ((share & 7) << 2); }
  static uint scale_at(uint share, uint quad) { return (share >> 3 << 3) + (quad << 1) + (share >> 2 & 1); }
  static uint half_at(uint share) { return (share >> 3 << 5) + ((share & 7) << 2); }  // 32 bytes a half
};
template <>
struct Format<10> : Quarters {  // Q2_K
  enum { BYTES = 84, HAS_LEAST = 1 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    const float d = read_half(b + 80), least = read_half(b + 82);
    const uint v = read4(b + 16 + half_at(share));
    for (uint j = 0; j < 4; ++j) {
      const uint scale = b[scale_at(share, j)];
      s.code[j] = bytes_of(v >> 2 * j & 0x03030303u);
      s.scale[j] = d * float(scale & 15);
      s.least[j] = least * float(scale >> 4);
    }
  }
};
template <>
struct Format<11> : Quarters {  // Q3_K: without its high bit a code is 4 less
  enum { BYTES = 110, HAS_LEAST = 0 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    const float d = read_half(b + 108);
    const uint v = read4(b + 32 + half_at(share)), high = read4(b + 4 * (share & 7)) >> (share >> 3 << 2);
    for (uint j = 0; j < 4; ++j) {
      const uint i = scale_at(share, j);
      const uint low = b[96 + (i & 7)] >> (i >> 3 << 2) & 15, top = b[104 + (i & 3)] >> (i >> 2 << 1) & 3;
      s.code[j] = bytes_of((v >> 2 * j & 0x03030303u) | (high >> j & 0x01010101u) << 2) - 4.0f;
      s.scale[j] = d * (float(low | top << 4) - 32.0f);
    }
  }
};
template <>
struct Format<14> : Quarters {  // Q6_K
  enum { BYTES = 210, HAS_LEAST = 0 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    const float d = read_half(b + 208);
    const uint at = (share >> 3 << 6) + ((share & 7) << 2);
    const uint low[2] = {read4(b + at), read4(b + at + 32)}, high = read4(b + 128 + half_at(share));
    for (uint j = 0; j < 4; ++j) {
      const uint four = low[j & 1] >> (j >> 1 << 2) & 0x0F0F0F0Fu;
      s.code[j] = bytes_of(four | (high >> 2 * j & 0x03030303u) << 4) - 32.0f;
      s.scale[j] = d * (float(b[192 + scale_at(share, j)] ^ 128) - 128.0f);
    }
  }
};

// ---- Q4_K and Q5_K: 4 times 32 bytes, whose low and high halves are blocks of 32; four shares to 32 bytes
struct Pairs {
  enum { WEIGHTS = 256, RUN = 2, STEP = 64 };
  static uint at(uint share, uint quad) {
    return (share >> 2 << 6) + ((share & 3) << 3) + ((quad & 1) << 2) + ((quad & 2) << 4);
  }
  // Scales and minima of 8 blocks, 6 bits each, in 12 bytes.
  static void scales(const device uchar* b, uint share, thread Share& s) {
    const float d = read_half(b), least = read_half(b + 2);
    const device uchar* p = b + 4;
    for (uint j = 0; j < 4; j += 2) {
      const uint i = (share >> 2 << 1) + (j >> 1), a = p[i & 3], c = p[4 + (i & 3)];
      const uint both = p[8 + (i & 3)];
      s.scale[j] = d * float(i < 4 ? a & 63 : (both & 15) | a >> 6 << 4);
      s.least[j] = least * float(i < 4 ? c & 63 : both >> 4 | c >> 6 << 4);
    }
  }
};
template <>
struct Format<12> : Pairs {  // Q4_K
  enum { BYTES = 144, HAS_LEAST = 1 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    uint codes[4];
    const device uint* v = reinterpret_cast<const device uint*>(b + 16 + 8 * share);
    halves_of(v[0], v[1], codes);
    for (int j = 0; j < 4; ++j) s.code[j] = bytes_of(codes[j]);
    scales(b, share, s);
  }
};
template <>
struct Format<13> : Pairs {  // Q5_K
  enum { BYTES = 176, HAS_LEAST = 1 };
  static void decode(const device uchar* b, uint share, thread Share& s) {
    uint codes[4];
    const device uint* v = reinterpret_cast<const device uint*>(b + 48 + 8 * share);
    const device uint* high = reinterpret_cast<const device uint*>(b + 16 + 8 * (share & 3));
    halves_of(v[0], v[1], codes);
    for (uint j = 0; j < 4; ++j) {
      const uint bit = (share >> 2 << 1) + (j >> 1);
      s.code[j] = bytes_of(codes[j] | (high[j & 1] >> bit & 0x01010101u) << 4);
    }
    scales(b, share, s);
  }
};

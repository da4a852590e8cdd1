// formats.cuh: how quantized weights lie on the device, and a warp's part of them as operands of int8 tensor core products.
//
// 16 rows make a tile; its k in chunks of 256, four groups of 64, eight blocks of 32. A chunk holds, in this order:
//   scales   of its 16 rows, as the file packs them (scale_bytes)
//   planes   of bits for all four groups, `planes` times 16 bytes a lane
//   codes    of each group, `group_loads` times 16 bytes a lane; the last chunk has only the groups that exist
// Lane 4 g + t of a warp holds rows g and g + 8, and of each half of 16 of a block the values 4 t .. 4 t + 3: the registers
// a[0..3] of mma m16n8k32 are (g, first half), (g + 8, first half), (g, second half), (g + 8, second half).
// Nothing is rounded: the same codes and scales as in the file, padded to 16 rows and 64 k with zeros.
#pragma once
#include "ptx.cuh"

enum Type : int {  // ggml's numbers
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14,
  IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39
};
constexpr int TILE = 16;    // rows
constexpr int CHUNK = 256;  // k
constexpr int GROUP = 64;   // k

#define FORMAT template <int Q> __device__ constexpr
FORMAT bool five_bits() { return Q == Q5_0 || Q == Q5_1 || Q == Q5_K; }
FORMAT bool from_table() { return Q == IQ4_NL || Q == IQ4_XS || Q == MXFP4; }
FORMAT bool has_min() { return Q == Q4_1 || Q == Q5_1 || Q == Q2_K || Q == Q4_K || Q == Q5_K; }  // and unsigned codes
FORMAT bool halves() { return Q == Q2_K || Q == Q3_K || Q == Q6_K; }                              // a scale for each 16 k
FORMAT bool whole_chunks() { return (Q >= Q2_K && Q <= Q6_K) || Q == IQ4_XS; }                      // k is a multiple of 256
FORMAT int planes() { return five_bits<Q>() ? 1 : Q == Q2_K || Q == Q6_K ? 2 : Q == Q3_K ? 3 : 0; }
FORMAT int group_loads() { return Q == Q8_0 ? 2 : Q == Q2_K || Q == Q3_K ? 0 : 1; }
FORMAT int scale_bytes() {
  return Q == Q4_1 || Q == Q5_1 ? 512 : Q == Q6_K ? 288 : Q == Q2_K ? 320 : Q == IQ4_XS || Q == MXFP4 ? 128 : 256;
}
FORMAT int codes_at() { return scale_bytes<Q>() + 512 * planes<Q>(); }
FORMAT int chunk_bytes() { return codes_at<Q>() + 2048 * group_loads<Q>(); }
template <int Q>
__device__ __forceinline__ size_t tile_bytes(int groups) {
  const size_t tail = groups & 3 ? codes_at<Q>() + (groups & 3) * 512 * group_loads<Q>() : 0;
  return static_cast<size_t>(groups >> 2) * chunk_bytes<Q>() + tail;
}

// Of floats 16 rows are [ceil(K / 8)][16 rows][8] halves, or [ceil(K / 8) * 2][16 rows][4] floats, zeros behind K.
FORMAT int value_bytes() { return Q == F32 ? 4 : 2; }
template <int Q>
__device__ __forceinline__ size_t float_tile_bytes(int k) {
  return static_cast<size_t>((k + 7) / 8) * (8 * TILE * value_bytes<Q>());
}

// Codes become bytes with their sign bit, if any, on top: so many times their value. j = 0, 1 is the block of the group.
FORMAT float code_unit(int j) {
  return Q == Q4_0 ? 1.f / 16 : five_bits<Q>() ? 1.f / 8 : Q == Q6_K ? 1.f / 4 : Q == Q3_K ? 1.f / 32
       : (Q == Q4_1 || Q == Q4_K) && j ? 1.f / 16 : 1.f;
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
// Byte i, by way of 2^23 + byte: no conversion instruction, of which a GPU does few.
__device__ __forceinline__ float byte_float(uint32_t v, int i) {
  return __fadd_rn(__uint_as_float(__byte_perm(v, 0x4b000000, 0x7440 + i)), -8388608.f);
}
__device__ __forceinline__ int signed_byte(uint32_t v, int i) { return static_cast<int8_t>(v >> 8 * i); }

// What one lane holds of a chunk.
template <int Q>
struct Chunk {
  static constexpr int N_SCALES = Q == Q4_1 || Q == Q5_1 ? 4 : 2;
  static constexpr int N_PLANES = planes<Q>() ? planes<Q>() : 1, N_CODES = group_loads<Q>() ? 4 * group_loads<Q>() : 1;
  uint4 s[N_SCALES];  // rows g and g + 8; of Q4_1 and Q5_1 then their minima
  uint32_t e[2];      // their float16 scales that do not fit into s
  uint4 p[N_PLANES], q[N_CODES];

  __device__ __forceinline__ void load(const uint8_t* chunk, int n_groups, int lane) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (whole_chunks<Q>() || c < n_groups) load_codes(chunk, c, lane);
    load_scales(chunk, lane);
  }
  __device__ __forceinline__ void load_codes(const uint8_t* chunk, int c, int lane) {
#pragma unroll
    for (int i = c * group_loads<Q>(); i < (c + 1) * group_loads<Q>(); ++i)
      q[i] = load_stream(chunk + codes_at<Q>() + i * 512 + lane * 16);
  }
  __device__ __forceinline__ void load_scales(const uint8_t* chunk, int lane) {
    const int g = lane >> 2;
#pragma unroll
    for (int i = 0; i < planes<Q>(); ++i) p[i] = load_stream(chunk + scale_bytes<Q>() + i * 512 + lane * 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = g + 8 * h;
      if (Q == IQ4_XS || Q == MXFP4) {
        const uint2 v = load_const<uint2>(chunk + row * 8);
        s[h] = make_uint4(v.x, v.y, 0, 0);
        continue;
      }
      s[h] = load_const<uint4>(chunk + row * 16);
      if (N_SCALES == 4) s[(2 + h) % N_SCALES] = load_const<uint4>(chunk + 256 + row * 16);
      if (Q == Q6_K) e[h] = load_const<uint16_t>(chunk + 256 + row * 2);
      if (Q == Q2_K) e[h] = load_const<uint32_t>(chunk + 256 + row * 4);
    }
  }
};

// Four codes of 4 bits as bytes of a table of 16.
__device__ __forceinline__ uint32_t look_up(uint32_t codes, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
  const uint32_t low = codes & 0x7777;
  return __byte_perm(__byte_perm(t0, t1, low), __byte_perm(t2, t3, low), 0x3210 | ((codes >> 1) & 0x4444));
}
template <int Q>
__device__ __forceinline__ uint32_t table_codes(uint32_t codes) {
  if (Q == MXFP4) return look_up(codes, 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc);  // 2 x float4 e2m1
  return look_up(codes, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
}

// Block j of group c as the A operand.
template <int Q>
__device__ __forceinline__ void fragment(const Chunk<Q>& w, int c, int j, uint32_t (&a)[4]) {
  const int b = 2 * c + j;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (Q == Q8_0) {
      a[i] = word(w.q[b % w.N_CODES], i);
      continue;
    }
    if (Q == Q2_K || Q == Q3_K) {  // bits 2 i, 2 i + 1 of each byte
      const uint32_t v = word(w.p[b / 4], b & 3);
      if (Q == Q2_K) a[i] = (v >> 2 * i) & 0x03030303;
      if (Q == Q3_K)
        a[i] = ((i == 3 ? v >> 1 : v << (5 - 2 * i & 7)) & 0x60606060) |
               ((word(w.p[2 % w.N_PLANES], c) << (7 - 4 * j - i)) & 0x80808080);
      continue;
    }
    const uint32_t v = word(w.q[c % w.N_CODES], i);  // low nibbles: block 0, high ones: block 1
    if (from_table<Q>()) a[i] = table_codes<Q>(j ? v >> 16 : v);
    if (Q == Q4_0) a[i] = (j ? v : v << 4) & 0xf0f0f0f0;
    if (Q == Q4_1 || Q == Q4_K) a[i] = v & (j ? 0xf0f0f0f0 : 0x0f0f0f0f);
    if (five_bits<Q>()) a[i] = ((j ? v >> 1 : v << 3) & 0x78787878) | ((word(w.p[0], c) << (7 - 4 * j - i)) & 0x80808080);
    if (Q == Q6_K)
      a[i] = ((j ? v >> 2 : v << 2) & 0x3c3c3c3c) | ((word(w.p[b / 4 % w.N_PLANES], b & 3) << (6 - 2 * i)) & 0xc0c0c0c0);
  }
}

// ---- scales of block b of row g + 8 h, exact products of what the file holds
__device__ __forceinline__ float e8m0(uint32_t e) {  // 2^(e - 128): half the power, as the codes are doubled
  return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}
__device__ __forceinline__ uint32_t k_scales(const uint4& s, int i) {  // four 6-bit scales of Q4_K and Q5_K
  return i ? (s.w & 0x0f0f0f0f) | ((s.y >> 2) & 0x30303030) : s.y & 0x3f3f3f3f;
}
__device__ __forceinline__ uint32_t k_minima(const uint4& s, int i) {
  return i ? ((s.w >> 4) & 0x0f0f0f0f) | ((s.z >> 2) & 0x30303030) : s.z & 0x3f3f3f3f;
}
__device__ __forceinline__ uint32_t q3_scales(const uint4& s, int i) {  // four 6-bit scales, 32 too large
  const uint32_t v = i & 1 ? s.z : s.y;
  return ((i < 2 ? v : v >> 4) & 0x0f0f0f0f) | (((s.w >> 2 * i) & 0x03030303) << 4);
}

// Times the code unit: what turns a sum of codes of a block into a value; of the types with halves, once times half_scale.
template <int Q>
__device__ __forceinline__ float block_scale(const Chunk<Q>& w, int h, int b) {
  const float unit = code_unit<Q>(b & 1);
  if (Q == Q4_K || Q == Q5_K) return half_of(w.s[h].x, 0) * unit * byte_float(k_scales(w.s[h], b >> 2), b & 3);
  if (Q == Q6_K || Q == Q2_K) return half_of(w.e[h], 0) * unit;
  if (Q == Q3_K) return half_of(w.s[h].x, 0) * unit;
  if (Q == MXFP4) return e8m0((b < 4 ? w.s[h].x : w.s[h].y) >> 8 * (b & 3) & 255);
  if (Q == IQ4_XS) {
    const int scale = (w.s[h].y >> 4 * b & 15) | (w.s[h].x >> (16 + 2 * b) & 3) << 4;
    return half_of(w.s[h].x, 0) * __int2float_rn(scale - 32);
  }
  return half_of(word(w.s[h], b >> 1), b & 1) * unit;
}
template <int Q>
__device__ __forceinline__ int half_scale(const Chunk<Q>& w, int h, int b, int half) {
  const int i = 2 * b + half;
  if (Q == Q6_K) return signed_byte(word(w.s[h], i >> 2), i & 3);
  if (Q == Q3_K) return static_cast<int>(q3_scales(w.s[h], i >> 2) >> 8 * (i & 3) & 255) - 32;
  return static_cast<int>(word(w.s[h], i >> 2) >> 8 * (i & 3) & 15);  // Q2_K
}
// What is added to every value of the block; of Q2_K, of its half.
template <int Q>
__device__ __forceinline__ float block_min(const Chunk<Q>& w, int h, int b, int half) {
  if (Q == Q4_K || Q == Q5_K) return -half_of(w.s[h].x, 1) * byte_float(k_minima(w.s[h], b >> 2), b & 3);
  if (Q == Q2_K) {
    const int i = 2 * b + half;
    return -half_of(w.e[h], 1) * __int2float_rn(word(w.s[h], i >> 2) >> (8 * (i & 3) + 4) & 15);
  }
  return half_of(word(w.s[(2 + h) % w.N_SCALES], b >> 1), b & 1);
}

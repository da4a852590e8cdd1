// kv.cuh: how a page of 32 tokens holds K and V of one head, in the order in which tensor-core
// products read them.
//
// DP is head_dim rounded up to blocks of 32 dimensions, NB of them; what lies past head_dim is
// zero. A lane is (g, t) = (lane / 4, lane % 4). Of every block a lane takes 8 dimensions of K, 8 t
// and on; of V it takes 8 tokens, 8 t and on, of one dimension.
//   K   tokens one after another: [32][NB / V][4 t][V] groups of 8 dimensions; V such that a lane
//   reads 16 bytes, or what NB allows V   f16, q8_0: [DP][32 tokens]; q4r: [DP / 16][8][32 tokens],
//   the low half a byte of dimension 16 i + j, the high one of 8 more then, for q8_0 and q4r, the
//   scales of each: halves [NB][32 tokens]
// Codes of q8_0 are signed bytes, of q4r indexes into the 16 levels of kernels_cpu/src/kv_q4.h, K
// and V turned by a Hadamard transform.
//
// V is always finite: what a product multiplies by a weight of zero must not be NaN. A token whose
// K or V is not finite is stored as a K of NaN and a V of zero, so that whoever sees it gets NaN
// and nobody else does.
#pragma once
#include "half_pair.cuh"

enum KvType : int { KV_F16 = 0, KV_Q8_0 = 1, KV_Q4R = 2 };
enum : int { PAGE = 32 };
enum : uint16_t { HALF_NAN = 0x7fff };

__device__ constexpr int kv_padded(int head_dim) { return (head_dim + 31) / 32 * 32; }
__device__ constexpr int kv_code_bytes(int kv, int dp) {
  return kv == KV_F16 ? dp * PAGE * 2 : kv == KV_Q8_0 ? dp * PAGE : dp * PAGE / 2;
}
__device__ constexpr int kv_head_bytes(int kv, int dp) {
  return kv_code_bytes(kv, dp) + (kv == KV_F16 ? 0 : dp * 2);
}
// Bytes of 8 codes; groups of 8 dimensions a lane loads at once.
__device__ constexpr int kv_group_bytes(int kv) {
  return kv == KV_F16 ? 16 : kv == KV_Q8_0 ? 8 : 4;
}
__device__ constexpr int kv_vector(int kv, int nb) {
  return kv == KV_F16 ? 1 : kv == KV_Q4R && nb % 4 == 0 ? 4 : nb % 2 == 0 ? 2 : 1;
}
// Where the 8 dimensions t of block b of a token's K lie, in bytes.
__device__ constexpr int kv_k_at(int kv, int nb, int token, int b, int t) {
  const int v = kv_vector(kv, nb);
  return (((token * (nb / v) + b / v) * 4 + t) * v + b % v) * kv_group_bytes(kv);
}
// Where V's code of a token and dimension lies; q4r: its byte.
__device__ constexpr int kv_v_at(int kv, int token, int d) {
  if (kv == KV_Q4R) return (d / 16 * 8 + d % 8) * PAGE + token;
  return (d * PAGE + token) * (kv == KV_F16 ? 2 : 1);
}

// q4r's levels plus 128: bytes of a table of 16.
#define Q4_LEVELS_0 0x42311b01u
#define Q4_LEVELS_1 0x776b5f51u
#define Q4_LEVELS_2 0xa5998e82u
#define Q4_LEVELS_3 0xebd3c1b2u

// Four levels plus 128 of the four nibbles in the low half of `w`.
__device__ __forceinline__ uint32_t q4_levels(uint32_t w) {
  const uint32_t low = __byte_perm(Q4_LEVELS_0, Q4_LEVELS_1, w & 0x7777);
  const uint32_t high = __byte_perm(Q4_LEVELS_2, Q4_LEVELS_3, w & 0x7777);
  return __byte_perm(low, high, ((w & 0x8888) >> 1) | 0x3210);
}
// Two halves of the bytes of `u` that `sel` picks (0x4140, 0x4342, 0x4240, 0x4341), less 128:
// 0x6400 + u is 1024 + u.
__device__ __forceinline__ uint32_t halves_of_bytes(uint32_t u, uint32_t sel) {
  return half_pair_sub(__byte_perm(u, 0x64646464u, sel), 0x64806480u);
}
template <int WORDS>
__device__ __forceinline__ void load_words(const uint8_t* p, uint32_t* w) {
  if (WORDS == 4) {
    const uint4 v = load<uint4>(p);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  } else if (WORDS == 2) {
    const uint2 v = load<uint2>(p);
    w[0] = v.x, w[1] = v.y;
  } else {
    w[0] = load<uint32_t>(p);
  }
}
// 8 codes of K as halves, two a word.
template <int KV>
__device__ __forceinline__ void k_operand(const uint32_t* w, uint32_t (&h)[4]) {
  if (KV == KV_F16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) h[i] = w[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t u = KV == KV_Q8_0 ? w[i] ^ 0x80808080u : q4_levels(w[0] >> 16 * i);
    h[2 * i] = halves_of_bytes(u, 0x4140);
    h[2 * i + 1] = halves_of_bytes(u, 0x4342);
  }
}
// V of one dimension and 8 tokens as parts of two operands; `odd`: of the second of q4r's two
// dimensions.
template <int KV>
__device__ __forceinline__ void v_operands(const uint32_t* w, uint4 scales, int odd,
                                           uint32_t (&b0)[2], uint32_t (&b1)[2]) {
  if (KV == KV_F16) {
    b0[0] = w[0], b0[1] = w[1], b1[0] = w[2], b1[1] = w[3];
    return;
  }
  uint32_t h[4];
  if (KV == KV_Q8_0) {
    k_operand<KV_Q8_0>(w, h);
  } else {
    const uint32_t sel = odd ? 0x4341 : 0x4240;
#pragma unroll
    for (int i = 0; i < 4; ++i) h[i] = halves_of_bytes(q4_levels(w[i / 2] >> 16 * (i % 2)), sel);
  }
  b0[0] = half_pair_mul(h[0], scales.x), b0[1] = half_pair_mul(h[1], scales.y);
  b1[0] = half_pair_mul(h[2], scales.z), b1[1] = half_pair_mul(h[3], scales.w);
}

// dot.cuh: 16 rows of quantized weights times 8 NT tokens of quantized activations, in one order of additions.
//
// Per block of 32 an exact integer, made a float, then one fma with the scales; the same of the second digits, if any token of the
// warp's has one there (for the others it adds zero); then the fma of the minima. Tokens never meet: what the tensor cores
// compute for one does not depend on the others.
#pragma once
#include "act.cuh"
#include "formats.cuh"

// Sums that start at this integer read as the float 1.5 * 2^23 + sum, exact while |sum| < 2^22: 255 * 127 * 32 is below.
constexpr int MAGIC = 0x4b400000;
constexpr float MAGIC_FLOAT = 12582912.f;

// Where a group of the activations lies: first digits and lines, second digits, and from one column tile to the next.
struct Columns {
  const uint8_t *first, *second;
  size_t first_stride, second_stride;
};

template <bool SHARED, class V>
__device__ __forceinline__ V fetch(const uint8_t* p) {
  return SHARED ? load<V>(p) : load_const<V>(p);
}

// Which blocks of the group have a second digit in some column: 8 bits a column tile and block.
template <int NT, bool SHARED>
__device__ __forceinline__ uint32_t second_flags(const Columns& x, int lane) {
  bool any = false;
  const uint8_t* line = x.first + LINES_AT + (lane >> 3 & 1) * LINE + D2_AT + (lane & 7) * 4;
#pragma unroll
  for (int n = 0; n < NT; n += 2) {
    const int tile = NT == 1 ? 0 : n + (lane >> 4);
    any |= fetch<SHARED, float>(line + tile * x.first_stride) != 0.f;
  }
  return __ballot_sync(0xffffffffu, any);
}

template <int Q>
struct Scales {  // of one block, rows g and g + 8
  float s[2], m[2][2];
  int half[2][2];
  __device__ __forceinline__ Scales(const Chunk<Q>& w, int b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      s[h] = block_scale<Q>(w, h, b);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (halves<Q>()) half[h][i] = half_scale<Q>(w, h, b, i);
        if (has_min<Q>()) m[h][i] = block_min<Q>(w, h, b, i);
      }
    }
  }
};

// o += (a b) * s d: one digit of one block; d of columns 2 t and 2 t + 1
template <int Q>
__device__ __forceinline__ void add_digit(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const Scales<Q>& w, float2 d, float (&o)[4]) {
  int r[4];
  float sum[4];
  if (halves<Q>()) {
    const uint32_t a0[2] = {a[0], a[1]}, a1[2] = {a[2], a[3]}, x0[1] = {b0}, x1[1] = {b1};
    const int zero[4] = {0, 0, 0, 0};
    int r1[4];
    imma_16816<has_min<Q>()>(r, a0, x0, zero);
    imma_16816<has_min<Q>()>(r1, a1, x1, zero);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __int2float_rn(w.half[i >> 1][0] * r[i] + w.half[i >> 1][1] * r1[i]);
  } else {
    const uint32_t b[2] = {b0, b1};
    const int magic[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
    imma_16832<has_min<Q>()>(r, a, b, magic);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fadd_rn(__int_as_float(r[i]), -MAGIC_FLOAT);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) o[i] = __fmaf_rn(sum[i], __fmul_rn(w.s[i >> 1], i & 1 ? d.y : d.x), o[i]);
}

template <int Q>
__device__ __forceinline__ void add_minima(const Scales<Q>& w, float2 x0, float2 x1, float (&o)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float u = i & 1 ? x0.y : x0.x, v = i & 1 ? x1.y : x1.x;
    if (halves<Q>()) {
      o[i] = __fmaf_rn(w.m[i >> 1][0], u, o[i]);
      o[i] = __fmaf_rn(w.m[i >> 1][1], v, o[i]);
    } else {
      o[i] = __fmaf_rn(w.m[i >> 1][0], __fadd_rn(u, v), o[i]);
    }
  }
}

// o[n] += group c of a chunk times the group's activations. o[n][0..3]: (row g, token 2 t), (g, 2 t + 1), (g + 8, 2 t), ..
template <int Q, int NT, bool SHARED>
__device__ __forceinline__ void dot_group(const Chunk<Q>& w, int c, const Columns& x, int lane, float (&o)[NT][4]) {
  const int at = (lane >> 2) * 64 + (lane & 3) * 16;
  uint4 b[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) b[n] = fetch<SHARED, uint4>(x.first + n * x.first_stride + at);
  const uint32_t flags = second_flags<NT, SHARED>(x, lane);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint8_t* line = x.first + LINES_AT + j * LINE + (lane & 3) * 8;
    const Scales<Q> scales(w, 2 * c + j);
    uint32_t a[4];
    fragment<Q>(w, c, j, a);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const float2 d = fetch<SHARED, float2>(line + n * x.first_stride);
      add_digit<Q>(a, word(b[n], 2 * j), word(b[n], 2 * j + 1), scales, d, o[n]);
    }
    if (flags & (j ? 0xff00ff00u : 0x00ff00ffu)) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const uint2 b2 = load_const<uint2>(x.second + n * x.second_stride + at + 8 * j);
        const float2 d2 = fetch<SHARED, float2>(line + n * x.first_stride + D2_AT);
        add_digit<Q>(a, b2.x, b2.y, scales, d2, o[n]);
      }
    }
    if (has_min<Q>())
#pragma unroll
      for (int n = 0; n < NT; ++n)
        add_minima<Q>(scales, fetch<SHARED, float2>(line + n * x.first_stride + X0_AT),
                      fetch<SHARED, float2>(line + n * x.first_stride + X1_AT), o[n]);
  }
}

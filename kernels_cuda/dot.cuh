// dot.cuh: 16 rows of quantized weights times 8 NT tokens of quantized activations, in one order of additions.
//
// Per block of 32 an exact integer, made a float, then one fma with the scales, then the fma of the minima. After the two blocks of
// a group of 64 come their second digits, if any token of the warp's has some there (for the others it adds zero). Tokens never
// meet: what the tensor cores compute for one does not depend on the others.
#pragma once
#include "act.cuh"
#include "formats.cuh"

// Where a group of the activations lies: first digits and lines, second digits, and from one column tile to the next.
struct Columns {
  const uint8_t *first, *second;
  uint32_t first_stride, second_stride;
  int tiles;  // that exist
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
    const int start[4] = {SUM_START, SUM_START, SUM_START, SUM_START};
    imma_16832<has_min<Q>()>(r, a, b, start);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = sum_float(r[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) o[i] = __fmaf_rn(sum[i], __fmul_rn(w.s[i >> 1], i & 1 ? d.y : d.x), o[i]);
}

// o += the minima times the sums of activations: x of the block, x1 of its second half
template <int Q>
__device__ __forceinline__ void add_minima(const Scales<Q>& w, float2 x, float2 x1, float (&o)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float all = i & 1 ? x.y : x.x, last = i & 1 ? x1.y : x1.x;
    if (halves<Q>()) {
      o[i] = __fmaf_rn(w.m[i >> 1][0], __fsub_rn(all, last), o[i]);
      o[i] = __fmaf_rn(w.m[i >> 1][1], last, o[i]);
    } else {
      o[i] = __fmaf_rn(w.m[i >> 1][0], all, o[i]);
    }
  }
}

// o[n] += group c of a chunk times the group's activations. o[n][0..3]: (row g, token 2 t), (g, 2 t + 1), (g + 8, 2 t), ..
template <int Q, int NT, bool SHARED>
__device__ __forceinline__ void dot_group(const Chunk<Q>& w, int c, const Columns& x, int lane, float (&o)[NT][4]) {
  const int t = lane & 3, at = (lane >> 2) * 64 + t * 16;
  const uint32_t flags = second_flags<NT, SHARED>(x, lane);
  const Scales<Q> scales[2] = {Scales<Q>(w, 2 * c), Scales<Q>(w, 2 * c + 1)};
  uint32_t a[2][4];
  fragment<Q>(w, c, 0, a[0]);
  fragment<Q>(w, c, 1, a[1]);
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const uint4 b = fetch<SHARED, uint4>(x.first + n * x.first_stride + at);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint8_t* line = x.first + n * x.first_stride + LINES_AT + j * LINE;
      float4 dx = make_float4(0.f, 0.f, 0.f, 0.f);
      if (has_min<Q>()) {
        dx = fetch<SHARED, float4>(line + t * 16);
      } else {
        const float2 d = fetch<SHARED, float2>(line + t * 16);
        dx.x = d.x, dx.y = d.y;
      }
      add_digit<Q>(a[j], word(b, 2 * j), word(b, 2 * j + 1), scales[j], make_float2(dx.x, dx.y), o[n]);
      if (has_min<Q>()) {
        float2 x1 = make_float2(0.f, 0.f);
        if (halves<Q>()) x1 = fetch<SHARED, float2>(line + X1_AT + t * 8);
        add_minima<Q>(scales[j], make_float2(dx.z, dx.w), x1, o[n]);
      }
    }
  }
  if (flags == 0) return;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if ((flags & (j ? 0xff00ff00u : 0x00ff00ffu)) == 0) continue;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint2 b = load_const<uint2>(x.second + min(n, x.tiles - 1) * x.second_stride + at + 8 * j);
      const float2 d = fetch<SHARED, float2>(x.first + n * x.first_stride + LINES_AT + j * LINE + D2_AT + t * 8);
      add_digit<Q>(a[j], b.x, b.y, scales[j], d, o[n]);
    }
  }
}

// Warps that share the k of a row tile: chunk i is part i % parts, and parts are added in rising order.
__device__ __forceinline__ int parts_of(int chunks) { return min(8, chunks); }

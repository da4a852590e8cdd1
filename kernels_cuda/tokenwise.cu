// tokenwise.cu: what happens to a token's row between two products: gather, residual sum (of a
// norm, if need be), scale, norm, and the int8 digits that the next product reads. A block takes
// one token, a thread every so many chunks of 8 values. Rows are read again rather than kept: they
// lie in the cache, and any width will do. Every sum runs in an order that the width alone decides.
#include "act.cuh"

enum : int { CHUNK = 8, MAX_CHUNKS = 4096 };
enum : unsigned { ALL = 0xffffffffu };

struct Chunk {
  float v[CHUNK];
};

__device__ __forceinline__ Chunk load_chunk(const float* p) {
  const float4 a = load<float4>(p), b = load<float4>(p + 4);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ void store_chunk(float* p, const Chunk& c) {
  store(p, make_float4(c.v[0], c.v[1], c.v[2], c.v[3]));
  store(p + 4, make_float4(c.v[4], c.v[5], c.v[6], c.v[7]));
}
__device__ __forceinline__ float squares(const Chunk& c) {
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) sum += c.v[e] * c.v[e];
  return sum;
}

// The sum over the block's threads, the same in all of them.
__device__ __forceinline__ float block_sum(float x, float (&part)[32]) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(ALL, x, o);
  __syncthreads();  // the last sum may still be read
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = part[0];
  for (int i = 1; i < static_cast<int>(blockDim.x / 32); ++i) sum += part[i];
  return sum;
}
__device__ __forceinline__ float inverse_rms(float squares, int n, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}
__device__ __forceinline__ void normalize(Chunk& c, float r, const float* weight) {
  const Chunk w = load_chunk(weight);
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) c.v[e] = c.v[e] * r * w.v[e];
}

// A row before its norm: x (+ y, or y normed), scaled.
struct Row {
  const float *x, *y, *wy;
  float ry, scale;
  int k;

  __device__ __forceinline__ Chunk at(int i) const {
    if (i >= k) return {};
    Chunk c = load_chunk(x + i);
    if (y) {
      Chunk other = load_chunk(y + i);
      if (wy) normalize(other, ry, wy + i);
#pragma unroll
      for (int e = 0; e < CHUNK; ++e) c.v[e] += other.v[e];
    }
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) c.v[e] *= scale;
    return c;
  }
};
#define EACH_CHUNK(i, end) for (int i = threadIdx.x * CHUNK; i < (end); i += blockDim.x * CHUNK)

// The sum of the row, to be read from there from now on.
__device__ __forceinline__ void keep_sum(Row& row, float* sum) {
  EACH_CHUNK(i, row.k) {
    Row plain = row;
    plain.scale = 1.0f;
    store_chunk(sum + i, plain.at(i));
  }
  row.x = sum;
  row.y = nullptr;
}

// Norms groups of the row, a head each,: what each is multiplied by goes to its first chunk's
// place.
__device__ __forceinline__ void norm_groups(const Row& row, float eps, int group,
                                            float (&of_chunk)[MAX_CHUNKS]) {
  EACH_CHUNK(i, row.k) of_chunk[i / CHUNK] = squares(row.at(i));
  __syncthreads();
  for (int g = threadIdx.x; g < row.k / group; g += blockDim.x) {
    float sum = 0.0f;
    for (int j = 0; j < group / CHUNK; ++j) sum += of_chunk[g * (group / CHUNK) + j];
    of_chunk[g * (group / CHUNK)] = inverse_rms(sum, group, eps);
  }
  __syncthreads();
}

// The largest magnitude of a block of 32 values, four lanes' chunks. Bits order as magnitudes do,
// NaN above all.
__device__ __forceinline__ float top_of_block(const Chunk& c) {
  unsigned top = 0;
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) top = max(top, __float_as_uint(c.v[e]) & 0x7fffffffu);
  top = max(top, __shfl_xor_sync(ALL, top, 1));
  top = max(top, __shfl_xor_sync(ALL, top, 2));
  return __uint_as_float(top);
}

struct Codes {
  uint32_t word[2];
  int sum;
};
// Digits of f * scale, |f * scale| <= 127, four a word.
__device__ __forceinline__ Codes codes_of(const Chunk& c, float scale) {
  Codes codes = {{0, 0}, 0};
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) {
    const int q = __float2int_rn(c.v[e] * scale);
    codes.word[e / 4] |= static_cast<uint32_t>(q & 0xff) << 8 * (e % 4);
    codes.sum += q;
  }
  return codes;
}
__device__ __forceinline__ void store_codes(uint8_t* tile, int column, int at, const Codes& codes) {
  store(tile + digit_at(column, at), codes.word[0]);
  store(tile + digit_at(column, at + 4), codes.word[1]);
}

// One chunk at `at` of a token's row into its column of the tile, `bar` what a block's squared top
// must pass to get a second digit. All lanes of a warp call it together; those past the row are not
// `live`.
__device__ __forceinline__ void quantize_chunk(const Chunk& c, int at, float top, float bar,
                                               bool live, uint8_t* tile, int column) {
  const bool usable = top >= 1e-36f && top < INFINITY_F, second = usable && top * top > bar;
  const float scale = usable ? 127.0f / top : 0.0f;
  const float d = usable ? top / 127.0f : top < 1.0f ? 0.0f : __int_as_float(0x7fc00000);
  Chunk clean = c;  // a block that is not finite has no digits
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) clean.v[e] = usable ? c.v[e] : 0.0f;
  const Codes first = codes_of(clean, scale);
  if (live) store_codes(tile, column, at, first);
  Codes rest = {{0, 0}, 0};
  if (second) {
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
      clean.v[e] = clean.v[e] - d * static_cast<float>(__float2int_rn(clean.v[e] * scale));
    rest = codes_of(clean, 254.0f / d);
    if (live) store_codes(tile + SECOND_AT, column, at, rest);
  }
  // Sums of what the digits stand for: of each half of the block, two lanes, then of both.
  const float d2 = second ? d / 254.0f : 0.0f;
  const int sum = first.sum + __shfl_xor_sync(ALL, first.sum, 1),
            sum2 = rest.sum + __shfl_xor_sync(ALL, rest.sum, 1);
  const float half = d * static_cast<float>(sum) + d2 * static_cast<float>(sum2);
  const float other = __shfl_xor_sync(ALL, half, 2);
  if (live && at % 32 == 0) put_line(tile, column, at / 32, d, half + other, other, d2);
}

// Digits of the whole row. Blocks whose top towers over the row's get a second one
// (kernels_cpu/src/act_q8.h).
template <class F>
__device__ __forceinline__ void quantize_row(const F& value, int k, int token, uint8_t* acts,
                                             float (&part)[32]) {
  const int groups = (k + 63) / 64, end = (groups * 64 + 255) / 256 * 256;  // whole warps
  float mine = 0.0f;
  EACH_CHUNK(i, end) {
    const float top = top_of_block(value(i));
    if (i % 32 == 0) mine += top * top;
  }
  const float bar = 3.0f * block_sum(mine, part) / static_cast<float>(k / 32);
  uint8_t* tile = acts + static_cast<size_t>(token / 8) * column_tile_bytes(groups);
  EACH_CHUNK(i, end) {
    const Chunk c = value(i);
    quantize_chunk(c, i, top_of_block(c), bar, i < groups * 64, tile, token % 8);
  }
}

// grid T, block a multiple of 32 threads. For token t, from row s = gather ? gather[t] : t of x and
// y, if that is not negative:
//   v = x[s] (+ y[s], or its rms norm times wy); sum[t] = v; v *= scale; v = its rms norm over
//   `group` values times w; out: v itself, float [T][ldo], or its digits (ACTS). y, wy, gather,
//   sum, w may be null; sum and out may be x or y,
// where rows are not gathered. k, the lds and `group` are multiples of 8, with ACTS k is one of 32,
// and groups shorter than a row want k <= 32768; pointers are aligned to 16 bytes.
template <int ACTS>
__global__ void __launch_bounds__(1024, 1)
    tokenwise(const float* x, int ldx, const float* y, int ldy, const int* __restrict__ gather,
              const float* __restrict__ wy, float eps_y, float* sum, int ldsum, float scale,
              const float* __restrict__ w, float eps, int group, void* out, int ldo, int k) {
  __shared__ float part[32], of_chunk[MAX_CHUNKS];
  const int token = blockIdx.x, source = gather ? gather[token] : token;
  if (source < 0) return;
  Row row = {x + static_cast<size_t>(source) * ldx, nullptr, wy, 0.0f, scale, k};
  if (y) row.y = y + static_cast<size_t>(source) * ldy;
  if (y && wy) {
    float mine = 0.0f;
    EACH_CHUNK(i, k) mine += squares(load_chunk(row.y + i));
    row.ry = inverse_rms(block_sum(mine, part), k, eps_y);
  }
  if (sum) keep_sum(row, sum + static_cast<size_t>(token) * ldsum);
  float r = 1.0f;
  if (w && group == k) {
    float mine = 0.0f;
    EACH_CHUNK(i, k) mine += squares(row.at(i));
    r = inverse_rms(block_sum(mine, part), k, eps);
  } else if (w) {
    norm_groups(row, eps, group, of_chunk);
  }
  const auto value = [&](int i) {
    Chunk c = row.at(i);
    if (w && i < k)
      normalize(c, group == k ? r : of_chunk[i / group * (group / CHUNK)], w + i % group);
    return c;
  };
  if (ACTS) {
    quantize_row(value, k, token, static_cast<uint8_t*>(out), part);
    return;
  }
  float* to = static_cast<float*>(out) + static_cast<size_t>(token) * ldo;
  EACH_CHUNK(i, k) store_chunk(to + i, value(i));
}

// rows.cu: rows of a quantized matrix as floats: the embedding of token ids, with the bits of the file format's definition.
//
// grid = (row ids, chunks of 256 k), block = 32. out[i * ld + k] = scale * row ids[i]; an id outside of the rows gives NaN.
// An id -1 - j stands for named[j], if named is not null: what a step that is still under way finds.
#include "formats.cuh"

template <int Q>
__global__ void unpack_rows(const uint8_t* __restrict__ w, const int* __restrict__ ids, const int* __restrict__ named,
                            float* __restrict__ out, int rows, int k, int ld, float scale) {
  const int lane = threadIdx.x, given = ids[blockIdx.x], id = given < 0 && named ? named[-1 - given] : given;
  const int groups = (k + 63) / 64, i = blockIdx.y, h = id >> 3 & 1;
  float* to = out + static_cast<size_t>(blockIdx.x) * ld + i * CHUNK;
  if (id < 0 || id >= rows) {
    for (int at = lane; at < CHUNK && i * CHUNK + at < k; at += 32) to[at] = __int_as_float(0x7fffffff);
    return;
  }
  if (lane >> 2 != (id & 7)) return;  // four lanes hold the row
  Chunk<Q> chunk;
  chunk.load(w + (id >> 4) * tile_bytes<Q>(groups) + static_cast<size_t>(i) * chunk_bytes<Q>(), groups - 4 * i, lane);
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    uint32_t a[4];
    fragment<Q>(chunk, b >> 1, b & 1, a);
    const float s = h ? block_scale<Q>(chunk, 1, b) : block_scale<Q>(chunk, 0, b);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = 32 * b + 16 * half + 4 * (lane & 3);
      if (i * CHUNK + at >= k) return;
      const uint32_t codes = h ? a[2 * half + 1] : a[2 * half];
      float d = s, m = 0.f;
      if (halves<Q>()) d = __fmul_rn(s, __int2float_rn(h ? half_scale<Q>(chunk, 1, b, half) : half_scale<Q>(chunk, 0, b, half)));
      if (has_min<Q>()) m = h ? block_min<Q>(chunk, 1, b, half) : block_min<Q>(chunk, 0, b, half);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int q = has_min<Q>() ? static_cast<int>(codes >> 8 * e & 255) : signed_byte(codes, e);
        const float v = __fmul_rn(d, __int2float_rn(q));
        to[at + e] = __fmul_rn(has_min<Q>() ? __fadd_rn(v, m) : v, scale);
      }
    }
  }
}

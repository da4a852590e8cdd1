// repack_float.cu: rows of F32, F16 and BF16 as a GGUF file holds them into the order of fmm.cu, and back.
#include "formats.cuh"

// grid = (ceil(K / 256), tiles), block = 256: a thread moves one value of each of 16 rows. src2 as in repack.cu.
template <int Q>
__global__ void repack_float(const uint8_t* __restrict__ src, const uint8_t* __restrict__ src2, uint8_t* __restrict__ dst, int rows, int k) {
  constexpr int B = value_bytes<Q>(), STEP = 16 / B;
  const int at = blockIdx.x * 256 + threadIdx.x, padded = (k + 7) / 8 * 8, tile = blockIdx.y;
  if (at >= padded) return;
  for (int r = 0; r < 16; ++r) {
    const int row = src2 ? tile * 8 + (r & 7) : tile * 16 + r;
    const uint8_t* from = src2 && r >= 8 ? src2 : src;
    uint32_t v = 0;
    if (row < rows && at < k)
      for (int i = 0; i < B; ++i) v |= from[(static_cast<size_t>(row) * k + at) * B + i] << 8 * i;
    uint8_t* to = dst + static_cast<size_t>(tile) * padded * 16 * B + static_cast<size_t>(at / STEP) * 256 + r * 16 + at % STEP * B;
    if (B == 4)
      store<uint32_t>(to, v);
    else
      store<uint16_t>(to, static_cast<uint16_t>(v));
  }
}

// out[i * ld + k] = scale * row ids[i], with named as in rows.cu; an id outside of the rows gives NaN. grid = (row ids, ceil(K / 256)), block = 256
template <int Q>
__global__ void unpack_float_rows(const uint8_t* __restrict__ w, const int* __restrict__ ids, const int* __restrict__ named,
                                  float* __restrict__ out, int rows, int k, int ld, float scale) {
  constexpr int B = value_bytes<Q>(), STEP = 16 / B;
  const int given = ids[blockIdx.x], id = given < 0 && named ? named[-1 - given] : given;
  const int at = blockIdx.y * 256 + threadIdx.x, padded = (k + 7) / 8 * 8;
  if (at >= k) return;
  float v = __int_as_float(0x7fffffff);
  if (id >= 0 && id < rows) {
    const uint8_t* from = w + static_cast<size_t>(id >> 4) * padded * 16 * B + static_cast<size_t>(at / STEP) * 256 + (id & 15) * 16 + at % STEP * B;
    if (Q == F32) v = load_const<float>(from);
    if (Q == F16) v = half_to_float(load_const<uint16_t>(from));
    if (Q == BF16) v = bf16_to_float(load_const<uint16_t>(from));
  }
  out[static_cast<size_t>(blockIdx.x) * ld + at] = __fmul_rn(v, scale);
}

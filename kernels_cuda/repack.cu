// repack.cu: rows as a GGUF file holds them into the order of formats.cuh, once, at load.
//
// grid = (chunks of 256 k, tiles of 16 rows), block = 32. src2, if not null, gives rows 8 .. 15 of each tile: gate and up projection
// side by side, 8 rows of each. Rows and k that do not exist become zero.
#include "formats.cuh"

FORMAT int block_k() { return whole_chunks<Q>() ? 256 : 32; }
FORMAT int block_bytes() {
  return Q == Q4_0 || Q == IQ4_NL ? 18 : Q == Q4_1 ? 20 : Q == Q5_0 ? 22 : Q == Q5_1 ? 24 : Q == Q8_0 ? 34 : Q == MXFP4 ? 17
       : Q == Q2_K ? 84 : Q == Q3_K ? 110 : Q == Q4_K ? 144 : Q == Q5_K ? 176 : Q == Q6_K ? 210 : 136;
}

// The code of value k of a block; signed ones in two's complement of their width, which only turns the top bit over.
template <int Q>
__device__ __forceinline__ uint32_t code_at(const uint8_t* b, int k) {
  if (Q == Q8_0) return b[2 + k];
  const int l = k & 31, quarter = k >> 5 & 3, n = k >> 7;
  if (Q == Q2_K) return b[16 + 32 * n + l] >> 2 * quarter & 3;
  if (Q == Q3_K) return (b[32 + 32 * n + l] >> 2 * quarter & 3) | ((b[l] >> (4 * n + quarter) & 1) ^ 1) << 2;
  if (Q == Q4_K) return b[16 + 32 * (k >> 6) + l] >> 4 * (quarter & 1) & 15;
  if (Q == Q5_K) return (b[48 + 32 * (k >> 6) + l] >> 4 * (quarter & 1) & 15) | (b[16 + l] >> (k >> 5) & 1) << 4;
  if (Q == Q6_K)
    return ((b[64 * n + 32 * (quarter & 1) + l] >> 4 * (quarter >> 1) & 15) | (b[128 + 32 * n + l] >> 2 * quarter & 3) << 4) ^ 32;
  const int high = k >> 4 & 1;
  if (Q == IQ4_XS) return b[8 + 16 * (k >> 5) + (k & 15)] >> 4 * high & 15;
  const int at = Q == MXFP4 ? 1 : Q == Q4_1 ? 4 : Q == Q5_0 ? 6 : Q == Q5_1 ? 8 : 2;
  const uint32_t v = b[at + (k & 15)] >> 4 * high & 15;
  if (Q == Q4_0) return v ^ 8;
  if (Q == Q5_0 || Q == Q5_1) {
    const uint32_t top = b[at - 4 + (k >> 3)] >> (k & 7) & 1;
    return v | (Q == Q5_0 ? top ^ 1 : top) << 4;
  }
  return v;
}

struct Rows {  // of a tile, from the file
  const uint8_t *first, *second;
  size_t row_bytes;
  int tile, rows;
  __device__ const uint8_t* at(int r) const {
    const bool pair = second != nullptr;
    const int row = pair ? tile * 8 + (r & 7) : tile * 16 + r;
    if (row >= rows) return nullptr;
    return (pair && r >= 8 ? second : first) + row * row_bytes;
  }
};

// Byte i of row r's part of the chunk's scales; 0 where k has ended.
template <int Q>
__device__ __forceinline__ uint8_t scale_byte(const uint8_t* row, int chunk, int k, int i, bool extra) {
  constexpr int SIZE = block_bytes<Q>();
  if (whole_chunks<Q>()) {
    const uint8_t* b = row + static_cast<size_t>(chunk) * SIZE;
    if (Q == Q2_K) return extra ? b[80 + i] : b[i];
    if (Q == Q6_K) return extra ? b[208 + i] : b[192 + i];
    if (Q == Q3_K) return i < 2 ? b[108 + i] : i < 4 ? 0 : b[96 + i - 4];
    return b[i];
  }
  const int block = Q == MXFP4 ? i : i >> 1;
  if ((chunk * 8 + block) * 32 >= k) return 0;
  const uint8_t* b = row + static_cast<size_t>(chunk * 8 + block) * SIZE;
  return Q == MXFP4 ? b[0] : b[(extra ? 2 : 0) + (i & 1)];
}

template <int Q>
__device__ __forceinline__ void copy_scales(const Rows& src, uint8_t* out, int chunk, int k) {
  constexpr int A = Q == IQ4_XS || Q == MXFP4 ? 8 : 16;                             // bytes of a row
  constexpr int B = Q == Q6_K ? 2 : Q == Q2_K ? 4 : Q == Q4_1 || Q == Q5_1 ? 16 : 0;  // and behind all rows' first part
  for (int e = threadIdx.x; e < 16 * (A + B); e += 32) {
    const bool extra = e >= 16 * A;
    const int n = extra ? B : A, at = extra ? e - 16 * A : e;
    const uint8_t* row = src.at(at / (n ? n : 1));
    out[e] = row ? scale_byte<Q>(row, chunk, k, at % (n ? n : 1), extra) : 0;
  }
}

template <int Q>
__global__ void repack(const uint8_t* __restrict__ src, const uint8_t* __restrict__ src2, uint8_t* __restrict__ dst, int rows, int k) {
  const int lane = threadIdx.x, g = lane >> 2, t = lane & 3, chunk = blockIdx.x, groups = (k + 63) / 64;
  const Rows file = {src, src2, static_cast<size_t>(k / block_k<Q>()) * block_bytes<Q>(), static_cast<int>(blockIdx.y), rows};
  uint8_t* out = dst + blockIdx.y * tile_bytes<Q>(groups) + static_cast<size_t>(chunk) * chunk_bytes<Q>();
  copy_scales<Q>(file, out, chunk, k);
  // Code of value i of register r of block j of group c.
  const auto code = [&](int c, int j, int r, int i) -> uint32_t {
    const int at = chunk * 256 + 64 * c + 32 * j + 16 * (r >> 1) + 4 * t + i;
    const uint8_t* row = file.at(g + 8 * (r & 1));
    if (!row || at >= k) return 0;
    return code_at<Q>(row + static_cast<size_t>(at / block_k<Q>()) * block_bytes<Q>(), at % block_k<Q>());
  };
  uint32_t plane[3][4] = {};
  for (int c = 0; c < 4 && 4 * chunk + c < groups; ++c)
    for (int r = 0; r < 4; ++r) {
      uint32_t v[2] = {0, 0};
      for (int j = 0; j < 2; ++j)
        for (int i = 0; i < 4; ++i) {
          const uint32_t q = code(c, j, r, i);
          const int b = 2 * c + j;
          if (Q == Q8_0) v[j] |= q << 8 * i;
          if (group_loads<Q>() == 1) v[0] |= (q & 15) << (from_table<Q>() ? 16 * j + 4 * i : 8 * i + 4 * j);
          if (five_bits<Q>()) plane[0][c] |= (q >> 4) << (8 * i + 4 * j + r);
          if (Q == Q6_K) plane[b >> 2][b & 3] |= (q >> 4) << (8 * i + 2 * r);
          if (Q == Q2_K || Q == Q3_K) plane[b >> 2][b & 3] |= (q & 3) << (8 * i + 2 * r);
          if (Q == Q3_K) plane[2][c] |= (q >> 2) << (8 * i + 4 * j + r);
        }
      uint8_t* codes = out + codes_at<Q>() + c * group_loads<Q>() * 512 + lane * 16 + r * 4;
      for (int i = 0; i < group_loads<Q>(); ++i) store<uint32_t>(codes + i * 512, v[i]);
    }
  for (int i = 0; i < planes<Q>(); ++i)
    store<uint4>(out + scale_bytes<Q>() + i * 512 + lane * 16, make_uint4(plane[i][0], plane[i][1], plane[i][2], plane[i][3]));
}

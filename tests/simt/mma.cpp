// mma.cpp: matrix products of a warp. Lane 4 g + t holds row g of A and column g of B; see "Matrix Fragments" in the PTX manual.
#include "cuda_shim.h"

namespace simt {
namespace {

float from_half(uint16_t v) { return half_to_float(v); }
float from_bfloat(uint16_t v) { return std::bit_cast<float>(uint32_t(v) << 16); }

// D[16][8] = A[16][16] B[16][8] + C in float32, terms in order of k. The GPU's own order within an instruction is not documented.
template <float (*DECODE)(uint16_t)>
void mma_float(void** args, uint32_t) {
  const auto S = reinterpret_cast<Mma**>(args);
  float A[16][16], B[8][16], out[32][4];
  const auto at = [](const uint32_t* r, int i) { return DECODE(uint16_t(r[i / 2] >> 16 * (i & 1))); };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 8; ++i) A[g + (i >> 1 & 1) * 8][t * 2 + (i & 1) + (i >> 2) * 8] = at(S[lane]->a, i);
    for (int i = 0; i < 4; ++i) B[g][t * 2 + (i & 1) + (i >> 1) * 8] = at(S[lane]->b, i);
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = (lane >> 2) + (i >> 1) * 8, col = (lane & 3) * 2 + (i & 1);
      float sum = static_cast<const float*>(S[lane]->c)[i];
      for (int k = 0; k < 16; ++k) sum += A[row][k] * B[col][k];
      out[lane][i] = sum;
    }
  for (int lane = 0; lane < 32; ++lane) memcpy(S[lane]->d, out[lane], sizeof out[lane]);
}

// D[8 M][8] = A[8 M][16 K] B[16 K][8] + C, exact: register a[k * M + m], b[k], c and d[m * 2 + i].
template <bool UNSIGNED_A, int M, int K>
void mma_int(void** args, uint32_t) {
  const auto S = reinterpret_cast<Mma**>(args);
  int16_t A[8 * M][16 * K], B[8][16 * K];
  int out[32][2 * M];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane >> 2, t = lane & 3;
    for (int k = 0; k < K; ++k)
      for (int i = 0; i < 4; ++i) {
        B[g][k * 16 + t * 4 + i] = int8_t(S[lane]->b[k] >> 8 * i);
        for (int m = 0; m < M; ++m) {
          const uint8_t v = uint8_t(S[lane]->a[k * M + m] >> 8 * i);
          A[m * 8 + g][k * 16 + t * 4 + i] = UNSIGNED_A ? int16_t(v) : int16_t(int8_t(v));
        }
      }
  }
  int D[8 * M][8];
  for (int row = 0; row < 8 * M; ++row)
    for (int col = 0; col < 8; ++col) {
      int sum = 0;
      for (int k = 0; k < 16 * K; ++k) sum += A[row][k] * B[col][k];
      D[row][col] = sum;
    }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 2 * M; ++i) {
      const unsigned c = unsigned(static_cast<const int*>(S[lane]->c)[i]);
      out[lane][i] = int(c + unsigned(D[(lane >> 2) + (i >> 1) * 8][(lane & 3) * 2 + (i & 1)]));
    }
  for (int lane = 0; lane < 32; ++lane) memcpy(S[lane]->d, out[lane], sizeof out[lane]);
}

}  // namespace

void mma_f16(void** args, uint32_t m) { mma_float<from_half>(args, m); }
void mma_bf16(void** args, uint32_t m) { mma_float<from_bfloat>(args, m); }
void mma_s8_k32(void** args, uint32_t m) { mma_int<false, 2, 2>(args, m); }
void mma_u8_k32(void** args, uint32_t m) { mma_int<true, 2, 2>(args, m); }
void mma_s8_k16(void** args, uint32_t m) { mma_int<false, 2, 1>(args, m); }
void mma_u8_k16(void** args, uint32_t m) { mma_int<true, 2, 1>(args, m); }
void mma_s8_m8(void** args, uint32_t m) { mma_int<false, 1, 1>(args, m); }
void mma_u8_m8(void** args, uint32_t m) { mma_int<true, 1, 1>(args, m); }

// Four 8 x 8 matrices of 16 bits; lane l gave the address of row l % 8 of matrix l / 8.
void load_matrix(void** args, uint32_t) {
  const auto S = reinterpret_cast<LoadMatrix**>(args);
  for (int m = 0; m < 4; ++m)
    for (int lane = 0; lane < 32; ++lane) memcpy(&S[lane]->out[m], S[m * 8 + lane / 4]->row + (lane & 3) * 4, 4);
}
void load_matrix_transposed(void** args, uint32_t) {
  const auto S = reinterpret_cast<LoadMatrix**>(args);
  for (int m = 0; m < 4; ++m)
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 2; ++i)
        memcpy(reinterpret_cast<uint8_t*>(&S[lane]->out[m]) + 2 * i, S[m * 8 + (lane & 3) * 2 + i]->row + (lane >> 2) * 2, 2);
}

}  // namespace simt

// cuda_warp.h: what the threads of a warp and of a block do together: barriers, shuffles, votes, matrix products.
#pragma once
#include "simt.h"

#define SIMT_HERE simt::Where where = simt::Where::current()

inline void __syncthreads(SIMT_HERE) { simt::barrier(where); }

namespace simt {
// Kinds of warp operations: lanes of one mask must be at the same kind.
enum Kind { SYNC = 1, SHUFFLE, SHUFFLE_XOR, SHUFFLE_DOWN, SHUFFLE_UP, BALLOT, REDUCE, LOAD_MATRIX, MMA_F16, MMA_BF16, MMA_I8 };

template <class T>
struct Shuffled {
  T mine, out;
  unsigned source;
};
template <class T>
inline T shuffle(unsigned mask, T v, unsigned source, Kind kind, Where where) {
  Shuffled<T> s{v, v, source};
  auto resolve = [](void** args, uint32_t lanes) {
    for (uint32_t m = lanes; m; m &= m - 1) {
      auto* to = static_cast<Shuffled<T>*>(args[std::countr_zero(m)]);
      const auto* from = static_cast<const Shuffled<T>*>(args[to->source]);
      if (from)
        to->out = from->mine;
      else
        memset(static_cast<void*>(&to->out), 0xA5, sizeof(T));  // undefined on the GPU: junk
    }
  };
  collective(mask, kind, &s, resolve, where);
  return s.out;
}

struct Ballot {
  bool vote;
  unsigned out;
};

// What a lane brings to a matrix product, and the fragment registers as the PTX manual lays them out (mma.cpp).
struct Mma {
  void* d;
  const uint32_t *a, *b;
  const void* c;
};
void mma_f16(void** args, uint32_t), mma_bf16(void** args, uint32_t);
void mma_s8_k32(void** args, uint32_t), mma_u8_k32(void** args, uint32_t), mma_s8_k16(void** args, uint32_t),
    mma_u8_k16(void** args, uint32_t), mma_s8_m8(void** args, uint32_t), mma_u8_m8(void** args, uint32_t);

struct LoadMatrix {
  uint32_t* out;
  const uint8_t* row;
};
void load_matrix(void** args, uint32_t), load_matrix_transposed(void** args, uint32_t);
}  // namespace simt

inline void __syncwarp(unsigned mask = ~0u, SIMT_HERE) {
  simt::collective(mask & simt::warp_mask(), simt::SYNC, nullptr, [](void**, uint32_t) {}, where);
}
template <class T>
inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, SIMT_HERE) {
  const unsigned first = simt::lane & ~unsigned(width - 1);
  return simt::shuffle(mask, v, first + (unsigned(source) & unsigned(width - 1)), simt::SHUFFLE, where);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int other, int width = 32, SIMT_HERE) {
  const unsigned from = simt::lane ^ unsigned(other), end = (simt::lane & ~unsigned(width - 1)) + unsigned(width);
  return simt::shuffle(mask, v, from >= end ? simt::lane : from, simt::SHUFFLE_XOR, where);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, SIMT_HERE) {
  const unsigned from = simt::lane + by, end = (simt::lane & ~unsigned(width - 1)) + unsigned(width);
  return simt::shuffle(mask, v, from >= end ? simt::lane : from, simt::SHUFFLE_DOWN, where);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, SIMT_HERE) {
  const unsigned first = simt::lane & ~unsigned(width - 1);
  return simt::shuffle(mask, v, simt::lane < first + by ? simt::lane : simt::lane - by, simt::SHUFFLE_UP, where);
}
inline unsigned __ballot_sync(unsigned mask, int vote, SIMT_HERE) {
  simt::Ballot b{vote != 0, 0};
  auto resolve = [](void** args, uint32_t lanes) {
    unsigned votes = 0;
    for (uint32_t m = lanes; m; m &= m - 1)
      if (static_cast<simt::Ballot*>(args[std::countr_zero(m)])->vote) votes |= m & -m;
    for (uint32_t m = lanes; m; m &= m - 1) static_cast<simt::Ballot*>(args[std::countr_zero(m)])->out = votes;
  };
  simt::collective(mask, simt::BALLOT, &b, resolve, where);
  return b.out;
}
inline int __any_sync(unsigned mask, int vote, SIMT_HERE) { return __ballot_sync(mask, vote, where) != 0; }
inline int __all_sync(unsigned mask, int vote, SIMT_HERE) { return __ballot_sync(mask, vote, where) == mask; }

// ---- matrix fragments
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, SIMT_HERE) {
  if (reinterpret_cast<uintptr_t>(row) % 16) simt::fail("ldmatrix: a row at an address that is no multiple of 16");
  simt::LoadMatrix s{r, static_cast<const uint8_t*>(row)};
  simt::collective(~0u, simt::LOAD_MATRIX, &s, simt::load_matrix, where);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, SIMT_HERE) {
  if (reinterpret_cast<uintptr_t>(row) % 16) simt::fail("ldmatrix: a row at an address that is no multiple of 16");
  simt::LoadMatrix s{r, static_cast<const uint8_t*>(row)};
  simt::collective(~0u, simt::LOAD_MATRIX, &s, simt::load_matrix_transposed, where);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SIMT_HERE) {
  simt::Mma s{d, a, b, d};
  simt::collective(~0u, simt::MMA_F16, &s, simt::mma_f16, where);
}
#if __CUDA_ARCH__ >= 800
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SIMT_HERE) {
  simt::Mma s{d, a, b, d};
  simt::collective(~0u, simt::MMA_BF16, &s, simt::mma_bf16, where);
}
template <bool UNSIGNED_A>
inline void imma_16832(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4], SIMT_HERE) {
  simt::Mma s{d, a, b, c};
  simt::collective(~0u, simt::MMA_I8, &s, UNSIGNED_A ? simt::mma_u8_k32 : simt::mma_s8_k32, where);
}
template <bool UNSIGNED_A>
inline void imma_16816(int (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1], const int (&c)[4], SIMT_HERE) {
  simt::Mma s{d, a, b, c};
  simt::collective(~0u, simt::MMA_I8, &s, UNSIGNED_A ? simt::mma_u8_k16 : simt::mma_s8_k16, where);
}
#else
template <bool UNSIGNED_A>
inline void imma_8816(int (&d)[2], uint32_t a, uint32_t b, int c0, int c1, SIMT_HERE) {
  const int c[2] = {c0, c1};
  simt::Mma s{d, &a, &b, c};
  simt::collective(~0u, simt::MMA_I8, &s, UNSIGNED_A ? simt::mma_u8_m8 : simt::mma_s8_m8, where);
}
#endif

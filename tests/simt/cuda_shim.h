// cuda_shim.h: CUDA C++ as C++20 on simt.h. Include it before a kernel file; kernels_cuda/ptx.cuh then leaves out its device
// half, whose functions are here and in cuda_warp.h. Only what the kernels use is here.
#pragma once
#include "simt.h"

#define EDGERUN_SIMT 1
#ifndef SIMT_CUDA_ARCH
#define SIMT_CUDA_ARCH 890
#endif
#define __CUDA_ARCH__ SIMT_CUDA_ARCH
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __constant__ static
#define __align__(n) __attribute__((aligned(n)))
#if defined(SIMT_ASAN) || defined(SIMT_TSAN)
#define __shared__ static  // red zones around every array
#else
#define __shared__ __attribute__((section("simt_shared"))) static  // poisoned before each block
#endif
#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(simt::dynamic_shared)

using dim3 = simt::Dim;
#define threadIdx (simt::thread_idx)
#define blockIdx (simt::block_idx)
#define blockDim (simt::block_dim)
#define gridDim (simt::grid_dim)

// ---- vector types
#define SIMT_VEC2(name, T, bytes) \
  struct alignas(bytes) name##2 { \
    T x, y;                       \
  };                              \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define SIMT_VEC4(name, T, bytes) \
  struct alignas(bytes) name##4 { \
    T x, y, z, w;                 \
  };                              \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VEC2(float, float, 8)
SIMT_VEC4(float, float, 16)
SIMT_VEC2(int, int, 8)
SIMT_VEC4(int, int, 16)
SIMT_VEC2(uint, unsigned, 8)
SIMT_VEC4(uint, unsigned, 16)
SIMT_VEC4(char, signed char, 4)
SIMT_VEC4(uchar, unsigned char, 4)

// ---- arithmetic: every operation rounds as on the GPU. The build switches contraction off.
extern "C" {
float expf(float), exp2f(float), logf(float), sinf(float), cosf(float), tanhf(float), sqrtf(float), fabsf(float);
float fmaxf(float, float), fminf(float, float);
}
#define INFINITY_F __builtin_inff()
template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float rsqrtf(float a) { return 1.f / __builtin_sqrtf(a); }
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
inline float __int2float_rn(int a) { return float(a); }
inline float __uint2float_rn(unsigned a) { return float(a); }
// What does not fit saturates and NaN is 0, as on the GPU.
inline int __float2int_rn(float a) {
  if (!(a == a)) return 0;
  if (a >= 2147483648.f) return 2147483647;
  if (a < -2147483648.f) return -2147483647 - 1;
  return int(__builtin_nearbyintf(a));
}
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline int __popc(unsigned a) { return std::popcount(a); }
inline int __clz(int a) { return std::countl_zero(unsigned(a)); }
inline int __ffs(int a) { return a ? std::countr_zero(unsigned(a)) + 1 : 0; }

// Bytes of b:a by number; bit 3 of a selector takes the byte's sign instead.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selectors >> 4 * i & 15;
    uint8_t v = uint8_t(bytes >> 8 * (s & 7));
    if (s & 8) v = v & 0x80 ? 0xFF : 0;
    out |= unsigned(v) << 8 * i;
  }
  return out;
}
inline int __dp4a(int a, int b, int c) {
  unsigned sum = unsigned(c);
  for (int i = 0; i < 32; i += 8) sum += unsigned(int8_t(a >> i) * int8_t(b >> i));
  return int(sum);
}

template <class T>
inline T __ldg(const T* p) {
  return *p;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline unsigned lane_id() { return simt::lane; }

// ---- half types as bits, exactly as the conversions of ptx.cuh
inline float half_to_float(uint16_t h) { return float(std::bit_cast<_Float16>(h)); }
inline uint16_t float_to_half(float f) { return std::bit_cast<uint16_t>(_Float16(f)); }

// ---- memory: an address that a vector access could not have is an error
template <class V>
inline void check_aligned(const void* p, const char* what) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(V))
    simt::fail("%s of %u bytes at an address that is no multiple of it", what, unsigned(sizeof(V)));
}
template <class V>
inline V load(const void* p) {
  check_aligned<V>(p, "a load");
  return *static_cast<const V*>(p);
}
template <class V>
inline V load_const(const void* p) {
  return load<V>(p);
}
inline uint4 load_stream(const void* p) { return load<uint4>(p); }
template <class V>
inline void store(void* p, V v) {
  check_aligned<V>(p, "a store");
  *static_cast<V*>(p) = v;
}
inline void cp_async16(void* to, const void* from) {
  check_aligned<uint4>(to, "an asynchronous copy"), check_aligned<uint4>(from, "an asynchronous copy");
#if __CUDA_ARCH__ >= 800
  simt::copy_async(to, from, 16);
#else
  memcpy(to, from, 16);
#endif
}
inline void cp_async_commit() { simt::copy_commit(); }
template <int LEFT>
inline void cp_async_wait() {
  simt::copy_wait(LEFT);
}

// ---- atomics: relaxed, as on the GPU
template <class T, class F>
inline T simt_exchange(T* p, F next) {
  T old, now;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do now = next(old);
  while (!__atomic_compare_exchange(p, &old, &now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
#define SIMT_ATOMIC(name, value)                              \
  template <class T>                                          \
  inline T name(T* p, std::type_identity_t<T> v) {            \
    return simt_exchange(p, [=](T o) -> T { return value; }); \
  }
SIMT_ATOMIC(atomicAdd, T(o + v))
SIMT_ATOMIC(atomicMax, o < v ? v : o)
SIMT_ATOMIC(atomicMin, v < o ? v : o)
SIMT_ATOMIC(atomicExch, v)
SIMT_ATOMIC(atomicOr, o | v)

#include "cuda_warp.h"

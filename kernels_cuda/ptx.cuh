// ptx.cuh: every instruction that CUDA C++ has no name for, one wrapper each, and every difference between architectures
// (sm_75 and later). No CUDA headers are needed: NVRTC knows the vector types and intrinsics, 16-bit floats are bits here.
#pragma once

#ifndef EDGERUN_SIMT  // on a CPU, tests/simt has these

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;

#define INFINITY_F __int_as_float(0x7f800000)
#define DYN_SHARED(T, name)                                 \
  extern __shared__ __align__(16) uint8_t dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(dynamic_shared)
#define PTX __device__ __forceinline__

PTX unsigned lane_id() {
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
PTX float half_to_float(uint16_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
PTX uint16_t float_to_half(float f) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

// ---- memory. The address must be a multiple of the size.
template <class V>
PTX V load(const void* p) {
  return *static_cast<const V*>(p);
}
template <class V>
PTX V load_const(const void* p) {  // global memory that no one writes during the launch
  return __ldg(static_cast<const V*>(p));
}
// Weights are read once a launch: past L1, in granules of 128 bytes.
PTX uint4 load_stream(const void* p) {
  uint4 r;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}
template <class V>
PTX void store(void* p, V v) {
  *static_cast<V*>(p) = v;
}

PTX uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// 16 bytes from global to shared memory; done once the thread has waited for its group and the block for its threads.
PTX void cp_async16(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  *static_cast<uint4*>(to) = __ldg(static_cast<const uint4*>(from));
#endif
}
PTX void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT>
PTX void cp_async_wait() {  // until at most LEFT groups of this thread are under way
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// ---- matrix fragments: four 8 x 8 matrices of 16 bits, lane l gives the address of row l % 8 of matrix l / 8
PTX void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
PTX void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// ---- D[16][8] += A[16][16] B[16][8], float16 or bfloat16 in, float32 sums in an order of the hardware's own
#if __CUDA_ARCH__ >= 800
PTX void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
PTX void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
PTX void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#pragma unroll
  for (int k = 0; k < 2; ++k)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
}
#endif

// ---- D[16][8] = A[16][k] B[k][8] + C in exact int32: A of unsigned or signed bytes, B signed.
// volatile keeps them out of divergent code.
#define IMMA_16832(TA)                                                                                                        \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." TA ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" \
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]))
#define IMMA_16816(TA)                                                                                                 \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32." TA ".s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"     \
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]))
#define IMMA_8816(TA)                                                                           \
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." TA ".s8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};" \
               : "=r"(d[0]), "=r"(d[1])                                                         \
               : "r"(a), "r"(b), "r"(c0), "r"(c1))
#if __CUDA_ARCH__ >= 800
template <bool UNSIGNED_A>
PTX void imma_16832(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4]) {
  if (UNSIGNED_A)
    IMMA_16832("u8");
  else
    IMMA_16832("s8");
}
template <bool UNSIGNED_A>
PTX void imma_16816(int (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1], const int (&c)[4]) {
  if (UNSIGNED_A)
    IMMA_16816("u8");
  else
    IMMA_16816("s8");
}
#else
template <bool UNSIGNED_A>
PTX void imma_8816(int (&d)[2], uint32_t a, uint32_t b, int c0, int c1) {
  if (UNSIGNED_A)
    IMMA_8816("u8");
  else
    IMMA_8816("s8");
}
#endif
#endif  // EDGERUN_SIMT

#if __CUDA_ARCH__ < 800  // sm_75: the products of 16 rows are sums of m8n8k16, register for register
template <bool UNSIGNED_A>
__device__ __forceinline__ void imma_16816(int (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[1], const int (&c)[4]) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    int half[2];
    imma_8816<UNSIGNED_A>(half, a[m], b[0], c[2 * m], c[2 * m + 1]);
    d[2 * m] = half[0], d[2 * m + 1] = half[1];
  }
}
template <bool UNSIGNED_A>
__device__ __forceinline__ void imma_16832(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4]) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    int low[2], sum[2];
    imma_8816<UNSIGNED_A>(low, a[m], b[0], c[2 * m], c[2 * m + 1]);
    imma_8816<UNSIGNED_A>(sum, a[2 + m], b[1], low[0], low[1]);
    d[2 * m] = sum[0], d[2 * m + 1] = sum[1];
  }
}
#endif

// ---- integer sums of |sum| < 2^22 as floats: counted from SUM_START, then by sum_float
#if __CUDA_ARCH__ >= 860
constexpr int SUM_START = 0;
__device__ __forceinline__ float sum_float(int sum) { return __int2float_rn(sum); }
#else  // conversions are slow there; from this start, the bits are those of the float 1.5 * 2^23 + sum
constexpr int SUM_START = 0x4b400000;
__device__ __forceinline__ float sum_float(int sum) { return __fadd_rn(__int_as_float(sum), -12582912.f); }
#endif

// ---- bfloat16 and pairs, from the above
__device__ __forceinline__ float bf16_to_float(uint16_t h) { return __uint_as_float(static_cast<uint32_t>(h) << 16); }
__device__ __forceinline__ uint16_t float_to_bf16(float f) {  // to the nearest, ties to even; NaN stays NaN
  const uint32_t u = __float_as_uint(f);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
__device__ __forceinline__ float half_of(uint32_t pair, int i) { return half_to_float(static_cast<uint16_t>(pair >> 16 * i)); }
__device__ __forceinline__ uint32_t half_pair(float low, float high) {
  return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}

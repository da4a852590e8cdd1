// metal_lint.h: declarations of what kernels_metal uses of the Metal Shading Language, for clang to check a source that MLX
// generated against: the address spaces of pointers, names, types, no double. Nothing of it runs; metal_shim.h does that.
#pragma once
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define SIMT_THREADGROUP static __attribute__((address_space(3)))
#define thread
#define double double_is_not_in_Metal
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()

namespace metal {
using uint = unsigned;
using ushort = unsigned short;
using uchar = unsigned char;
using ulong = unsigned long;
using uint8_t = uchar;
using int8_t = signed char;
using int32_t = int;
using half = _Float16;
using float16_t = half;
using bfloat16_t = __bf16;

// What lies in another address space is read as a whole, as Metal's own vectors are.
template <class T, int N>
struct vec;
template <class T>
struct vec<T, 2> {
  T x, y;
  template <class U>
  explicit vec(const device vec<U, 2>&);
};
template <class T>
struct vec<T, 3> {
  T x, y, z;
};
template <class T>
struct vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  explicit vec(T);
  vec(T, T, T, T);
  template <class U>
  explicit vec(const vec<U, 4>&);
  template <class U>
  explicit vec(const device vec<U, 4>&);
  T& operator[](uint);
  T operator[](uint) const;
};
using float2 = vec<float, 2>;
using float4 = vec<float, 4>;
using half4 = vec<half, 4>;
using uint3 = vec<uint, 3>;
float4 operator+(float4, float4);
float2 operator*(float2, float);
float4 operator*(float4, float);
float4 operator-(float4, float);

template <class T, class U>
T as_type(U);
float fma(float, float, float);
namespace precise {
float exp2(float);
float tanh(float);
}  // namespace precise
uint min(uint, uint);
int min(int, int);
int max(int, int);
float max(float, float);
bool isfinite(float);
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags);
template <class T>
T simd_shuffle(T, ushort);
template <class T>
T simd_shuffle_xor(T, ushort);
float simd_max(float);
struct ulong2 {
  explicit ulong2(ulong);
};
template <class T, int ROWS, int COLS>
struct simdgroup_matrix {
  T e[2];
};
template <class T, int ROWS, int COLS>
simdgroup_matrix<T, ROWS, COLS> make_filled_simdgroup_matrix(T);
template <class T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const threadgroup T*, ulong, ulong2 = ulong2(0), bool = false);
template <class T>
void simdgroup_store(simdgroup_matrix<T, 8, 8>, threadgroup T*, ulong);
template <class T>
void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>&, simdgroup_matrix<T, 8, 8>, simdgroup_matrix<T, 8, 8>,
                                   simdgroup_matrix<float, 8, 8>);
}  // namespace metal
using namespace metal;

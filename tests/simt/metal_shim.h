// metal_shim.h: Metal Shading Language as C++20 on simt.h: as much of it as kernels_metal uses. helpers/metal.py includes it
// before a source that MLX generated, and takes the [[attributes]] of parameters out.
#pragma once
#include "simt.h"

#define device
#define constant const
#define thread
#define threadgroup  // of pointers and parameters; a variable becomes SIMT_THREADGROUP
#if defined(SIMT_ASAN) || defined(SIMT_TSAN)
#define SIMT_THREADGROUP static  // red zones around every array
#else
#define SIMT_THREADGROUP __attribute__((section("simt_shared"))) static  // poisoned before each threadgroup
#endif
#define SIMT_HERE simt::Where where = simt::Where::current()
#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()

extern "C" {
float exp2f(float), tanhf(float), fmaxf(float, float), fminf(float, float);
}

namespace metal {
using uint = unsigned;
using ushort = unsigned short;
using uchar = unsigned char;
using ulong = unsigned long;
using half = _Float16;
using float16_t = half;

// The compiler may have no such type: through float, rounded to nearest even.
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  explicit bfloat16_t(float v) {
    const uint32_t u = std::bit_cast<uint32_t>(v);
    bits = uint16_t((u & 0x7FFFFFFF) > 0x7F800000 ? u >> 16 | 64 : (u + 0x7FFF + (u >> 16 & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};
using bfloat = bfloat16_t;

template <class T, int N>
struct vec;
template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec(T a, T b) : x(a), y(b) {}
  template <class U>
  explicit vec(const vec<U, 2>& o) : x(T(o.x)), y(T(o.y)) {}
};
template <class T>
struct vec<T, 3> {
  T x, y, z;
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  explicit vec(T v) : x(v), y(v), z(v), w(v) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  template <class U>
  explicit vec(const vec<U, 4>& o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
  T& operator[](unsigned i) { return (&x)[i]; }
  T operator[](unsigned i) const { return (&x)[i]; }
};
using float2 = vec<float, 2>;
using float4 = vec<float, 4>;
using half4 = vec<half, 4>;
using uint3 = vec<uint, 3>;
struct ulong2 {
  ulong x, y;
  explicit ulong2(ulong v) : x(v), y(v) {}
};
inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
inline float2 operator*(float2 a, float b) { return {a.x * b, a.y * b}; }
inline float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }
inline float4 operator-(float4 a, float b) { return {a.x - b, a.y - b, a.z - b, a.w - b}; }

template <class T, class U>
inline T as_type(U v) {
  return std::bit_cast<T>(v);
}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
namespace precise {
inline float exp2(float v) { return exp2f(v); }
inline float tanh(float v) { return tanhf(v); }
}  // namespace precise
inline uint min(uint a, uint b) { return b < a ? b : a; }
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline float max(float a, float b) { return fmaxf(a, b); }  // of a number and NaN the number, as Metal says
inline bool isfinite(float v) { return __builtin_isfinite(v); }

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline void threadgroup_barrier(mem_flags, SIMT_HERE) { simt::barrier(where); }

// Lanes that take part are all that exist: a simdgroup that has diverged is an error here.
template <class T>
struct Shuffled {
  T mine, out;
  unsigned source;
};
template <class T>
inline T shuffle(T v, unsigned source, int kind, simt::Where where) {
  Shuffled<T> s{v, v, source};
  auto resolve = [](void** args, uint32_t lanes) {
    for (uint32_t m = lanes; m; m &= m - 1) {
      auto* to = static_cast<Shuffled<T>*>(args[std::countr_zero(m)]);
      const auto* from = to->source < 32 ? static_cast<const Shuffled<T>*>(args[to->source]) : nullptr;
      if (from)
        to->out = from->mine;
      else
        memset(static_cast<void*>(&to->out), 0xA5, sizeof(T));  // undefined in Metal: junk
    }
  };
  simt::collective(simt::warp_mask(), kind, &s, resolve, where);
  return s.out;
}
template <class T>
inline T simd_shuffle(T v, ushort source, SIMT_HERE) {
  return shuffle(v, source, 1, where);
}
template <class T>
inline T simd_shuffle_xor(T v, ushort other, SIMT_HERE) {
  return shuffle(v, simt::lane ^ other, 2, where);
}
inline float simd_max(float v, SIMT_HERE) {
  auto resolve = [](void** args, uint32_t lanes) {
    float top = *static_cast<float*>(args[std::countr_zero(lanes)]);
    for (uint32_t m = lanes; m; m &= m - 1) top = max(top, *static_cast<float*>(args[std::countr_zero(m)]));
    for (uint32_t m = lanes; m; m &= m - 1) *static_cast<float*>(args[std::countr_zero(m)]) = top;
  };
  simt::collective(simt::warp_mask(), 3, &v, resolve, where);
  return v;
}

// 8x8 matrices: a lane holds two elements, which ones is the GPU's affair.
template <class T, int ROWS, int COLS>
struct simdgroup_matrix {
  T e[2];
};
template <class T, int ROWS, int COLS>
inline simdgroup_matrix<T, ROWS, COLS> make_filled_simdgroup_matrix(T v) {
  return {{v, v}};
}
template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* p, ulong pitch, ulong2 = ulong2(0), bool transposed = false,
                           SIMT_HERE) {
  simt::collective(simt::warp_mask(), 4, nullptr, [](void**, uint32_t) {}, where);
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned at = simt::lane * 2 + i, r = at / 8, c = at % 8;
    m.e[i] = transposed ? p[c * pitch + r] : p[r * pitch + c];
  }
}
template <class T>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, T* p, ulong pitch, SIMT_HERE) {
  simt::collective(simt::warp_mask(), 5, nullptr, [](void**, uint32_t) {}, where);
  for (unsigned i = 0; i < 2; ++i) p[(simt::lane * 2 + i) / 8 * pitch + (simt::lane * 2 + i) % 8] = m.e[i];
}
template <class T>
struct Product {
  simdgroup_matrix<T, 8, 8> a, b;
  simdgroup_matrix<float, 8, 8> sum;
};
template <class T>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d, simdgroup_matrix<T, 8, 8> a,
                                          simdgroup_matrix<T, 8, 8> b, simdgroup_matrix<float, 8, 8> c, SIMT_HERE) {
  Product<T> mine{a, b, c};
  auto resolve = [](void** args, uint32_t lanes) {
    if (lanes != ~0u) simt::fail("a product of 8x8 matrices needs 32 lanes, not %08x", lanes);
    float x[64], y[64];
    for (unsigned i = 0; i < 64; ++i) {
      const auto& p = *static_cast<const Product<T>*>(args[i / 2]);
      x[i] = float(p.a.e[i % 2]), y[i] = float(p.b.e[i % 2]);
    }
    for (unsigned i = 0; i < 64; ++i) {
      float& sum = static_cast<Product<T>*>(args[i / 2])->sum.e[i % 2];
      for (unsigned j = 0; j < 8; ++j) sum = fma(x[i / 8 * 8 + j], y[j * 8 + i % 8], sum);
    }
  };
  simt::collective(simt::warp_mask(), 6, &mine, resolve, where);
  d = mine.sum;
}
}  // namespace metal
using namespace metal;

// What MLX passes by attribute, as it names them.
namespace simt {
inline uint3 threads_per_grid_{1, 1, 1};
inline uint3 thread_position_in_grid() {
  return {block_idx.x * block_dim.x + thread_idx.x, block_idx.y * block_dim.y + thread_idx.y,
          block_idx.z * block_dim.z + thread_idx.z};
}
inline uint3 threadgroup_position_in_grid() { return {block_idx.x, block_idx.y, block_idx.z}; }
inline uint3 threadgroups_per_grid() { return {grid_dim.x, grid_dim.y, grid_dim.z}; }
inline uint3 threads_per_grid() { return threads_per_grid_; }
inline uint thread_index_in_threadgroup() {
  return (thread_idx.z * block_dim.y + thread_idx.y) * block_dim.x + thread_idx.x;
}
inline uint thread_index_in_simdgroup() { return lane; }
inline uint simdgroup_index_in_threadgroup() { return thread_index_in_threadgroup() / 32; }
inline uint simdgroups_per_threadgroup() { return (block_dim.x * block_dim.y * block_dim.z + 31) / 32; }
// dispatchThreads: the last threadgroups may be smaller.
inline bool exists() {
  const uint3 at = thread_position_in_grid(), n = threads_per_grid_;
  return at.x < n.x && at.y < n.y && at.z < n.z;
}
}  // namespace simt
extern "C" __attribute__((visibility("default"))) void simt_metal_grid(unsigned x, unsigned y, unsigned z) {
  simt::threads_per_grid_ = {x, y, z};
}

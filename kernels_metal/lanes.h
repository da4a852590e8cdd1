// lanes.h: what products and attention share.

// Arrays of a thread are registers only where every index is known.
#define UNROLL _Pragma("clang loop unroll(full)")

// Tree of a simdgroup's values: every lane has the sum.
inline float sum_of_lanes(float v) {
  for (ushort i = 16; i > 0; i >>= 1) v += simd_shuffle_xor(v, i);
  return v;
}

template <typename T>
inline float2 read_pair(const device T* p) {
  return float2(*reinterpret_cast<const device vec<T, 2>*>(p));
}
template <typename T>
inline float4 read_quad(const device T* p) {
  return float4(*reinterpret_cast<const device vec<T, 4>*>(p));
}

inline float sum_of_products(float4 a, float4 b, float sum) {
  sum = fma(a.x, b.x, sum);
  sum = fma(a.y, b.y, sum);
  sum = fma(a.z, b.z, sum);
  return fma(a.w, b.w, sum);
}

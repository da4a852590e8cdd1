// kv_q4.h: K and V as 4-bit codes in blocks of 32 dimensions with an f16 scale each. Both are rotated first, by a Hadamard
// transform over the largest power of two that divides the head: no dimension towers over its block then, and sixteen levels
// spaced for a normal distribution fit all blocks. Queries turn alike, so that dot products stay; results are turned back.
// K: two dwords of four dimensions in the low and high halves of one [head_dim / 8][PAGE][4], then scales [blocks][PAGE].
// V: codes [PAGE][v_dim / 2], then scales [blocks][PAGE]. A token's codes depend on that token alone.
//
// A level is a signed byte, so what K.Q does with it is what kv_q8.h does with its codes.
#pragma once
#include "kv_q8.h"

namespace er {
namespace ER_ISA {

// Levels of least squared error over normal blocks of 32, each with the best of SCALES times its largest magnitude. Their two
// ends differ, so the sign of a scale counts.
alignas(16) constexpr int8_t Q4_LEVELS[16] = {-127, -101, -79, -62, -47, -33, -21, -9, 2, 14, 25, 37, 50, 65, 83, 107};
enum { Q4_SCALES = 8 };
alignas(64) static const float Q4_SCALE[16] = {0.90f / 127, 0.98f / 127, 1.08f / 127, 1.18f / 127, -0.90f / 127, -0.98f / 127, -1.08f / 127, -1.18f / 127};

// x := its Hadamard transform / sqrt(n), n a power of two: additions of neighbours, n / 2 a step, always in this order.
static void hadamard(float* x, int n) {
  alignas(64) float room[MAX_ROTATED];
  float *from = x, *to = room;
  for (int m = 1; m < n; m *= 2) {
    const float* __restrict a = from;
    float* __restrict b = to;
    for (int i = 0; i < n / 2; i++) { b[i] = a[2 * i] + a[2 * i + 1]; b[n / 2 + i] = a[2 * i] - a[2 * i + 1]; }
    float* t = from;
    from = to;
    to = t;
  }
  const float r = 1.0f / __builtin_sqrtf(float(n));
  for (int i = 0; i < n; i++) x[i] = from[i] * r;
}
// Its own inverse.
static void rotate(float* x, int head_dim) {
  const int n = head_dim & -head_dim;
  if (n == 1) return;
  for (int i = 0; i < head_dim; i += n) hadamard(x + i, n);
}

// The nearest levels of x[0..32) / d. They are whole, so adding up their distances is exact.
static void q4_levels(const float* __restrict x, float d, float* __restrict level) {
  const float inverse = d != 0 ? 1.0f / d : 0.0f;
  for (int i = 0; i < 32; i++) {
    const float r = x[i] * inverse;
    float sum = Q4_LEVELS[0];
    ER_UNROLL for (int j = 0; j < 15; j++) sum += r > (Q4_LEVELS[j] + Q4_LEVELS[j + 1]) * 0.5f ? float(Q4_LEVELS[j + 1] - Q4_LEVELS[j]) : 0.0f;
    level[i] = sum;
  }
}

// A block of m <= 32 values -> 32 codes and the scale with the smallest sum of squared errors, the first of equals. What is not
// finite, or past f16, becomes NaN.
static uint16_t q4_encode(const float* values, int m, uint8_t* codes) {
  alignas(64) float x[32] = {}, level[32], d[16];
  uint16_t scales[16];
  memcpy(x, values, size_t(m) * 4);
  store_f16(scales, mul(splat(top_of(x, m)), load(Q4_SCALE)));
  store(d, load_f16(scales));
  float least = __builtin_inff();
  int best = -1;
  for (int j = 0; j < Q4_SCALES; j++) {
    q4_levels(x, d[j], level);
    for (int i = 0; i < 32; i++) level[i] = i < m ? level[i] * d[j] - x[i] : 0.0f;
    const v16 a = load(level), b = load(level + 16);
    const float error = sum16(add(mul(a, a), mul(b, b)));
    if (error < least) { least = error; best = j; }
  }
  if (best < 0) { memset(codes, 0, 32); return 0x7e00; }
  q4_levels(x, d[best], level);
  for (int i = 0; i < 32; i++) {
    int code = 0;
    ER_UNROLL for (int j = 1; j < 16; j++) code += level[i] >= Q4_LEVELS[j];
    codes[i] = uint8_t(code);
  }
  return scales[best];
}

// Sixteen levels of V from 8 bytes. Dimension i is nibble i / 2 of dword i % 2.
#if defined(__AVX512F__)
ER_INL v16 q4_value(const uint8_t* p) {
  alignas(64) static const float table[16] = {-127, -101, -79, -62, -47, -33, -21, -9, 2, 14, 25, 37, 50, 65, 83, 107};
  long long both;
  memcpy(&both, p, 8);
  const __m512i at = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
  return {_mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(both), at), _mm512_load_ps(table))};
}
#elif defined(__AVX2__)
ER_INL v16 q4_value(const uint8_t* p) {
  const __m128i x = _mm_loadl_epi64((const __m128i*)p);
  const __m128i nibbles = _mm_and_si128(_mm_unpacklo_epi64(x, _mm_srli_epi16(x, 4)), _mm_set1_epi8(15));
  const __m128i levels = _mm_shuffle_epi8(_mm_load_si128((const __m128i*)Q4_LEVELS), nibbles);
  const __m128i v = _mm_shuffle_epi8(levels, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)))};
}
#elif defined(__ARM_NEON)
ER_INL v16 q4_value(const uint8_t* p) {
  static const uint8_t at[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const uint8x8_t x = vld1_u8(p);
  const uint8x16_t nibbles = vcombine_u8(vand_u8(x, vdup_n_u8(15)), vshr_n_u8(x, 4));
  int8_t v[16];
  vst1q_s8(v, vqtbl1q_s8(vld1q_s8(Q4_LEVELS), vqtbl1q_u8(nibbles, vld1q_u8(at))));
  return load_i8(v);
}
#else
ER_INL v16 q4_value(const uint8_t* p) {
  alignas(64) float v[16];
  for (int i = 0; i < 16; i++) v[i] = Q4_LEVELS[p[i % 2 * 4 + i / 4] >> (i / 2 % 2 * 4) & 15];
  return load(v);
}
#endif

struct KvQ4 {
  enum { WIDE_K = 1 };
  using Many = KvQ8;  // reads what widen_k writes

  static void put_query(float* row, int head_dim, int n, int i, float* out) {
    rotate(row, head_dim);
    KvQ8::put_query(row, head_dim, n, i, out);
  }

  // Levels as kv_dot likes them.
  ER_INL q8::vi levels() {
    const q8::vi t = q8::table16(Q4_LEVELS);
    return q8::SIGNED8 ? t : q8::xor_(t, q8::all8(-128));
  }

  template <int N>
  static void scores(const float* query, const uint8_t* k, const uint8_t* next, int head_dim, int, int, float (*s)[PAGE]) {
    const int dwords = kv_dwords(head_dim), pairs = (head_dim + 7) / 8;
    const uint8_t* q = (const uint8_t*)query;
    const float* factors = query + dwords * N;
    const uint16_t* scales = (const uint16_t*)(k + size_t(pairs) * PAGE * 4);
    const q8::vi table = levels(), low = q8::all8(15);
    for (int h = 0; h < PAGE; h += 16) {
      v16 sum[N];
      ER_UNROLL for (int i = 0; i < N; i++) sum[i] = splat(0);
      for (int b = 0; b * 4 < pairs; b++) {
        const float* f = factors + 2 * b * N;
        const int end = b * 4 + 4 < pairs ? b * 4 + 4 : pairs;
        if (next && h == 0) __builtin_prefetch(next + size_t(pairs) * PAGE * 4 + size_t(b) * PAGE * 2);
        alignas(64) int32_t dots[N][16];
        for (int r = 0; r < 16; r += q8::R) {
          q8::vi acc[N];
          ER_UNROLL for (int i = 0; i < N; i++) acc[i] = q8::bci(f + N + i);
          for (int j = b * 4; j < end; j++) {
            const size_t at = (size_t(j) * PAGE + h + r) * 4;
            if (next && r == 0) __builtin_prefetch(next + at);
            const q8::vi x = q8::ldi(k + at);
            const q8::vi x0 = q8::lut16(table, q8::and_(x, low)), x1 = q8::lut16(table, q8::and_(q8::srl16<4>(x), low));
            ER_UNROLL for (int i = 0; i < N; i++) acc[i] = kv_dot(acc[i], x0, q + (2 * j * N + i) * 4);
            if (2 * j + 1 == dwords) break;
            ER_UNROLL for (int i = 0; i < N; i++) acc[i] = kv_dot(acc[i], x1, q + ((2 * j + 1) * N + i) * 4);
          }
          ER_UNROLL for (int i = 0; i < N; i++) q8::sti(dots[i] + r, acc[i]);
        }
        const v16 d = load_f16(scales + b * PAGE + h);
        ER_UNROLL for (int i = 0; i < N; i++) sum[i] = fma(load_i32(dots[i]), mul(d, splat(f[i])), sum[i]);
      }
      ER_UNROLL for (int i = 0; i < N; i++) store(s[i] + h, sum[i]);
    }
  }

  // As a page of KvQ8.
  static void widen_k(const uint8_t* k, const uint8_t* next, const KvShape& s, float* out) {
    const int dwords = kv_dwords(s.head_dim), pairs = (s.head_dim + 7) / 8;
    const q8::vi table = q8::table16(Q4_LEVELS), low = q8::all8(15);
    uint8_t* to = (uint8_t*)out;
    for (int j = 0; j < pairs; j++) {
      if (next) { __builtin_prefetch(next + j * PAGE * 4); __builtin_prefetch(next + j * PAGE * 4 + 64); }
      for (int t = 0; t < PAGE; t += q8::R) {
        const q8::vi x = q8::ldi(k + (j * PAGE + t) * 4);
        q8::sti(to + (2 * j * PAGE + t) * 4, q8::lut16(table, q8::and_(x, low)));
        if (2 * j + 1 < dwords) q8::sti(to + ((2 * j + 1) * PAGE + t) * 4, q8::lut16(table, q8::and_(q8::srl16<4>(x), low)));
      }
    }
    memcpy(to + size_t(dwords) * PAGE * 4, k + size_t(pairs) * PAGE * 4, size_t(kv_blocks(s.head_dim)) * PAGE * 2);
  }

  // get(t, d): dimensions d and on of token t, the level times its scale.
  struct Values {
    const uint8_t* v;
    const uint8_t* next;
    const float* scales;  // [blocks][PAGE]
    int row;              // bytes
    Values(const uint8_t* page, const uint8_t* next_v, const KvShape& s, float* room) : v(page), next(next_v), scales(room), row(s.v_dim / 2) {
      const uint16_t* d = (const uint16_t*)(v + PAGE * row);
      for (int i = 0; i < kv_blocks(s.head_dim) * PAGE; i += 16) {
        if (next) __builtin_prefetch((const uint16_t*)(next + PAGE * row) + i);
        store(room + i, load_f16(d + i));
      }
    }
    ER_INL v16 get(const Values& x, int t, int d) { return mul(q4_value(x.v + t * x.row + d / 2), splat(x.scales[d / 32 * PAGE + t])); }
    ER_INL void ahead(const Values& x, int t, int d) { if (x.next) __builtin_prefetch(x.next + t * x.row + d / 2); }
  };

  static void write(const KvShape& s, uint8_t* k, uint8_t* v, int t, const float* key, const float* value) {
    uint16_t* k_scales = (uint16_t*)(k + size_t((s.head_dim + 7) / 8) * PAGE * 4);
    uint16_t* v_scales = (uint16_t*)(v + size_t(s.v_dim) / 2 * PAGE);
    alignas(64) float turned[2][MAX_ROTATED];
    memcpy(turned[0], key, size_t(s.head_dim) * 4);
    memcpy(turned[1], value, size_t(s.head_dim) * 4);
    for (float* x : turned) rotate(x, s.head_dim);
    uint8_t c[32];
    for (int b = 0; b * 32 < s.head_dim; b++) {
      const int n = s.head_dim - b * 32 < 32 ? s.head_dim - b * 32 : 32;
      k_scales[b * PAGE + t] = q4_encode(turned[0] + b * 32, n, c);
      for (int j = 0; j * 8 < n; j++) {
        uint8_t* to = k + ((b * 4 + j) * PAGE + t) * 4;
        for (int i = 0; i < 4; i++) to[i] = uint8_t(c[j * 8 + i] | c[j * 8 + 4 + i] << 4);
      }
      v_scales[b * PAGE + t] = q4_encode(turned[1] + b * 32, n, c);
      for (int g = 0; g * 16 < n; g++) {
        uint8_t* to = v + t * (s.v_dim / 2) + b * 16 + g * 8;
        for (int i = 0; i < 8; i++) {  // byte i: dword i / 4, nibbles 2 * (i % 4) and the next
          const uint8_t* dims = c + g * 16 + i % 4 * 4 + i / 4;
          to[i] = uint8_t(dims[0] | dims[2] << 4);
        }
      }
    }
  }
};

}  // namespace ER_ISA
}  // namespace er

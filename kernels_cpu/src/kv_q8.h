// kv_q8.h: K and V as int8 in blocks of 32 dimensions with an f16 scale each; the last block of a head may be shorter.
// K: codes as dwords of four dimensions [head_dim / 4][PAGE][4], then scales [blocks][PAGE]: one vector holds a dword of R tokens.
// V: codes [PAGE][v_dim], then scales [blocks][PAGE]. A token's codes depend on that token alone.
//
// Queries become int8 too, in the same blocks with a float scale, so K.Q is an exact integer sum a block, then one fma.
#pragma once
#include "attention_tile.h"
#include "kv_float.h"
#include "simd_int.h"

namespace er {
namespace ER_ISA {

ER_INL int kv_blocks(int head_dim) { return (head_dim + 31) / 32; }
ER_INL int kv_dwords(int head_dim) { return (head_dim + 3) / 4; }

// The largest absolute value, NaN above all: their bits order as the values do.
static float top_of(const float* x, int n) {
  uint32_t top = 0;
  for (int i = 0; i < n; i++) {
    uint32_t b;
    memcpy(&b, x + i, 4);
    b &= 0x7fffffffu;
    top = b > top ? b : top;
  }
  float amax;
  memcpy(&amax, &top, 4);
  return amax;
}
// Codes of n values for the scale d. Adding 1.5 * 2^23 leaves the integer in the low bits. Zero where d is none.
static void codes_of(const float* x, int n, float d, int8_t* q) {
  if (!(d >= 1e-36f && d < __builtin_inff())) { memset(q, 0, size_t(n)); return; }
  const float r = 1.0f / d;
  for (int i = 0; i < n; i++) {
    float t = x[i] * r;
    t = (t < -127.0f ? -127.0f : t > 127.0f ? 127.0f : t) + 12582912.0f;
    int32_t b;
    memcpy(&b, &t, 4);
    q[i] = int8_t(b - 0x4b400000);
  }
}
// What blocks of NaN or infinity, and those past f16, poison is their own token.
ER_INL uint16_t half_of(float x) { uint16_t h[16]; store_f16(h, splat(x)); return h[0]; }
ER_INL float float_of(uint16_t h) { uint16_t t[16] = {h}; alignas(64) float f[16]; store(f, load_f16(t)); return f[0]; }

// One register of R tokens' dwords against a query's dword in every lane. Codes are signed in memory.
#if defined(ER_ACC16)  // no instruction that multiplies unsigned by signed bytes without saturating: signs move to K
ER_INL q8::vi kv_codes(const uint8_t* p) { return q8::ldi(p); }
ER_INL q8::vi kv_dot(q8::vi acc, q8::vi k, const uint8_t* q) {
  return q8::add32(acc, q8::pair_sums(q8::products_signed(k, q8::bci(q))));
}
#else
ER_INL q8::vi kv_codes(const uint8_t* p) {
  const q8::vi k = q8::ldi(p);
  return q8::SIGNED8 ? k : q8::xor_(k, q8::all8(-128));
}
ER_INL q8::vi kv_dot(q8::vi acc, q8::vi k, const uint8_t* q) { return q8::dpb(acc, k, q); }
#endif

struct KvQ8 {
  enum { WIDE_K = 0 };
  using Many = KvQ8;

  // Of a block of n queries: dwords [head_dim / 4][n], then per block scales [n] and -128 * the sum of the codes [n]
  // (what codes offset by 128 add to a dot product).
  static void put_query(const float* row, int head_dim, int n, int i, float* out) {
    const int dwords = kv_dwords(head_dim);
    uint8_t* codes = (uint8_t*)out;
    float* scales = out + dwords * n;
    for (int b = 0; b * 32 < head_dim; b++) {
      const int m = head_dim - b * 32 < 32 ? head_dim - b * 32 : 32;
      const float d = top_of(row + b * 32, m) / 127.0f;
      alignas(64) int8_t q[32] = {};
      codes_of(row + b * 32, m, d, q);
      int32_t sum = 0;
      for (int j = 0; j < 32; j++) sum += q[j];
      const int32_t zero = q8::SIGNED8 ? 0 : -128 * sum;
      for (int j = 0; j * 4 < m; j++) memcpy(codes + ((b * 8 + j) * n + i) * 4, q + j * 4, 4);
      scales[2 * b * n + i] = d;
      memcpy(scales + (2 * b + 1) * n + i, &zero, 4);
    }
  }

  template <int N>
  static void scores(const float* query, const uint8_t* k, const uint8_t* next, int head_dim, int, int, float (*s)[PAGE]) {
    const int dwords = kv_dwords(head_dim);
    const uint8_t* q = (const uint8_t*)query;
    const float* factors = query + dwords * N;
    const uint16_t* scales = (const uint16_t*)(k + size_t(dwords) * PAGE * 4);
    for (int h = 0; h < PAGE; h += 16) {
      v16 sum[N];
      ER_UNROLL for (int i = 0; i < N; i++) sum[i] = splat(0);
      for (int b = 0; b * 8 < dwords; b++) {
        const float* f = factors + 2 * b * N;
        const int end = b * 8 + 8 < dwords ? b * 8 + 8 : dwords;
        if (next && h == 0) __builtin_prefetch(next + size_t(dwords) * PAGE * 4 + size_t(b) * PAGE * 2);
        alignas(64) int32_t dots[N][16];
        for (int r = 0; r < 16; r += q8::R) {
          q8::vi acc[N];
          ER_UNROLL for (int i = 0; i < N; i++) acc[i] = q8::bci(f + N + i);
          for (int j = b * 8; j < end; j++) {
            const size_t at = (size_t(j) * PAGE + h + r) * 4;
            if (next && r == 0) __builtin_prefetch(next + at);
            const q8::vi x = kv_codes(k + at);
            ER_UNROLL for (int i = 0; i < N; i++) acc[i] = kv_dot(acc[i], x, q + (j * N + i) * 4);
          }
          ER_UNROLL for (int i = 0; i < N; i++) q8::sti(dots[i] + r, acc[i]);
        }
        const v16 d = load_f16(scales + b * PAGE + h);
        ER_UNROLL for (int i = 0; i < N; i++) sum[i] = fma(load_i32(dots[i]), mul(d, splat(f[i])), sum[i]);
      }
      ER_UNROLL for (int i = 0; i < N; i++) store(s[i] + h, sum[i]);
    }
  }

  // get(t, d): dimensions d and on of token t, the code times its scale.
  struct Values {
    const int8_t* v;
    const int8_t* next;
    const float* scales;  // [blocks][PAGE]
    int v_dim;
    Values(const uint8_t* page, const uint8_t* next_v, const KvShape& s, float* room)
        : v((const int8_t*)page), next((const int8_t*)next_v), scales(room), v_dim(s.v_dim) {
      const uint16_t* d = (const uint16_t*)(v + PAGE * v_dim);
      for (int i = 0; i < kv_blocks(s.head_dim) * PAGE; i += 16) {
        if (next) __builtin_prefetch((const uint16_t*)(next + PAGE * v_dim) + i);
        store(room + i, load_f16(d + i));
      }
    }
    ER_INL v16 get(const Values& x, int t, int d) { return mul(load_i8(x.v + t * x.v_dim + d), splat(x.scales[d / 32 * PAGE + t])); }
    ER_INL void ahead(const Values& x, int t, int d) { if (x.next) __builtin_prefetch(x.next + t * x.v_dim + d); }
  };

  static void write(const KvShape& s, uint8_t* k, uint8_t* v, int t, const float* key, const float* value) {
    uint16_t* k_scales = (uint16_t*)(k + size_t(kv_dwords(s.head_dim)) * PAGE * 4);
    uint16_t* v_scales = (uint16_t*)(v + size_t(s.v_dim) * PAGE);
    for (int b = 0; b * 32 < s.head_dim; b++) {
      const int n = s.head_dim - b * 32 < 32 ? s.head_dim - b * 32 : 32;
      alignas(64) int8_t q[32] = {};
      k_scales[b * PAGE + t] = half_of(top_of(key + b * 32, n) / 127.0f);
      codes_of(key + b * 32, n, float_of(k_scales[b * PAGE + t]), q);
      for (int j = 0; j * 4 < n; j++) memcpy(k + ((b * 8 + j) * PAGE + t) * 4, q + j * 4, 4);
      memset(q, 0, sizeof q);
      v_scales[b * PAGE + t] = half_of(top_of(value + b * 32, n) / 127.0f);
      codes_of(value + b * 32, n, float_of(v_scales[b * PAGE + t]), q);
      const int room = s.v_dim - b * 32;
      memcpy(v + t * s.v_dim + b * 32, q, size_t(room < 32 ? room : 32));
    }
  }
};

}  // namespace ER_ISA
}  // namespace er

/* limits.c: what this machine can do at most, for _machine.py: bytes read from memory, and int8 products.
 *
 * Built with the flags of the machine at hand (-O3 -march=native). Plain C, one call per thread. */
#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#define CHUNK ((size_t)1 << 20)

/* Threads that share `next` (starting at 0) read the chunks of p[0..n) once in all, each chunk as two streams: faster than
 * one, with or without software prefetch. Returns a sum, so that nothing is left out. */
uint64_t limit_read(const uint8_t* p, size_t n, size_t* next) {
  uint64_t out = 0;
  for (;;) {
    const size_t at = __atomic_fetch_add(next, CHUNK, __ATOMIC_RELAXED);
    if (at + CHUNK > n) return out;
    const uint8_t *q = p + at, *r = q + CHUNK / 2;
#if defined(__AVX512F__)
    __m512i a = _mm512_setzero_si512(), b = a;
    for (size_t i = 0; i < CHUNK / 2; i += 128) {
      a = _mm512_add_epi64(a, _mm512_add_epi64(_mm512_loadu_si512(q + i), _mm512_loadu_si512(q + i + 64)));
      b = _mm512_add_epi64(b, _mm512_add_epi64(_mm512_loadu_si512(r + i), _mm512_loadu_si512(r + i + 64)));
    }
    out += (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(a, b));
#else
    uint64_t s[8] = {0}; /* which the compiler makes vectors of */
    for (size_t i = 0; i < CHUNK / 2; i += 64)
      for (int j = 0; j < 8; j++) s[j] += ((const uint64_t*)(q + i))[j] + ((const uint64_t*)(r + i))[j];
    for (int j = 0; j < 8; j++) out += s[j];
#endif
  }
}

/* Which instruction limit_dot uses; empty if this machine has none for int8 products. */
const char* limit_dot_name(void) {
#if defined(__AVX512VNNI__)
  return "vpdpbusd, 512 bits";
#elif defined(__AVXVNNI__)
  return "vpdpbusd, 256 bits";
#elif defined(__AVX2__)
  return "vpmaddubsw, 256 bits";
#elif defined(__ARM_FEATURE_DOTPROD)
  return "sdot, 128 bits";
#else
  return "";
#endif
}

/* `rounds` times twelve independent int8 dot products on registers. Returns the multiplications done; `sink` takes what
 * they gave, so that nothing is left out. */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define KEEP(i) __asm__ volatile("" : "+x"(s##i));
uint64_t limit_dot(uint64_t rounds, uint64_t* sink) {
#if defined(__AVX512VNNI__)
  const __m512i a = _mm512_set1_epi8((char)(rounds & 1)), b = _mm512_set1_epi8((char)(rounds & 3));
#define START(i) __m512i s##i = a;
#define STEP(i) s##i = _mm512_dpbusd_epi32(s##i, a, b);
#define END(i) *sink += (uint64_t)_mm512_reduce_add_epi32(s##i);
  const int each = 64;
#elif defined(__AVX2__)
  const __m256i a = _mm256_set1_epi8((char)(rounds & 1)), b = _mm256_set1_epi8((char)(rounds & 3));
#define START(i) __m256i s##i = a;
#if defined(__AVXVNNI__)
#define STEP(i) s##i = _mm256_dpbusd_avx_epi32(s##i, a, b);
#else
  const __m256i ones = _mm256_set1_epi16(1);
#define STEP(i) s##i = _mm256_add_epi32(s##i, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_xor_si256(a, s##i), b), ones));
#endif
#define END(i) *sink += (uint64_t)_mm256_extract_epi64(s##i, 0);
  const int each = 32;
#elif defined(__ARM_FEATURE_DOTPROD)
#undef KEEP
#define KEEP(i) __asm__ volatile("" : "+w"(s##i));
  const int8x16_t a = vdupq_n_s8((int8_t)(rounds & 1)), b = vdupq_n_s8((int8_t)(rounds & 3));
#define START(i) int32x4_t s##i = vdupq_n_s32(i);
#define STEP(i) s##i = vdotq_s32(s##i, a, b);
#define END(i) *sink += (uint64_t)vaddvq_s32(s##i);
  const int each = 16;
#else
#undef KEEP
#define KEEP(i)
#define START(i)
#define STEP(i)
#define END(i)
  const int each = 0;
  (void)sink;
#endif
  TWELVE(START)
  for (uint64_t r = 0; r < rounds; r++) {
    TWELVE(STEP)
    TWELVE(KEEP)
  }
  TWELVE(END)
  return rounds * 12 * (uint64_t)each;
}

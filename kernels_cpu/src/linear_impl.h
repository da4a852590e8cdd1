// linear_impl.h: the table of linear kernels of one instruction set.
#pragma once
#include "direct_one.h"
#include "gemm.h"
#include "kernels.h"
#if __has_include("linear_float.h")
#include "linear_float.h"
#define ER_FLOAT_TYPES 1
#endif
#if __has_include("linear_dequant.h")
#include "linear_dequant.h"
#define ER_DEQUANT_TYPES 1
#endif

namespace er {
namespace ER_ISA {
namespace q8 {

static_assert(SLICE % 256 == 0, "a slice is whole blocks and units of every type");

typedef void (*Direct)(const uint8_t* w, const uint8_t* a, int K, float* out, int64_t ldo, int n, const Seconds& s,
                       const uint8_t* starts, Following following);

// The kernels that exist, by columns from two on; tile_cols (act_q8.h) rounds up to one of them.
#if defined(__AVX512VNNI__)
#define ER_DIRECT(k, T) \
  {nullptr, nullptr, k<T, 2>, k<T, 3>, k<T, 4>, k<T, 5>, k<T, 6>, k<T, 7>, k<T, 8>, nullptr, k<T, 10>, nullptr, k<T, 12>}
#else
#define ER_DIRECT(k, T) {nullptr, nullptr, k<T, 2>, k<T, 3>, k<T, 4>, k<T, 5>, k<T, 6>}
#endif

// Kernels that differ in what is the same for them are one.
template <class T> using KindOf = Kind<Unit<T>::HALVES, T::ZERO, T::MIN, code_bits(T::Codes::BITS), biased<T>()>;

template <class T>
struct Run {
  static size_t tile_bytes(int K) {
    if constexpr (T::NS != 0) return tile_bytes_k<T>(K);
    else return tile_bytes32<T>(K);
  }
  static void run(const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo, uint8_t* scratch) {
    static const Direct kernels[DIRECT + 1] = ER_DIRECT(direct, T);
    const size_t tile = tile_bytes(K);
    const Seconds seconds = seconds_at(scratch, K, M);
    if (M == 1) return one_column<T>(w, tiles, tile, act, K, out, seconds);
    const int C = tile_cols(M);
    uint8_t* const starts = scratch + seconds_bytes(K, M) + gemm_scratch(M);
    if constexpr (has_starts<T, 4>())
      if (M <= PASSES && C >= 4) make_starts<T>(act, K, M, starts);
    if (M <= DIRECT) {
      for (int t = 0; t < tiles; t++)
        kernels[C](w + size_t(t) * tile, act, K, out + int64_t(t) * R, ldo, M, seconds, starts, Following(w, tile, t, tiles));
      return;
    }
    if (M <= PASSES) {
      float* sums = (float*)(scratch + seconds_bytes(K, M));
      for (int t = 0; t < tiles; t++, out += R) {
        const uint8_t *const wt = w + size_t(t) * tile, *a = act, *s = starts;
        for (int m = 0; m < M; m += C, a += col_tile_bytes(K, C), s += size_t(K / 32) * size_t(C * 4 * (Unit<T>::HALVES + 1)))
          kernels[C](wt, a, K, out + m * ldo, ldo, M - m, Seconds{}, s, Following(w, tile, t, tiles));
        if (seconds.start[K / 32]) direct_seconds<T>(wt, act, K, M, out, ldo, seconds, sums);
      }
      return;
    }
    many(w, tiles, act, K, M, out, ldo, scratch, After{});
  }
  static void many(const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo, uint8_t* scratch,
                   const After& after) {
    typedef KindOf<T> Q;
    const Gemm g = {tile_bytes(K), Unit<T>::HALVES != 0, int(Unit<T>::BLOCKS) * 32, T::UNIT, unpack_slice<T>, block<Q>, second_blocks<Q>};
    many_columns(g, w, tiles, act, K, M, out, ldo, scratch + seconds_bytes(K, M), seconds_at(scratch, K, M), after);
  }
  static bool run_after(const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo, uint8_t* scratch,
                        const After& after) {
    if (M <= PASSES || (after.up && !GATES)) return false;
    many(w, tiles, act, K, M, out, ldo, scratch, after);
    return true;
  }
  static constexpr Linear row() {
    if constexpr (T::NS != 0) return {T::TYPE, ACT_Q8, R, 256, tile_bytes, pack_k<T>, run, unpack_row_k<T>, run_after};
    else return {T::TYPE, ACT_Q8, R, 32, tile_bytes, pack32<T>, run, unpack_row32<T>, run_after};
  }
};

static const Linear table[] = {
    Run<Q4_0>::row(), Run<Q4_1>::row(), Run<Q5_0>::row(), Run<Q5_1>::row(), Run<Q8_0>::row(), Run<IQ4_NL>::row(),
    Run<MXFP4>::row(), Run<Q2_K>::row(), Run<Q3_K>::row(), Run<Q4_K>::row(), Run<Q5_K>::row(), Run<Q6_K>::row(),
    Run<IQ4_XS>::row(),
};

static const Linear* find(int type) {
  for (const Linear& l : table)
    if (l.type == type) return &l;
#if defined(ER_FLOAT_TYPES)
  if (const Linear* l = find_float(type)) return l;
#endif
#if defined(ER_DEQUANT_TYPES)
  if (const Linear* l = find_dequant(type)) return l;
#endif
  return nullptr;
}
static size_t scratch_bytes(int K, int M) { return seconds_bytes(K, M) + gemm_scratch(M) + starts_bytes(K, M); }
static void index(Act act, const uint8_t* columns, int K, int M, uint8_t* scratch) {
  if (act == ACT_Q8) index_seconds(columns, K, M, scratch);
}

}  // namespace q8

static const Linears linears = {q8::find, q8::act_bytes, q8::quantize, q8::scratch_bytes, q8::index};

}  // namespace ER_ISA
}  // namespace er

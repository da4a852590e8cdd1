// The vocabulary-wide scans of sampling: one row of logits, float32 [n], read only.
//
// Rows are read in blocks of 64. er_sample_scan leaves each block's maximum in bmax, and the
// selections skip every block whose maximum cannot matter, so after one scan they touch little.
#include <math.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "api.h"
#include "largest.h"
#if defined(ER_BUILD)
#include "kernels.h"
#endif

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

using er::key_id;
using er::key_of;
using er::Largest;

namespace {

constexpr int LANES = 16;
constexpr int64_t BLOCK = 64, STEPS = BLOCK / LANES;
const float INF = __builtin_inff();
const float LOWEST = -3.40282346638528859812e38f;
const float LOG2E = 1.44269504088896341f;
// 2^r on [-1/2, 1/2] as 1 + EXP2[1] r + ... + EXP2[5] r^5: minimax, relative error 9e-8.
const float EXP2[6] = {1.0f,         0x1.62e42ap-1f, 0x1.ebf9bcp-3f,
                       0x1.c6b752p-5f, 0x1.3cea88p-7f, 0x1.5bba14p-10f};

typedef float f4 __attribute__((vector_size(16)));
typedef double d4 __attribute__((vector_size(32)));

struct Scans {
    int32_t (*scan)(const float*, int64_t, float*, float*);
    int64_t (*argmax)(const float*, int64_t);
    double (*sumexp)(const float*, int64_t, float, float);
    double (*sumexp_weighted)(const float*, int64_t, float, float, double*);
    int64_t (*pick)(const float*, int64_t, float, float, double, float*);
    int64_t (*collect)(const float*, int64_t, const float*, double, double, int32_t*, float*);
    int64_t (*count_from)(const float*, int64_t, float);
    int64_t (*moments)(const float*, int64_t, double*, double*);
};

// The 64 floats of block b; the last block is padded with -inf in `pad`.
inline const float* block(const float* x, int64_t n, int64_t b, float* pad) {
    const float* p = x + b * BLOCK;
    const int64_t left = n - b * BLOCK;
    if (left >= BLOCK) return p;
    for (int64_t i = 0; i < BLOCK; i++) pad[i] = i < left ? p[i] : -INF;
    return pad;
}

inline int64_t blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

// The smallest float that is >= v: comparing floats with it is comparing them with v.
inline float ceil_float(double v) {
    if (!(v > (double)LOWEST)) return LOWEST;
    if (v > -(double)LOWEST) return INF;
    float f = (float)v;
    if ((double)f >= v) return f;
    int32_t bits;
    __builtin_memcpy(&bits, &f, 4);
    bits = f == 0.0f ? 1 : f < 0.0f ? bits - 1 : bits + 1;
    __builtin_memcpy(&f, &bits, 4);
    return f;
}

inline float floor_float(double v) { return -ceil_float(-v); }

#define ER_SAMPLE_NS base
#if defined(__AVX512F__)
#define ER_SAMPLE_W 16
#elif defined(__AVX__)
#define ER_SAMPLE_W 8
#else
#define ER_SAMPLE_W 4
#endif
#include "sample_impl.h"
#undef ER_SAMPLE_NS
#undef ER_SAMPLE_W

// The whole library is built for the baseline, so wider copies are compiled here by attribute
// and picked at run time. -march on the command line (no ER_BUILD) makes `base` the only one.
#if defined(ER_BUILD) && defined(__x86_64__)
#define ER_SAMPLE_WIDE 1
#endif

#if defined(ER_SAMPLE_WIDE)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#define ER_SAMPLE_NS avx2
#define ER_SAMPLE_W 8
#include "sample_impl.h"
#undef ER_SAMPLE_NS
#undef ER_SAMPLE_W
#if defined(__clang__)
#pragma clang attribute pop
#if __clang_major__ >= 18 && __clang_major__ <= 21  // these want 512-bit registers named apart
#define ER_EVEX512 ",evex512"
#else
#define ER_EVEX512 ""
#endif
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq" ER_EVEX512))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#endif
#define ER_SAMPLE_NS avx512
#define ER_SAMPLE_W 16
#include "sample_impl.h"
#undef ER_SAMPLE_NS
#undef ER_SAMPLE_W
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

const Scans& best_scans() {
#if defined(ER_SAMPLE_WIDE)
    const char* isa = er::isas()[0]->name;
    if (!__builtin_strncmp(isa, "avx512", 6)) return avx512::scans;
    if (!__builtin_strncmp(isa, "avx", 3)) return avx2::scans;
#endif
    return base::scans;
}

const Scans& run = best_scans();

// A value at least k of the m block maxima reach, close to the largest such: the k best of the
// row are not below it. Bisection; LOWEST when fewer than k blocks are alive.
float k_blocks_reach(const float* bmax, int64_t m, float max, int64_t k) {
    if (k > m || run.count_from(bmax, m, LOWEST) < k) return LOWEST;
    float lo = max, hi = max;
    for (float step = 1.0f; run.count_from(bmax, m, lo) < k; step *= 2.0f) {
        hi = lo;
        lo = max - step > LOWEST ? max - step : LOWEST;
    }
    for (int i = 0; i < 24; i++) {
        const float mid = 0.5f * lo + 0.5f * hi;
        if (!(lo < mid && mid < hi)) break;
        const int64_t count = run.count_from(bmax, m, mid);
        if (count < k) {
            hi = mid;
            continue;
        }
        lo = mid;
        if (count <= k + k / 4) break;
    }
    return lo;
}

}  // namespace

// Block maxima of x[n] into bmax[(n + 63) / 64] and the maximum into *max; 1 if any is NaN.
ER_API int32_t er_sample_scan(const float* x, int64_t n, float* bmax, float* max) {
    return run.scan(x, n, bmax, max);
}

// The first index of the maximum of x[n]; -1 if any is NaN.
ER_API int64_t er_sample_argmax(const float* x, int64_t n) { return run.argmax(x, n); }

// Sum of e = exp((x[i] - max) * scale); unless `weighted` is null, also of
// e * (x[i] - max) * scale (what entropy needs). max is the row's maximum, scale > 0.
ER_API double er_sample_sumexp(const float* x, int64_t n, float max, float scale,
                               double* weighted) {
    if (weighted) return run.sumexp_weighted(x, n, max, scale, weighted);
    return run.sumexp(x, n, max, scale);
}

// The index i where the running sum of exp((x[i] - max) * scale) passes u times the total,
// 0 <= u < 1, in index order. bsum[(n + 63) / 64] is scratch.
ER_API int64_t er_sample_pick(const float* x, int64_t n, float max, float scale, double u,
                              float* bsum) {
    return run.pick(x, n, max, scale, u, bsum);
}

// Every lo <= x[i] <= hi above -inf, in index order, into ids[n] and vals[n]. Returns how many.
// bmax is er_sample_scan's.
ER_API int64_t er_sample_collect(const float* x, int64_t n, const float* bmax, double lo,
                                 double hi, int32_t* ids, float* vals) {
    return run.collect(x, n, bmax, lo, hi, ids, vals);
}

// How many x[i] are above -inf, with their mean and population variance.
ER_API int64_t er_sample_moments(const float* x, int64_t n, double* mean, double* variance) {
    return run.moments(x, n, mean, variance);
}

// The k largest of x[n] above -inf, best first, ties by smaller index, into ids[k] and vals[k].
// Returns how many. heap[k] is scratch; bmax is er_sample_scan's, max the row's maximum.
ER_API int64_t er_sample_topk(const float* x, int64_t n, const float* bmax, float max, int64_t k,
                              uint64_t* heap, int32_t* ids, float* vals) {
    const float floor = k_blocks_reach(bmax, blocks(n), max, k);
    Largest best{heap, k, 0};
    for (int64_t b = 0; b < blocks(n); b++) {
        if (bmax[b] < floor) continue;
        const int64_t end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        for (int64_t i = b * BLOCK; i < end; i++)
            if (x[i] >= floor) best.push(key_of(x[i], i));
    }
    best.sort();
    for (int64_t i = 0; i < best.size; i++) {
        ids[i] = (int32_t)key_id(heap[i]);
        vals[i] = x[ids[i]];
    }
    return best.size;
}

// The whole of the usual chain, for k candidates that are few: top_k, top_p (p), min_p, temperature,
// and the draw for u, in [0, 1). 1 and 0 are neutral for p and min_p. The id; -1 if there is none
// to be had, or a value is NaN or +inf. The scratch is that of er_sample_scan and er_sample_topk.
ER_API int64_t er_sample_usual(const float* x, int64_t n, int64_t k, double p, double min_p,
                               double temperature, double u, float* bmax, uint64_t* heap,
                               int32_t* ids, float* vals) {
    float max;
    if (run.scan(x, n, bmax, &max) || !(max > -INF && max < INF)) return -1;
    int64_t m = er_sample_topk(x, n, bmax, max, k, heap, ids, vals);
    const double best = (double)vals[0];
    double total = 0.0;
    if (p < 1.0 && m > 1) {
        for (int64_t i = 0; i < m; i++) total += exp((double)vals[i] - best);
        const double bound = p * (1 - 1e-6) * total;  // cut.py's MASS_NOISE
        double held = 0.0;
        for (int64_t i = 0; i < m; i++) {
            held += exp((double)vals[i] - best);
            if (held >= bound) m = i + 1;
        }
    }
    if (min_p > 0.0) {
        const double floor = best + log(min_p);
        while (m > 1 && (double)vals[m - 1] < floor) m--;
    }
    const double top = best / temperature;
    total = 0.0;
    for (int64_t i = 0; i < m; i++) total += exp((double)vals[i] / temperature - top);
    double held = 0.0;
    for (int64_t i = 0; i < m; i++) {
        held += exp((double)vals[i] / temperature - top);
        if (held > u * total) return ids[i];
    }
    return ids[m - 1];
}

// DRY's repeats. For every position j of hist[n] let L be the length of the longest common
// suffix of hist[0..j) and hist[0..n), at most `limit`. Where L >= allowed, emitting hist[j]
// would make the repeat longer. Writes each such token once, with its largest L, into
// ids[n] and lens[n]; returns how many. z[n] is scratch; best[n_vocab] is scratch that must be
// all -1 and is left so. Z algorithm on the reversed history: O(n) whatever it holds.
ER_API int64_t er_sample_dry(const int32_t* hist, int64_t n, int32_t allowed, int32_t limit,
                             int32_t* z, int32_t* best, int32_t* ids, int32_t* lens) {
    const int32_t* last = hist + n - 1;  // last[-i] is the i-th token of the reversed history
    int64_t left = 0, right = 0;         // the match reaching furthest: [left, right)
    int64_t m = 0;
    for (int64_t k = 1; k < n; k++) {
        int64_t len = 0;
        if (k < right) {
            const int64_t known = right - k;
            len = z[k - left] < known ? z[k - left] : known;
        }
        if (k + len >= right) {
            while (k + len < n && last[-len] == last[-(k + len)]) len++;
            left = k;
            right = k + len;
        }
        z[k] = (int32_t)len;
        const int32_t capped = len < limit ? (int32_t)len : limit;
        if (capped < allowed) continue;
        const int32_t next = last[-(k - 1)];  // what followed this earlier occurrence
        if (best[next] < 0) ids[m++] = next;
        if (capped > best[next]) best[next] = capped;
    }
    for (int64_t i = 0; i < m; i++) {
        lens[i] = best[ids[i]];
        best[ids[i]] = -1;
    }
    return m;
}

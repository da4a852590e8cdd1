// sample_impl.h: the vectorized scans of sample.cpp, for vectors of ER_SAMPLE_W floats. Included
// once for each instruction set, with ER_SAMPLE_NS naming the namespace it fills.
//
// Sums run in 16 fixed lanes whatever the width, and nothing may be contracted to fma
// (-ffp-contract=off): every instruction set gives the same bits.
namespace ER_SAMPLE_NS {

constexpr int W = ER_SAMPLE_W, R = LANES / W;

typedef float vf __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef double vd __attribute__((vector_size(W * 8)));

static inline vf load(const float* p) {
    vf v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

static inline vf splat(float a) { return vf{} + a; }

static inline vf vmax(vf a, vf b) { return a > b ? a : b; }

// One bit a lane of a comparison's result.
static inline uint32_t mask_of(vu lanes) {
#if defined(__x86_64__) && ER_SAMPLE_W == 16
    return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes);
#elif defined(__x86_64__) && ER_SAMPLE_W == 8
    return (uint32_t)_mm256_movemask_ps((__m256)lanes);
#elif defined(__x86_64__)
    return (uint32_t)_mm_movemask_ps((__m128)lanes);
#else
    uint32_t bits = 0;
    for (int j = 0; j < W; j++) bits |= (lanes[j] & 1u) << j;
    return bits;
#endif
}

// 16 lanes to one by halves, 16 -> 8 -> 4 -> 2 -> 1: the same order at every width.
template <class V4, class T, class V, class Op>
static inline T fold(const V* v, Op op) {
    V4 q[4];
    static_assert(sizeof q == R * sizeof(V), "16 lanes");
    __builtin_memcpy(q, v, sizeof q);
    const V4 h = op(op(q[0], q[2]), op(q[1], q[3]));
    const T a = op(h[0], h[2]), b = op(h[1], h[3]);
    return op(a, b);
}

struct Max {
    template <class T>
    T operator()(T a, T b) const { return a > b ? a : b; }
};
struct Sum {
    template <class T>
    T operator()(T a, T b) const { return a + b; }
};

static inline float fold_max(const vf* m) { return fold<f4, float>(m, Max()); }
static inline float fold_sum(const vf* s) { return fold<f4, float>(s, Sum()); }
static inline double fold_sum(const vd* s) { return fold<d4, double>(s, Sum()); }

static inline bool any(const vu* bits) {
    uint32_t all = 0;
    for (int r = 0; r < R; r++)
        for (int j = 0; j < W; j++) all |= bits[r][j];
    return all != 0;
}

// 2^d for d <= 0, relative error 2e-7; exactly 0 at -127 and below (there p is 1, and taking
// 127 from its exponent leaves the bits of 0).
static inline vf vexp2(vf d) {
    const vf magic = splat(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
    d = vmax(d, splat(-127.0f));
    const vf t = d + magic;
    const vf r = d - (t - magic);
    vf p = r * EXP2[5] + EXP2[4];
    p = p * r + EXP2[3];
    p = p * r + EXP2[2];
    p = p * r + EXP2[1];
    p = p * r + 1.0f;
    return (vf)((vu)p + ((vu)t << 23));
}

static int32_t scan(const float* x, int64_t n, float* bmax, float* max) {
    vf all[R];
    vu nan[R];
    for (int r = 0; r < R; r++) all[r] = splat(-INF), nan[r] = vu{};
    float pad[BLOCK];
    for (int64_t b = 0; b < blocks(n); b++) {
        const float* p = block(x, n, b, pad);
        vf m[R];
        for (int r = 0; r < R; r++) {
            m[r] = splat(-INF);
            for (int s = 0; s < STEPS; s++) {
                const vf v = load(p + s * LANES + r * W);
                m[r] = vmax(v, m[r]);
                nan[r] |= (vu)(v != v);
            }
            all[r] = vmax(all[r], m[r]);
        }
        bmax[b] = fold_max(m);
    }
    *max = fold_max(all);
    return any(nan) ? 1 : 0;
}

static int64_t argmax(const float* x, int64_t n) {
    constexpr int64_t SPAN = 64;  // blocks looked at before lanes are compared
    vu nan[R];
    for (int r = 0; r < R; r++) nan[r] = vu{};
    float pad[BLOCK];
    float best = -INF;
    int64_t at = 0;
    for (int64_t b0 = 0; b0 < blocks(n); b0 += SPAN) {
        vf m[R];
        for (int r = 0; r < R; r++) m[r] = splat(-INF);
        const int64_t end = b0 + SPAN < blocks(n) ? b0 + SPAN : blocks(n);
        for (int64_t b = b0; b < end; b++) {
            const float* p = block(x, n, b, pad);
            for (int s = 0; s < STEPS; s++)
                for (int r = 0; r < R; r++) {
                    const vf v = load(p + s * LANES + r * W);
                    m[r] = vmax(v, m[r]);
                    nan[r] |= (vu)(v != v);
                }
        }
        const float top = fold_max(m);
        if (top > best) best = top, at = b0 * BLOCK;
    }
    if (any(nan)) return -1;
    while (at < n && x[at] != best) at++;
    return at;
}

static double sumexp(const float* x, int64_t n, float max, float scale) {
    const float to2 = scale * LOG2E;
    vd sum[R];
    for (int r = 0; r < R; r++) sum[r] = vd{};
    float pad[BLOCK];
    for (int64_t b = 0; b < blocks(n); b++) {
        const float* p = block(x, n, b, pad);
        for (int r = 0; r < R; r++) {
            vf acc = vf{};
            for (int s = 0; s < STEPS; s++)
                acc = acc + vexp2((load(p + s * LANES + r * W) - max) * to2);
            sum[r] = sum[r] + __builtin_convertvector(acc, vd);
        }
    }
    return fold_sum(sum);
}

static double sumexp_weighted(const float* x, int64_t n, float max, float scale, double* weighted) {
    const float to2 = scale * LOG2E;
    vd sum[R], wsum[R];
    for (int r = 0; r < R; r++) sum[r] = vd{}, wsum[r] = vd{};
    float pad[BLOCK];
    for (int64_t b = 0; b < blocks(n); b++) {
        const float* p = block(x, n, b, pad);
        for (int r = 0; r < R; r++) {
            vf acc = vf{}, wacc = vf{};
            for (int s = 0; s < STEPS; s++) {
                const vf d = vmax((load(p + s * LANES + r * W) - max) * to2, splat(-127.0f));
                const vf e = vexp2(d);
                acc = acc + e;
                wacc = wacc + e * d;
            }
            sum[r] = sum[r] + __builtin_convertvector(acc, vd);
            wsum[r] = wsum[r] + __builtin_convertvector(wacc, vd);
        }
    }
    *weighted = fold_sum(wsum) * 0.69314718055994530942;
    return fold_sum(sum);
}

static int64_t pick(const float* x, int64_t n, float max, float scale, double u, float* bsum) {
    const float to2 = scale * LOG2E;
    float pad[BLOCK], e[BLOCK];
    double total = 0.0;
    for (int64_t b = 0; b < blocks(n); b++) {
        const float* p = block(x, n, b, pad);
        vf acc[R];
        for (int r = 0; r < R; r++) {
            acc[r] = vf{};
            for (int s = 0; s < STEPS; s++)
                acc[r] = acc[r] + vexp2((load(p + s * LANES + r * W) - max) * to2);
        }
        bsum[b] = fold_sum(acc);
        total += bsum[b];
    }
    double left = u * total;
    int64_t b = 0, found = 0;
    for (int64_t i = 0; i < blocks(n); i++) {
        if (!(bsum[i] > 0.0f)) continue;
        b = i;
        if (left < bsum[i]) break;
        left -= bsum[i];
    }
    const float* p = block(x, n, b, pad);
    for (int i = 0; i < BLOCK; i += W) {
        const vf v = vexp2((load(p + i) - max) * to2);
        __builtin_memcpy(e + i, &v, sizeof v);
    }
    for (int i = 0; i < BLOCK; i++) {
        if (!(e[i] > 0.0f)) continue;  // the padding and masked tokens
        found = i;
        if (left < e[i]) break;
        left -= e[i];
    }
    return b * BLOCK + found;
}

// How many of v[m] are >= floor.
static int64_t count_from(const float* v, int64_t m, float floor) {
    vu acc = vu{};
    int64_t i = 0;
    for (; i + W <= m; i += W) acc -= (vu)(load(v + i) >= floor);
    int64_t count = 0;
    for (int j = 0; j < W; j++) count += acc[j];
    for (; i < m; i++) count += v[i] >= floor;
    return count;
}

static int64_t collect(const float* x, int64_t n, const float* bmax, double lo, double hi,
                       int32_t* ids, float* vals) {
    const float from = ceil_float(lo), to = floor_float(hi);
    float pad[BLOCK];
    int64_t m = 0;
    for (int64_t b = 0; b < blocks(n); b++) {
        if (bmax[b] < from) continue;
        const float* p = block(x, n, b, pad);
        for (int i = 0; i < BLOCK; i += W) {
            const vf v = load(p + i);
            uint32_t hits = mask_of((vu)(v >= from) & (vu)(v <= to));
            for (; hits; hits &= hits - 1) {
                const int j = i + __builtin_ctz(hits);
                ids[m] = (int32_t)(b * BLOCK + j);
                vals[m++] = p[j];
            }
        }
    }
    return m;
}

static int64_t moments(const float* x, int64_t n, double* mean, double* variance) {
    float pad[BLOCK];
    double m = 0.0;
    int64_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        vd sum[R];
        vu live[R];
        for (int r = 0; r < R; r++) sum[r] = vd{}, live[r] = vu{};
        const float centre = (float)m;
        for (int64_t b = 0; b < blocks(n); b++) {
            const float* p = block(x, n, b, pad);
            for (int r = 0; r < R; r++) {
                vf acc = vf{};
                for (int s = 0; s < STEPS; s++) {
                    const vf v = load(p + s * LANES + r * W);
                    const vu alive = (vu)(v > -INF);
                    const vf d = v - centre;
                    acc = acc + (vf)((vu)(pass ? d * d : d) & alive);
                    live[r] -= alive;
                }
                sum[r] = sum[r] + __builtin_convertvector(acc, vd);
            }
        }
        count = 0;
        for (int r = 0; r < R; r++)
            for (int j = 0; j < W; j++) count += live[r][j];
        const double s = count > 0 ? fold_sum(sum) / (double)count : 0.0;
        if (pass == 0)
            m = s;
        else
            *variance = s - (m - centre) * (m - centre);
    }
    *mean = m;
    return count;
}

const Scans scans = {scan, argmax, sumexp, sumexp_weighted, pick, collect, count_from, moments};

}  // namespace ER_SAMPLE_NS

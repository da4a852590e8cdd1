// attention.h: K and V as their pages hold them, and sums of splits of a sequence. Needs lanes.h.

constexpr constant int PAGE = 32, SPLIT = 8 * PAGE;  // tokens; a split's sums are its own
constexpr constant float LOG2E = 1.4426950408889634f;

// Plain floats. `at` numbers heads of tokens: (page * PAGE + slot) * n_kv_heads + head.
template <int D, typename T>
struct Floats {
  const device T* data;
  float4 quad(ulong at, uint d) const { return read_quad(data + at * D + d); }
  float2 pair(ulong at, uint d) const { return read_pair(data + at * D + d); }
  float one(ulong at, uint d) const { return float(data[at * D + d]); }
};

// int8 with a scale for each 32 of a head.
template <int D>
struct Codes {
  const device int8_t* data;
  const device half* scales;
  float scale(ulong at, uint d) const { return float(scales[at * ((D + 31) / 32) + d / 32]); }
  float4 quad(ulong at, uint d) const {
    return read_quad(data + at * D + d) * scale(at, d);
  }
  float2 pair(ulong at, uint d) const { return read_pair(data + at * D + d) * scale(at, d); }
  float one(ulong at, uint d) const { return float(data[at * D + d]) * scale(at, d); }
};

template <int D, typename T>
inline Floats<D, T> stored(const device T* data) {
  return {data};
}
template <int D>
inline Codes<D> stored(const device int8_t* data, const device half* scales) {
  return {data, scales};
}

// The E dimensions of a head that a lane has: as few reads as their alignment allows.
template <int D, int E, typename STORE>
inline void read_lane(STORE store, ulong at, uint lane, thread float* v) {
  if (D == 32 * E && E % 4 == 0) {
    UNROLL for (uint e = 0; e < E; e += 4) {
      const float4 x = store.quad(at, lane * E + e);
      v[e] = x.x;
      v[e + 1] = x.y;
      v[e + 2] = x.z;
      v[e + 3] = x.w;
    }
  } else if (D == 64) {
    const float2 x = store.pair(at, lane * 2);
    v[0] = x.x;
    v[E - 1] = x.y;
  } else {
    UNROLL for (uint e = 0; e < E; ++e) v[e] = lane * E + e < D ? store.one(at, lane * E + e) : 0.0f;
  }
}

// Weighted V of some tokens, E dimensions of it: sum of 2^(score - top) V, and sum of the weights.
template <int E>
struct Sums {
  float v[E];
  float top, weights;
  void clear() {
    for (int e = 0; e < E; ++e) v[e] = 0.0f;
    top = -INFINITY;
    weights = 0.0f;
  }
  // Splits are added in their order, wherever they were summed.
  void add(thread const Sums& o) {
    const float now = max(top, o.top), mine = power(top, now), its = power(o.top, now);
    for (int e = 0; e < E; ++e) v[e] = fma(v[e], mine, o.v[e] * its);
    weights = fma(weights, mine, o.weights * its);
    top = now;
  }
  // One more score, of no token.
  void add_score(float score) {
    const float now = max(top, score), mine = power(top, now);
    for (int e = 0; e < E; ++e) v[e] *= mine;
    weights = fma(weights, mine, power(score, now));
    top = now;
  }
  // 2^(a - b) where a <= b, of which both may be -inf.
  static float power(float a, float b) { return a == b ? 1.0f : precise::exp2(a - b); }
};

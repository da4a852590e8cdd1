// gemv_float.h: gemv.h for matrices of floats, with any k: a share is 16 weights side by side. Needs lanes.h.

// Values at .. at + 3 of a row, zeros past its end; only rows of whole quads are aligned to them.
template <typename T>
inline float4 quad_of_row(const device T* row, uint at, uint k) {
  if (k % 4 == 0) return at < k ? read_quad(row + at) : float4(0.0f);
  float4 v = float4(0.0f);
  for (uint i = 0; i < 4; ++i)
    if (at + i < k) v[i] = float(row[at + i]);
  return v;
}

// As gemv, for w [n][k].
template <int ROWS, int TOKENS, typename W, typename T>
inline void gemv_float(const device W* w, const device T* x, device T* y, uint n, uint k, uint tokens, uint row, uint token,
                       uint lane) {
  float sums[ROWS][TOKENS];
  for (int r = 0; r < ROWS; ++r)
    for (int t = 0; t < TOKENS; ++t) sums[r][t] = 0.0f;
  for (uint at = 16 * lane; at < k; at += 16 * 32) {
    float4 weights[ROWS][4];
    UNROLL for (uint r = 0; r < ROWS; ++r)
      UNROLL for (uint j = 0; j < 4; ++j) weights[r][j] = quad_of_row(w + ulong(min(row + r, n - 1)) * k, at + 4 * j, k);
    UNROLL for (uint t = 0; t < TOKENS; ++t)
      UNROLL for (uint j = 0; j < 4; ++j) {
        const float4 in = quad_of_row(x + ulong(min(token + t, tokens - 1)) * k, at + 4 * j, k);
        UNROLL for (int r = 0; r < ROWS; ++r) sums[r][t] = sum_of_products(weights[r][j], in, sums[r][t]);
      }
  }
  UNROLL for (uint t = 0; t < TOKENS; ++t)
    UNROLL for (uint r = 0; r < ROWS; ++r) {
      const float sum = sum_of_lanes(sums[r][t]);
      if (lane == 0 && row + r < n && token + t < tokens) y[ulong(token + t) * n + row + r] = T(sum);
    }
}

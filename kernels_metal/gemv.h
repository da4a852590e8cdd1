// gemv.h: y = x W^T for any number of tokens, one order of additions: a lane sums the shares lane, lane + 32, ... of a row in
// turn, and the 32 sums meet in a tree. Needs lanes.h and blocks.h.

// One more share of a row, whose inputs are x.
template <int TYPE>
inline float add_share(thread const Share& s, thread const float4* x, float sum) {
  using F = Format<TYPE>;
  for (int j = 0; j < 4; j += F::RUN) {
    float part = 0.0f;
    for (int i = j; i < j + F::RUN; ++i) part = sum_of_products(s.code[i], x[i], part);
    sum = fma(s.scale[j], part, sum);
    if (F::HAS_LEAST) {
      float4 all = x[j];
      for (int i = j + 1; i < j + F::RUN; ++i) all = all + x[i];
      sum = fma(-s.least[j], (all.x + all.y) + (all.z + all.w), sum);
    }
  }
  return sum;
}

// Rows `row` to row + ROWS - 1 for tokens `token` to token + TOKENS - 1, by one simdgroup. w [n][blocks], x [tokens][k],
// y [tokens][n]. Rows and tokens past the end are computed again from the last one, and not written.
template <int TYPE, int ROWS, int TOKENS, typename T>
inline void gemv(const device uchar* w, const device T* x, device T* y, uint n, uint k, uint tokens, uint row, uint token,
                 uint lane) {
  using F = Format<TYPE>;
  constexpr uint SHARES = F::WEIGHTS / 16;
  const ulong row_bytes = ulong(k / F::WEIGHTS) * F::BYTES;
  const device uchar* rows[ROWS];
  for (uint r = 0; r < ROWS; ++r) rows[r] = w + row_bytes * min(row + r, n - 1);
  float sums[ROWS][TOKENS];
  for (int r = 0; r < ROWS; ++r)
    for (int t = 0; t < TOKENS; ++t) sums[r][t] = 0.0f;
  for (uint i = lane; i < k / 16; i += 32) {
    const uint block = i / SHARES, share = i % SHARES;
    Share shares[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) F::decode(rows[r] + ulong(block) * F::BYTES, share, shares[r]);
    UNROLL for (uint t = 0; t < TOKENS; ++t) {
      const device T* in = x + ulong(min(token + t, tokens - 1)) * k + block * F::WEIGHTS;
      float4 quads[4];
      for (uint j = 0; j < 4; ++j) quads[j] = read_quad(in + F::at(share, j));
      UNROLL for (int r = 0; r < ROWS; ++r) sums[r][t] = add_share<TYPE>(shares[r], quads, sums[r][t]);
    }
  }
  UNROLL for (uint t = 0; t < TOKENS; ++t)
    UNROLL for (uint r = 0; r < ROWS; ++r) {
      const float sum = sum_of_lanes(sums[r][t]);
      if (lane == 0 && row + r < n && token + t < tokens) y[ulong(token + t) * n + row + r] = T(sum);
    }
}

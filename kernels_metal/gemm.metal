// w, x -> y as gemv.metal. Templates: TYPE, ROWS (32 or 64), T, S (what products are made of: float or half).
// Grid: threadgroups of 4 simdgroups; x: ROWS rows each, y: 32 tokens each. A simdgroup has 16 tokens of half the rows.
using F = Format<TYPE>;
constexpr uint STEP = F::STEP, SHARES = STEP / 16, SLICE = 32, TOKENS = 32, PAD = 8, THREADS = 128, N8 = ROWS / 16;
constexpr uint PITCH = STEP + PAD, X_PITCH = SLICE + PAD;
constexpr uint STAGED = ROWS * PITCH * sizeof(S) / 4, RESULT = TOKENS * ROWS;
threadgroup float memory[STAGED > RESULT ? STAGED : RESULT];
threadgroup S inputs[TOKENS * X_PITCH];
threadgroup S* weights = reinterpret_cast<threadgroup S*>(memory);

const uint n = w_shape[0], k = x_shape[1], tokens = x_shape[0], me = thread_index_in_threadgroup;
const uint row = threadgroup_position_in_grid.x * ROWS, token = threadgroup_position_in_grid.y * TOKENS;
const uint my_row = (simdgroup_index_in_threadgroup & 1) * (ROWS / 2), my_token = (simdgroup_index_in_threadgroup >> 1) * 16;
const ulong row_bytes = ulong(k / F::WEIGHTS) * F::BYTES;
simdgroup_matrix<float, 8, 8> sums[2][N8];
UNROLL for (uint i = 0; i < 2; ++i)
  UNROLL for (uint j = 0; j < N8; ++j) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

for (uint at = 0; at < k; at += STEP) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = me; i < ROWS * SHARES; i += THREADS) {
    const uint r = i / SHARES;
    stage_share<TYPE, S>(w + row_bytes * min(row + r, n - 1), at / 16 + i % SHARES, weights + r * PITCH, at);
  }
  for (uint slice = 0; slice < STEP; slice += SLICE) {
    if (slice > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = me; i < TOKENS * SLICE / 4; i += THREADS) {
      const uint t = i / (SLICE / 4), d = i % (SLICE / 4) * 4;
      const float4 v = read_quad(x + ulong(min(token + t, tokens - 1)) * k + at + slice + d);
      UNROLL for (uint e = 0; e < 4; ++e) inputs[t * X_PITCH + d + e] = S(v[e]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (uint d = 0; d < SLICE; d += 8) {
      simdgroup_matrix<S, 8, 8> a[2], b[N8];
      UNROLL for (uint i = 0; i < 2; ++i) simdgroup_load(a[i], inputs + (my_token + 8 * i) * X_PITCH + d, X_PITCH);
      UNROLL for (uint j = 0; j < N8; ++j)
        simdgroup_load(b[j], weights + (my_row + 8 * j) * PITCH + slice + d, PITCH, ulong2(0), true);
      UNROLL for (uint i = 0; i < 2; ++i)
        UNROLL for (uint j = 0; j < N8; ++j) simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
    }
  }
}

// The weights make room for the results, of which not all may be wanted.
threadgroup_barrier(mem_flags::mem_threadgroup);
UNROLL for (uint i = 0; i < 2; ++i)
  UNROLL for (uint j = 0; j < N8; ++j)
    simdgroup_store(sums[i][j], memory + (my_token + 8 * i) * ROWS + my_row + 8 * j, ROWS);
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint i = me; i < RESULT; i += THREADS) {
  const uint t = token + i / ROWS, r = row + i % ROWS;
  if (t < tokens && r < n) y[ulong(t) * n + r] = T(memory[i]);
}

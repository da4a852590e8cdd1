// parts float [tokens, n_heads, splits, D + 2], place int32 [tokens], factors as attention.metal's -> out T [tokens, n_heads, D]:
// what that gives without PARTS. Templates: D, WINDOW, SINKS, T. Grid: a simdgroup for each head of a token (y: heads, z: tokens).
constexpr uint E = (D + 31) / 32;
const uint lane = thread_index_in_simdgroup, token = threadgroup_position_in_grid.z;
const uint head = threadgroup_position_in_grid.y * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup;
const int at = place[token], first = WINDOW > 0 ? max(at - WINDOW + 1, 0) : 0;
const int splits = at / SPLIT - first / SPLIT + 1;
const ulong where = ulong(token * uint(parts_shape[1]) + head);
Sums<E> all, sums;
all.clear();
for (int i = 0; i < splits; ++i) {
  const device float* in = parts + (where * uint(parts_shape[2]) + uint(i)) * (D + 2);
  for (uint e = 0; e < E; ++e) sums.v[e] = lane * E + e < D ? in[lane * E + e] : 0.0f;
  sums.top = in[D];
  sums.weights = in[D + 1];
  all.add(sums);
}
if (SINKS) all.add_score(factors[2 + head] * LOG2E);
for (uint e = 0; e < E; ++e)
  if (lane * E + e < D) out[where * D + lane * E + e] = T(all.v[e] / all.weights);

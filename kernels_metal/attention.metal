// q T [tokens, n_heads, D], pages of k and v [n_pages, PAGE, n_kv_heads, D], pages int32 [rows, max_pages], row and place int32
// [tokens] (a token's row of pages, and its place in the sequence), factors float [scale, soft-cap, with SINKS those of all heads]
// -> out T [tokens, n_heads, D]; with PARTS float [tokens, n_heads, splits, D + 2]: sums of each split, their top and weights.
// Templates: D, WINDOW (0: none), SOFTCAP, PARTS, SINKS, T. `keys` and `values` are defined before this.
// Grid: a simdgroup for each head of a token, and with PARTS for each split it sees (x: splits, y: heads, z: tokens).
// For scores four lanes share a key and a lane keeps one score; for V lanes share the dimensions.
constexpr uint QUADS = (D + 15) / 16, E = (D + 31) / 32;
const uint lane = thread_index_in_simdgroup, part = lane & 3, of_eight = lane >> 2;
const uint token = threadgroup_position_in_grid.z, n_heads = q_shape[1], n_kv = k_shape[2];
const uint head = threadgroup_position_in_grid.y * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup;
const uint kv_head = head / (n_heads / n_kv);
const int at = place[token], first = WINDOW > 0 ? max(at - WINDOW + 1, 0) : 0;
int split = first / SPLIT, last_split = at / SPLIT;
if (PARTS) {
  split += int(threadgroup_position_in_grid.x);
  if (split > last_split) return;
  last_split = split;
}
const uint table = uint(row[token]) * uint(pages_shape[1]);

float4 query[QUADS];
UNROLL for (uint i = 0; i < QUADS; ++i) {
  const uint d = 4 * (part + 4 * i);
  query[i] = d < D ? read_quad(q + ulong(token * n_heads + head) * D + d) : float4(0.0f);
}

Sums<E> all, sums;
all.clear();
for (; split <= last_split; ++split) {
  sums.clear();
  const int page_end = min(at, split * SPLIT + SPLIT - 1) / PAGE;
  for (int page = max(first, split * SPLIT) / PAGE; page <= page_end; ++page) {
    const ulong base = ulong(pages[table + uint(page)]) * PAGE;
    float score = 0.0f;
    for (uint i = 0; i < 4; ++i) {
      const ulong key = (base + 8 * i + of_eight) * n_kv + kv_head;
      float dot = 0.0f;
      UNROLL for (uint j = 0; j < QUADS; ++j) {
        const uint d = 4 * (part + 4 * j);
        if (d < D) dot = sum_of_products(query[j], keys.quad(key, d), dot);
      }
      dot += simd_shuffle_xor(dot, 1);
      dot += simd_shuffle_xor(dot, 2);
      score = i == part ? dot : score;
    }
    const int seen = page * PAGE + int(8 * part + of_eight);
    const bool sees = seen <= at && seen >= first;
    score = isfinite(score) ? score * factors[0] : NAN;  // or a key of -inf would not be noticed
    if (SOFTCAP) score = factors[1] * precise::tanh(score / factors[1]);
    score = sees ? score * LOG2E : -INFINITY;
    const float top = max(sums.top, simd_max(score)), shrink = Sums<E>::power(sums.top, top);
    const float weight = sees ? precise::exp2(score - top) : 0.0f;
    sums.top = top;
    sums.weights = fma(sums.weights, shrink, weight);
    for (uint e = 0; e < E; ++e) sums.v[e] *= shrink;
    // What lies beside the tokens that are seen may be anything: it is not read.
    const int from = max(first - page * PAGE, 0), to = min(at - page * PAGE, PAGE - 1);
    for (int j = from; j <= to; ++j) {
      const float w = simd_shuffle(weight, ushort(4 * (j & 7) + (j >> 3)));
      const ulong key = (base + uint(j)) * n_kv + kv_head;
      float v[E];
      read_lane<D, E>(values, key, lane, v);
      UNROLL for (uint e = 0; e < E; ++e) sums.v[e] = fma(w, v[e], sums.v[e]);
    }
  }
  sums.weights = sum_of_lanes(sums.weights);
  if (!PARTS) all.add(sums);
}

if (PARTS) {
  const ulong where = ulong(token * n_heads + head) * threadgroups_per_grid.x + threadgroup_position_in_grid.x;
  for (uint e = 0; e < E; ++e)
    if (lane * E + e < D) out[where * (D + 2) + lane * E + e] = OUT(sums.v[e]);
  if (lane == 0) {
    out[where * (D + 2) + D] = OUT(sums.top);
    out[where * (D + 2) + D + 1] = OUT(sums.weights);
  }
} else {
  if (SINKS) all.add_score(factors[2 + head] * LOG2E);
  for (uint e = 0; e < E; ++e)
    if (lane * E + e < D) out[ulong(token * n_heads + head) * D + lane * E + e] = OUT(all.v[e] / all.weights);
}

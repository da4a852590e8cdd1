// As gemv_experts.metal, for w [EXPERTS * n, k] of floats of type W.
const uint row = (threadgroup_position_in_grid.x * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) * ROWS;
const uint n = w_shape[0] / EXPERTS, k = x_shape[1], pair = threadgroup_position_in_grid.y;
if (row >= n) return;
gemv_float<ROWS, 1, W, T>(w + ulong(ids[pair]) * n * k, x + ulong(pair / SHARED) * k, y + ulong(pair) * n, n, k, 1, row, 0,
                          thread_index_in_simdgroup);

// As gemv.metal, for w [n, k] of floats of type W.
const uint row = (threadgroup_position_in_grid.x * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) * ROWS;
const uint n = w_shape[0];
if (row >= n) return;
gemv_float<ROWS, TOKENS, W, T>(w, x, y, n, x_shape[1], x_shape[0], row, threadgroup_position_in_grid.y * TOKENS,
                               thread_index_in_simdgroup);

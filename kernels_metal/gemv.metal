// w uint8 [n, bytes of a row], x T [tokens, k] -> y T [tokens, n]. Templates: TYPE (ggml's number), ROWS, TOKENS, T.
// Grid: simdgroups of ROWS rows side by side, TOKENS tokens a step of y.
const uint row = (threadgroup_position_in_grid.x * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) * ROWS;
const uint n = w_shape[0];
if (row >= n) return;
gemv<TYPE, ROWS, TOKENS, T>(w, x, y, n, x_shape[1], x_shape[0], row, threadgroup_position_in_grid.y * TOKENS,
                            thread_index_in_simdgroup);

// w uint8 [EXPERTS * n, bytes of a row], x T [pairs / SHARED, k], ids int32 [pairs] -> y T [pairs, n]: a pair's product with its
// expert's n rows, by gemv's additions; SHARED consecutive pairs have one x. Templates: TYPE, EXPERTS, SHARED, ROWS, T.
// Grid: simdgroups of ROWS rows side by side, a pair a step of y.
const uint row = (threadgroup_position_in_grid.x * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) * ROWS;
const uint n = w_shape[0] / EXPERTS, k = x_shape[1], pair = threadgroup_position_in_grid.y;
if (row >= n) return;
gemv<TYPE, ROWS, 1, T>(w + ulong(ids[pair]) * n * w_shape[1], x + ulong(pair / SHARED) * k, y + ulong(pair) * n, n, k, 1, row, 0,
                       thread_index_in_simdgroup);

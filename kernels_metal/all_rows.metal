// w uint8 [n, bytes of a row] -> out T [n, k]: the whole matrix as floats. Templates and grid: as rows.metal, y the rows.
const uint row = thread_position_in_grid.y;
decode_share<TYPE, T>(w, out + ulong(row) * K, row, K, thread_position_in_grid.x);

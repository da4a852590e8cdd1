// w uint8 [n, bytes of a row], ids int32 [m] -> out T [m, k]: rows by number; NaN where there is no such row.
// Templates: TYPE, K (weights of a row), T. Grid: x the shares of a row, y the ids.
const uint i = thread_position_in_grid.x, at = thread_position_in_grid.y;
const int id = ids[at];
if (id >= 0 && id < w_shape[0]) {
  decode_share<TYPE, T>(w, out + ulong(at) * K, uint(id), K, i);
} else {
  for (uint e = 0; e < 16; ++e) out[ulong(at) * K + i * 16 + e] = T(NAN);
}

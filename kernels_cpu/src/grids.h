// grids.h: the codebooks of the IQ formats. They are data (ggml's), kept once, on the Python side, and handed over
// before any model is loaded; no kernel for a format exists until its grid is here.
#pragma once
#include "api.h"
#include <cstddef>
#include <cstdint>

namespace er {

enum Grid : int {
  GRID_IQ2_XXS = 0,  // int8 [256][8]
  GRID_IQ2_XS = 1,   // int8 [512][8]
  GRID_IQ2_S = 2,    // int8 [1024][8]
  GRID_IQ3_XXS = 3,  // int8 [256][4]
  GRID_IQ3_S = 4,    // int8 [512][4]
  GRID_IQ1_S = 5,    // int8 [2048][8], of IQ1_M too
  GRID_COUNT = 6,
};

// null until set; then the same 64-byte aligned pointer for the life of the process.
const int8_t* grid(Grid which);

}  // namespace er

// Copies a codebook. 0: set, or already set to the same bytes. -1: no such grid. -2: `bytes` is not its size.
// -3: already set to other bytes, which stay. Any thread, any number of times.
ER_API int er_set_grid(int which, const void* data, size_t bytes);
// The size er_set_grid expects, 0 for no such grid.
ER_API size_t er_grid_bytes(int which);

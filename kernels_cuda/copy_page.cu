// copy_page.cu: one page of the pool onto another, all layers at once (copy-on-write).
#include "ptx.cuh"

// Any grid and block; page_bytes is a multiple of 16.
extern "C" __global__ void copy_page(uint8_t* pool, long long page_bytes, int from, int to) {
  const uint8_t* source = pool + from * page_bytes;
  uint8_t* target = pool + to * page_bytes;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x * 16;
  for (long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 16;
       i < page_bytes; i += step)
    store(target + i, load<uint4>(source + i));
}

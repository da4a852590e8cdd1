// glu.cu: act(gate) * up for products that do not end in it themselves.
#include "gated.cuh"

// n values; out may be one of the inputs. Any grid and block.
extern "C" __global__ void glu(const float* gate, const float* up, float* out, long long n,
                               int act) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step)
    out[i] = gated(gate[i], up[i], act);
}

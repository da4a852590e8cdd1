// glu.cu: act(gate) * up for products that do not end in it themselves.
#include "ptx.cuh"

enum : int { SILU = 1, GELU = 2 };

// x * (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3); silu: x / (1 +
// exp(-x)).
__device__ __forceinline__ float activated(float x, int act) {
  if (act == SILU) return x / (1.0f + expf(-x));
  const float u2 = 1.5957691216057308f * __fmaf_rn(0.044715f, x * x * x, x);
  return x / (1.0f + expf(-u2));
}

// n values; out may be one of the inputs. Any grid and block.
extern "C" __global__ void glu(const float* gate, const float* up, float* out, long long n,
                               int act) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step)
    out[i] = activated(gate[i], act) * up[i];
}

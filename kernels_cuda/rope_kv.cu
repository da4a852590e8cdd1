// rope_kv.cu: what lies between the Q, K and V products and attention: norms of heads, rope, the
// rotation of q4r, queries as halves, K and V into their pages. A block takes one head of one
// token, a thread one dimension, a warp one block of 32 dimensions. Codes and scales are those of
// kernels_cpu/src/kv_{q8,q4}.h; where they lie is in kv.cuh.
#include "hadamard.cuh"
#include "kv.cuh"

#define ALL_LANES 0xffffffffu

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(ALL_LANES, x, o);
  return x;
}
// The largest magnitude of a warp's values; their bits order as they do, NaN above all.
__device__ __forceinline__ float warp_top(float x) {
  uint32_t top = __float_as_uint(x) & 0x7fffffffu;
#pragma unroll
  for (int o = 16; o; o >>= 1) top = max(top, __shfl_xor_sync(ALL_LANES, top, o));
  return __uint_as_float(top);
}
__device__ __forceinline__ bool f16_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

__device__ __forceinline__ float head_norm(float x, const float* weight, float eps, int d,
                                           int head_dim, float (&part)[32]) {
  const int warp = d >> 5, warps = blockDim.x >> 5;
  const float mine = warp_sum(x * x);
  __syncthreads();  // part may still be read
  if ((d & 31) == 0) part[warp] = mine;
  __syncthreads();
  float sum = part[0];
  for (int i = 1; i < warps; ++i) sum += part[i];
  const float r = 1.0f / sqrtf(sum / static_cast<float>(head_dim) + eps);
  return d < head_dim ? x * r * weight[d] : 0.0f;
}

// turns: n_rot / 2 cosines, then as many sines.
__device__ __forceinline__ float rope(float x, int d, int n_rot, int interleaved,
                                      const float* turns, float (&room)[MAX_HEAD]) {
  __syncthreads();
  room[d] = x;
  __syncthreads();
  if (d >= n_rot) return x;
  const int half = n_rot / 2, i = interleaved ? d / 2 : d % half;
  const bool second = interleaved ? d % 2 != 0 : d >= half;
  const float a = room[interleaved ? 2 * i : i], b = room[interleaved ? 2 * i + 1 : i + half],
              c = turns[i], s = turns[half + i];
  return second ? a * s + b * c : a * c - b * s;
}

// The code of a lane's value and the warp's scale (both as stored). A scale that is not finite: the
// block is not.
__device__ __forceinline__ int encode_q8(float x, uint16_t& scale) {
  scale = float_to_half(warp_top(x) / 127.0f);
  const float d = half_to_float(scale);
  if (!f16_finite(scale) || d <= 0.0f) return 0;
  return __float2int_rn(fminf(fmaxf(x * (1.0f / d), -127.0f), 127.0f));
}

__device__ constexpr int LEVELS[16] = {-127, -101, -79, -62, -47, -33, -21, -9,
                                       2,    14,   25,  37,  50,  65,  83,  107};

// Of eight scales the one with the least squared error, the first of equals; NaN if none will do.
__device__ __forceinline__ int encode_q4(float x, bool used, uint16_t& scale) {
  const float factors[4] = {0.90f / 127.0f, 0.98f / 127.0f, 1.08f / 127.0f, 1.18f / 127.0f};
  const float top = warp_top(x);
  float least = INFINITY_F;
  int best = 0;
  scale = HALF_NAN;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint16_t h = float_to_half(top * (j < 4 ? factors[j & 3] : -factors[j & 3]));
    const float d = half_to_float(h), r = x * (f16_finite(h) && d != 0.0f ? 1.0f / d : 0.0f);
    int code = 0;
    float level = static_cast<float>(LEVELS[0]);
#pragma unroll
    for (int i = 0; i < 15; ++i)
      if (r > static_cast<float>(LEVELS[i] + LEVELS[i + 1]) * 0.5f) {
        code = i + 1;
        level = static_cast<float>(LEVELS[i + 1]);
      }
    const float off = level * d - x, error = warp_sum(used ? off * off : 0.0f);
    if (error < least) {
      least = error;
      best = code;
      scale = h;
    }
  }
  return best;
}

// Slot `slot` of one head's K or V. `code`: the half, the signed byte or the level's index of
// dimension d.
template <int KV, bool IS_K>
__device__ __forceinline__ void put_code(uint8_t* p, int dp, int slot, int d, int code,
                                         uint16_t scale) {
  const int at = IS_K ? kv_k_at(KV, dp / 32, slot, d / 32, d % 32 / 8) : kv_v_at(KV, slot, d);
  if (KV == KV_F16) {
    *reinterpret_cast<uint16_t*>(p + at + (IS_K ? d % 8 * 2 : 0)) = static_cast<uint16_t>(code);
    return;
  }
  if (KV == KV_Q8_0) p[at + (IS_K ? d % 8 : 0)] = static_cast<uint8_t>(code);
  if (KV == KV_Q4R) {  // two codes a byte: a neighbour's, or that of 8 dimensions on
    const int high = __shfl_down_sync(ALL_LANES, code, IS_K ? 1 : 8);
    if (IS_K ? d % 2 == 0 : d % 16 < 8)
      p[at + (IS_K ? d % 8 / 2 : 0)] = static_cast<uint8_t>(code | high << 4);
  }
  if (d % 32 == 0) *reinterpret_cast<uint16_t*>(p + kv_code_bytes(KV, dp) + (d + slot) * 2) = scale;
}

template <int KV>
__device__ __forceinline__ int encode(float x, bool used, uint16_t& scale) {
  if (KV == KV_Q8_0) return encode_q8(x, scale);
  if (KV == KV_Q4R) return encode_q4(x, used, scale);
  return scale = float_to_half(x);
}

// Whether a thread's block of 32 (f16: its value) is not finite, anywhere in the thread block.
__device__ __forceinline__ bool any_thread(bool bad, int d, int (&part)[32]) {
  const bool warp = __any_sync(ALL_LANES, bad);
  __syncthreads();
  if ((d & 31) == 0) part[d >> 5] = warp;
  __syncthreads();
  bool found = false;
  for (int i = 0; i < static_cast<int>(blockDim.x >> 5); ++i) found = found || part[i] != 0;
  return found;
}

// grid (T, n_heads + n_kv), block head_dim rounded up to 32. q, k, v: float [T][...], each with its
// floats from token to token; turns [T][n_rot] or null; norms null or [head_dim]; q_out halves
// [T][n_heads][DP], zero past head_dim, times q_scale, NaN where they are not finite; kvpos [T]:
// the token's place in its sequence, -1 for padding, which writes neither K nor V.
template <int KV>
__global__ void rope_kv(const float* __restrict__ q, const float* __restrict__ k,
                        const float* __restrict__ v, int ldq, int ldk, int ldv,
                        const float* __restrict__ turns,
                        const float* __restrict__ q_norm, const float* __restrict__ k_norm,
                        float eps_q, float eps_k, float q_scale, uint16_t* __restrict__ q_out,
                        uint8_t* __restrict__ pool, long long page_bytes, long long k_off,
                        long long v_off, const int* __restrict__ pages, int page_stride,
                        const int* __restrict__ row_of, const int* __restrict__ kvpos, int n_heads,
                        int n_kv, int head_dim, int n_rot, int interleaved) {
  __shared__ float room[2][MAX_HEAD], part[32];
  __shared__ int bad_part[32];
  const int token = blockIdx.x, d = threadIdx.x, dp = blockDim.x;
  const bool is_q = static_cast<int>(blockIdx.y) < n_heads, used = d < head_dim;
  const int head = is_q ? blockIdx.y : blockIdx.y - n_heads, pos = kvpos[token];
  const float* from =
      is_q ? q + static_cast<size_t>(token) * ldq : k + static_cast<size_t>(token) * ldk;
  const float* norm = is_q ? q_norm : k_norm;
  float x = used ? from[head * head_dim + d] : 0.0f;
  if (norm) x = head_norm(x, norm, is_q ? eps_q : eps_k, d, head_dim, part);
  if (n_rot)
    x = rope(x, d, n_rot, interleaved, turns + static_cast<size_t>(token) * n_rot, room[0]);
  __syncthreads();
  if (KV == KV_Q4R) x = hadamard(x, d, head_dim, room);
  if (is_q) {
    const uint16_t h = float_to_half(x * q_scale);
    q_out[(static_cast<size_t>(token) * n_heads + head) * dp + d] = f16_finite(h) ? h : HALF_NAN;
    return;
  }
  if (pos < 0) return;
  float y = used ? v[static_cast<size_t>(token) * ldv + head * head_dim + d] : 0.0f;
  if (KV == KV_Q4R) y = hadamard(y, d, head_dim, room);
  uint16_t k_scale = 0, v_scale = 0;
  int k_code = encode<KV>(x, used, k_scale), v_code = encode<KV>(y, used, v_scale);
  if (any_thread(!f16_finite(k_scale) || !f16_finite(v_scale), d, bad_part)) {
    k_code = KV == KV_F16 ? HALF_NAN : 0;
    k_scale = HALF_NAN;
    v_code = 0;
    v_scale = 0;
  }
  const int page = pages[static_cast<size_t>(row_of[token]) * page_stride + pos / PAGE];
  uint8_t* to = pool + page * page_bytes + static_cast<size_t>(head) * kv_head_bytes(KV, dp);
  put_code<KV, true>(to + k_off, dp, pos % PAGE, d, k_code, k_scale);
  put_code<KV, false>(to + v_off, dp, pos % PAGE, d, v_code, v_scale);
}

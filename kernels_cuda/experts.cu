// experts.cu: which experts a token has, which columns its products are computed in, and the weighed sum of them. experts.cuh says
// what columns and items are.
//
// A choice is a pair's expert, its share of the sum and its column. 32 tokens make a word: of each word and expert there is a mask of
// the tokens that have it, from which every block of `place` finds by itself how many columns lie before its own tokens'. No order of
// threads has a say in any of it, and nothing is known on the host.
#include "ptx.cuh"

enum : int { MOST_EXPERTS = 1024, NOBODY = 0x7fffffff };
enum : unsigned { ALL = 0xffffffffu };

// An expert and its logit.
struct Candidate {
  float value;
  int id;
};
__device__ __forceinline__ Candidate better(Candidate a, Candidate b) {
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}
// The largest of a warp's logits whose bit in `taken` is not set, of equals the first; bit i is expert 32 i + lane. NaN is taken for
// the smallest, so that every choice is another expert.
__device__ __forceinline__ Candidate largest(const float* r, int n, unsigned taken, int lane) {
  Candidate best = {-INFINITY_F, NOBODY};
  for (int e = lane, i = 0; e < n; e += 32, ++i)
    if (!(taken >> i & 1)) best = better(best, Candidate{r[e] == r[e] ? r[e] : -INFINITY_F, e});
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const Candidate other = {__shfl_xor_sync(ALL, best.value, o), __shfl_xor_sync(ALL, best.id, o)};
    best = better(best, other);
  }
  return best;
}
// The sum of exp(r - top) over a warp's logits; NaN if one of them is.
__device__ __forceinline__ float sum_of_powers(const float* r, int n, float top, int lane) {
  float sum = 0.0f;
  for (int e = lane; e < n; e += 32) sum = __fadd_rn(sum, expf(r[e] - top));
#pragma unroll
  for (int o = 16; o; o >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, o));
  return sum;
}

// How many columns and items there may be, and where they are named. Of list i an item has at most 8 tiles[i] columns.
struct Places {
  const int* expert;     // [tokens][used], -1 for those of padding
  const unsigned* mask;  // [words][experts]
  int *column, *token, *live;
  int4* items[2];
  int n_tokens, n_experts, n_used, n_columns, tiles[2], n_items[2];
};

// The sum over the lanes before this one; `total` grows by that over all.
__device__ __forceinline__ int before_me(int x, int lane, int& total) {
  int sum = x;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const int other = __shfl_up_sync(ALL, sum, o);
    if (lane >= o) sum += other;
  }
  const int base = total;
  total += __shfl_sync(ALL, sum, 31);
  return base + sum - x;
}

// A warp: the first column of each expert's tokens from `word` on; with the first word also all items, and what is no column.
__device__ __forceinline__ void place_experts(const Places& p, int word, int lane, int* first) {
  const int words = (p.n_tokens + 31) / 32;
  int tiles_used = 0, used[2] = {0, 0};
  for (int e0 = 0; e0 < p.n_experts; e0 += 32) {
    const int e = e0 + lane;
    int count = 0, earlier = 0;
    for (int w = 0; w < words && e < p.n_experts; ++w) {
      const int n = __popc(p.mask[static_cast<size_t>(w) * p.n_experts + e]);
      count += n;
      if (w < word) earlier += n;
    }
    const int tiles = (count + 7) / 8, at = before_me(tiles, lane, tiles_used);
    if (e < p.n_experts) first[e] = at * 8 + earlier;
    if (word) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int step = p.tiles[i], n = (tiles + step - 1) / step, place = before_me(n, lane, used[i]);
      for (int j = 0; j < n; ++j)
        store(p.items[i] + place + j, make_int4(e, at + j * step, min(count - 8 * j * step, 8 * step), 0));
    }
    for (int c = at * 8 + count; c < (at + tiles) * 8; ++c) p.token[c] = p.live[c] = -1;
  }
  if (word) return;
  for (int c = tiles_used * 8 + lane; c < p.n_columns; c += 32) p.token[c] = p.live[c] = -1;
  for (int i = 0; i < 2; ++i)
    for (int j = used[i] + lane; j < p.n_items[i]; j += 32) store(p.items[i] + j, make_int4(-1, 0, 0, 0));
}

// A block: the columns of a word's tokens. `first` has room for all experts.
__device__ __forceinline__ void place_word(const Places& p, int word, int thread, int threads, int* first) {
  if (thread < 32) place_experts(p, word, thread, first);
  __syncthreads();
  const int end = min((word + 1) * 32, p.n_tokens) * p.n_used;
  for (int pair = word * 32 * p.n_used + thread; pair < end; pair += threads) {
    const int e = p.expert[pair], t = pair / p.n_used;
    int column = -1;
    if (e >= 0) {
      const unsigned mask = p.mask[static_cast<size_t>(word) * p.n_experts + e];
      column = first[e] + __popc(mask & ((1u << (t & 31)) - 1));
      p.token[column] = t;
      p.live[column] = column;
    }
    p.column[pair] = column;
  }
}

// grid = words, block = (32, up to 32 tokens): a warp a token. logits [T][ld]; kvpos: [T], -1 for padding, which has no experts, or
// null. Experts' shares: of all experts' softmax if `all`, of the chosen ones' if not; `divide`: by their sum. Where one word holds
// all tokens it does what `place` does, too.
extern "C" __global__ void __launch_bounds__(1024, 1)
    route(const float* __restrict__ logits, int ld, const int* __restrict__ kvpos, int all, int divide, float scale, int* expert,
          float* __restrict__ share, unsigned* mask, int* column, int* token, int* live, int4* items0, int4* items1, int n_tokens,
          int n_experts, int n_used, int n_columns, int tiles0, int n_items0, int tiles1, int n_items1) {
  __shared__ unsigned has[MOST_EXPERTS];
  __shared__ int first[MOST_EXPERTS];
  const int lane = threadIdx.x, word = blockIdx.x, thread = threadIdx.y * 32 + lane, threads = blockDim.y * 32;
  for (int e = thread; e < n_experts; e += threads) has[e] = 0;
  __syncthreads();
  for (int i = threadIdx.y; i < 32 && word * 32 + i < n_tokens; i += blockDim.y) {
    const int t = word * 32 + i;
    const bool is_padding = kvpos && kvpos[t] < 0;
    const float* r = logits + static_cast<size_t>(t) * ld;
    unsigned taken = 0;
    float top = 0.0f, whole = 1.0f, sum = 0.0f;
    Candidate mine = {0.0f, -1};  // lane i keeps rank i
    for (int rank = 0; rank < n_used; ++rank) {
      const Candidate best = largest(r, n_experts, taken, lane);
      if ((best.id & 31) == lane) taken |= 1u << (best.id >> 5);
      if (rank == 0) {
        top = best.value;
        const float total = sum_of_powers(r, n_experts, top, lane);
        whole = all || total != total ? total : 1.0f;  // NaN goes on in either case
      }
      const float part = __fdiv_rn(expf(best.value - top), whole);
      sum = __fadd_rn(sum, part);
      if (lane == rank) mine = Candidate{part, best.id};
    }
    if (lane < n_used) {
      const size_t pair = static_cast<size_t>(t) * n_used + lane;
      expert[pair] = is_padding ? -1 : mine.id;
      share[pair] = __fmul_rn(divide ? __fdiv_rn(mine.value, sum) : mine.value, scale);
      if (!is_padding) atomicOr(&has[mine.id], 1u << i);
    }
  }
  __syncthreads();
  for (int e = thread; e < n_experts; e += threads) mask[static_cast<size_t>(word) * n_experts + e] = has[e];
  if (gridDim.x > 1) return;
  __syncthreads();
  place_word({expert, mask, column, token, live, {items0, items1}, n_tokens, n_experts, n_used, n_columns, {tiles0, tiles1},
              {n_items0, n_items1}}, 0, thread, threads, first);
}

// grid = words, block = 256: columns, and the tokens that they are of. Whoever reads a row a column finds that in token (of the
// tokens') or live (of the columns' own), and -1 where there is none.
extern "C" __global__ void __launch_bounds__(256)
    place(const int* expert, const unsigned* mask, int* column, int* token, int* live, int4* items0, int4* items1, int n_tokens,
          int n_experts, int n_used, int n_columns, int tiles0, int n_items0, int tiles1, int n_items1) {
  __shared__ int first[MOST_EXPERTS];
  place_word({expert, mask, column, token, live, {items0, items1}, n_tokens, n_experts, n_used, n_columns, {tiles0, tiles1},
              {n_items0, n_items1}}, blockIdx.x, threadIdx.x, blockDim.x, first);
}

// grid = (T, ceil(width / 1024)), block = 256: out[t] = (residual[t] +) the sum over ranks of share * part, in rising order; parts:
// [columns][ld_parts]. Padding has no experts, and 0. width and the lds are multiples of 4.
extern "C" __global__ void __launch_bounds__(256)
    sum_experts(const float* __restrict__ parts, int ld_parts, const int* __restrict__ column, const float* __restrict__ share,
                const float* residual, int ld_residual, float* out, int ld, int n_used, int width) {
  const int t = blockIdx.x, at = (blockIdx.y * 256 + threadIdx.x) * 4;
  if (at >= width) return;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int rank = 0; rank < n_used; ++rank) {
    const size_t pair = static_cast<size_t>(t) * n_used + rank;
    if (column[pair] < 0) continue;
    const float s = share[pair];
    const float4 v = load_const<float4>(parts + static_cast<size_t>(column[pair]) * ld_parts + at);
    sum = make_float4(__fmaf_rn(s, v.x, sum.x), __fmaf_rn(s, v.y, sum.y), __fmaf_rn(s, v.z, sum.z), __fmaf_rn(s, v.w, sum.w));
  }
  if (residual) {
    const float4 r = load<float4>(residual + static_cast<size_t>(t) * ld_residual + at);
    sum = make_float4(__fadd_rn(r.x, sum.x), __fadd_rn(r.y, sum.y), __fadd_rn(r.z, sum.z), __fadd_rn(r.w, sum.w));
  }
  store(out + static_cast<size_t>(t) * ld + at, sum);
}

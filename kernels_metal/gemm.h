// gemm.h: tiles of a product for many tokens, with the GPU's 8x8 matrices. Their order of additions is the GPU's own, so results
// are not gemv's to the bit. Needs lanes.h and blocks.h.
#include <metal_simdgroup_matrix>

// One share of a row as floats, at its place in `row`, which starts at weight `first`.
template <int TYPE, typename S>
inline void stage_share(const device uchar* w, uint i, threadgroup S* row, uint first) {
  using F = Format<TYPE>;
  constexpr uint SHARES = F::WEIGHTS / 16;
  const uint block = i / SHARES, share = i % SHARES;
  Share s;
  F::decode(w + ulong(block) * F::BYTES, share, s);
  UNROLL for (uint j = 0; j < 4; ++j) {
    constexpr uint RUN = F::RUN;
    threadgroup S* to = row + (block * F::WEIGHTS + F::at(share, j) - first);
    const float scale = s.scale[j / RUN * RUN], least = F::HAS_LEAST ? s.least[j / RUN * RUN] : 0.0f;
    UNROLL for (uint e = 0; e < 4; ++e) to[e] = S(fma(scale, s.code[j][e], -least));
  }
}

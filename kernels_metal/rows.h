// rows.h: quantized rows as floats, with the bits of the gguf package's decoder where T is float. Needs blocks.h.
template <int TYPE, typename T>
inline void decode_share(const device uchar* w, device T* out, uint row, uint k, uint i) {
  using F = Format<TYPE>;
  constexpr uint SHARES = F::WEIGHTS / 16;
  const uint block = i / SHARES, share = i % SHARES;
  Share s;
  F::decode(w + (ulong(row) * (k / F::WEIGHTS) + block) * F::BYTES, share, s);
  for (uint j = 0; j < 4; ++j) {
    const uint run = j / F::RUN * F::RUN;
    device T* to = out + block * F::WEIGHTS + F::at(share, j);
    for (uint e = 0; e < 4; ++e) {
      const float v = s.scale[run] * s.code[j][e];
      to[e] = T(F::HAS_LEAST ? v - s.least[run] : v);
    }
  }
}

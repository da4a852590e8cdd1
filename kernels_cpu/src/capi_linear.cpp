// capi_linear.cpp: C entry points over the linear kernels of one instruction set, by name: for tests and tools.
#include "api.h"
#include "kernels.h"
#include <stdlib.h>
#include <string.h>

namespace {
const er::Linear* linear_of(const char* isa, int type, const er::Isa** set) {
  *set = er::find_isa(isa);
  return *set ? (*set)->linear.find(type) : nullptr;
}
size_t tiles_of(const er::Linear* l, int64_t n_rows) { return size_t((n_rows + l->tile_rows - 1) / l->tile_rows); }

struct Buffer {  // 64-byte aligned, freed on return
  void* raw;
  uint8_t* p;
  explicit Buffer(size_t bytes) : raw(malloc(bytes + 64)), p((uint8_t*)((uintptr_t(raw) + 63) & ~uintptr_t(63))) {}
  ~Buffer() { free(raw); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};
}  // namespace

// The sets this build holds and this machine runs, best first, separated by spaces. Returns the bytes needed with the zero.
ER_API int er_isa_names(char* buf, int size) {
  int need = 0;
  for (const er::Isa* const* p = er::isas(); *p; p++) {
    const int n = int(strlen((*p)->name));
    if (need + n + 1 <= size) {
      memcpy(buf + need, (*p)->name, size_t(n));
      buf[need + n] = p[1] ? ' ' : 0;
    }
    need += n + 1;
  }
  return need;
}

// info = {act, tile_rows, block_k, tile_bytes for K}; 0, or -1 for an unknown set or type, -2 for a K it cannot have.
ER_API int er_linear_info(const char* isa, int type, int K, int64_t* info) {
  const er::Isa* set;
  const er::Linear* l = linear_of(isa, type, &set);
  if (!l) return -1;
  if (K <= 0 || K % l->block_k) return -2;
  info[0] = l->act;
  info[1] = l->tile_rows;
  info[2] = l->block_k;
  info[3] = int64_t(l->tile_bytes(K));
  return 0;
}

// n_rows GGUF rows -> ceil(n_rows / tile_rows) tiles at dst, 64-byte aligned.
ER_API int er_pack(const char* isa, int type, const uint8_t* src, int64_t row_bytes, int64_t n_rows, int K, uint8_t* dst) {
  const er::Isa* set;
  const er::Linear* l = linear_of(isa, type, &set);
  if (!l) return -1;
  const size_t tile = l->tile_bytes(K);
  for (int64_t r = 0; r < n_rows; r += l->tile_rows, dst += tile) {
    const int rows = int(n_rows - r < l->tile_rows ? n_rows - r : l->tile_rows);
    l->pack(src + r * row_bytes, size_t(row_bytes), rows, K, dst);
  }
  return 0;
}

// out [M][n_rows] = x [M][K] times the packed weights, transposed; quantizes x as the type wants it.
ER_API int er_linear_run(const char* isa, int type, const uint8_t* packed, int64_t n_rows, int K, const float* x, int M, float* out) {
  const er::Isa* set;
  const er::Linear* l = linear_of(isa, type, &set);
  if (!l) return -1;
  const size_t tiles = tiles_of(l, n_rows);
  const int64_t ldo = int64_t(tiles) * l->tile_rows;
  Buffer act(set->linear.act_bytes(l->act, K, M)), scratch(set->linear.scratch_bytes(K, M)), full(size_t(ldo) * size_t(M) * 4);
  if (!act.raw || !scratch.raw || !full.raw) return -3;
  set->linear.quantize(l->act, x, K, K, M, 0, M, act.p);
  set->linear.index(l->act, act.p, K, M, scratch.p);
  l->run(packed, int(tiles), act.p, K, M, (float*)full.p, ldo, scratch.p);
  for (int m = 0; m < M; m++) memcpy(out + m * n_rows, (float*)full.p + m * ldo, size_t(n_rows) * 4);
  return 0;
}

// Rows ids[0..n) as float [n][K], the bits of the file format's dequantizer.
ER_API int er_unpack_rows(const char* isa, int type, const uint8_t* packed, int K, const int64_t* ids, int n, float* out) {
  const er::Isa* set;
  const er::Linear* l = linear_of(isa, type, &set);
  if (!l) return -1;
  const size_t tile = l->tile_bytes(K);
  for (int i = 0; i < n; i++)
    l->unpack_row(packed + size_t(ids[i] / l->tile_rows) * tile, int(ids[i] % l->tile_rows), K, out + int64_t(i) * K);
  return 0;
}

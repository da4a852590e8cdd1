// capi_weight.cpp: the C ABI of a load: matrices are made empty, then filled from file rows, many in one call.
#include "api.h"
#include "program.h"

using namespace er;

// Rows of a matrix as the file holds them; mirrored in backends/cpu_abi.py. `row` is a multiple of the type's tile rows, and
// so is n_rows unless it reaches the end of the matrix, or of one of its experts.
struct PackPart {
  const Weight* weight;
  const uint8_t* src;
  int64_t row_bytes, row, n_rows;
};

namespace {
constexpr size_t PAST_END = 16384;    // kernels prefetch past the end
constexpr size_t CHUNK = 256 * 1024;  // bytes a thread packs at a time

struct Block { uint8_t* data; size_t bytes; };

size_t aligned(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

struct PackJob {
  Pool* pool;
  const PackPart* parts;
  int* first;  // chunk where each part begins, and their number
  int n_parts;
};

int64_t tiles_of(const Linear& l, int64_t rows) { return (rows + l.tile_rows - 1) / l.tile_rows; }

int64_t chunk_tiles(const Weight& w) {
  const size_t tile = w.linear->tile_bytes(int(w.n_cols));
  return tile < CHUNK ? int64_t(CHUNK / tile) : 1;
}

void pack_chunk(const PackPart& part, int chunk) {
  const Weight& w = *part.weight;
  const Linear& l = *w.linear;
  const int K = int(w.n_cols), rows = l.tile_rows;
  const int64_t step = chunk_tiles(w), end = tiles_of(l, part.n_rows);
  uint8_t* to = w.data + size_t(part.row / rows) * l.tile_bytes(K);
  for (int64_t t = chunk * step; t < (chunk + 1) * step && t < end; t++) {
    const int64_t left = part.n_rows - t * rows;
    l.pack(part.src + size_t(t * rows) * size_t(part.row_bytes), size_t(part.row_bytes), int(left < rows ? left : rows), K,
           to + size_t(t) * l.tile_bytes(K));
  }
}

void pack_all(void* ctx, int thread) {
  const PackJob& job = *static_cast<PackJob*>(ctx);
  job.pool->next_phase(job.first[job.n_parts]);
  for (int c; (c = job.pool->claim(thread)) >= 0;) {
    int lo = 0, hi = job.n_parts - 1;
    while (lo < hi) {
      const int mid = (lo + hi + 1) / 2;
      if (job.first[mid] <= c) lo = mid;
      else hi = mid - 1;
    }
    pack_chunk(job.parts[lo], c - job.first[lo]);
  }
}
}  // namespace

// A matrix without memory yet. Null: no kernel for the type, or n_cols do not suit it, or no memory (then *no_memory is 1).
ER_API void* er_weight_new(const void* isa, int type, int64_t n_rows, int64_t n_cols, int* no_memory) {
  *no_memory = 0;
  const Linear* l = static_cast<const Isa*>(isa)->linear.find(type);
  if (!l || n_cols % l->block_k) return nullptr;
  Weight* w = make<Weight>();
  *no_memory = !w;
  if (w) *w = {l, n_rows, n_cols, nullptr, size_t(tiles_of(*l, n_rows)) * l->tile_bytes(int(n_cols))};
  return w;
}
ER_API void er_weight_free(void* weight) { destroy(static_cast<Weight*>(weight)); }
ER_API size_t er_weight_bytes(const void* weight) { return static_cast<const Weight*>(weight)->bytes; }
// Rows of a tile; 0: no kernel for the type.
ER_API int er_type_tile_rows(const void* isa, int type) {
  const Linear* l = static_cast<const Isa*>(isa)->linear.find(type);
  return l ? l->tile_rows : 0;
}
ER_API int er_weight_tile_rows(const void* weight) { return static_cast<const Weight*>(weight)->linear->tile_rows; }

// One block of memory for many matrices, so that small ones lie on huge pages too. Null if there is none; free it after them.
ER_API void* er_weights_place(void* const* weights, int n) {
  Block* block = make<Block>();
  if (!block) return nullptr;
  block->bytes = PAST_END;
  for (int i = 0; i < n; i++) block->bytes += aligned(static_cast<Weight*>(weights[i])->bytes);
  block->data = static_cast<uint8_t*>(alloc_pages(block->bytes));
  if (!block->data) {
    destroy(block);
    return nullptr;
  }
  uint8_t* at = block->data;
  for (int i = 0; i < n; i++) {
    Weight* w = static_cast<Weight*>(weights[i]);
    w->data = at;
    at += aligned(w->bytes);
  }
  return block;
}
ER_API void er_block_free(void* p) {
  Block* block = static_cast<Block*>(p);
  free_pages(block->data, block->bytes);
  destroy(block);
}

// Interleave file rows into their matrices, on all threads of the pool. 0, or 1 if there is no memory.
ER_API int er_weights_pack(void* pool, const PackPart* parts, int n_parts) {
  PackJob job{static_cast<Pool*>(pool), parts, static_cast<int*>(calloc(size_t(n_parts) + 1, sizeof(int))), n_parts};
  if (!job.first) return 1;
  for (int i = 0; i < n_parts; i++) {
    const int64_t step = chunk_tiles(*parts[i].weight), tiles = tiles_of(*parts[i].weight->linear, parts[i].n_rows);
    job.first[i + 1] = job.first[i] + int((tiles + step - 1) / step);
  }
  job.pool->run(pack_all, &job);
  free(job.first);
  return 0;
}

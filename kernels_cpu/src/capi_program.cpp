// capi_program.cpp: the C ABI of backends/cpu.py. Functions that can fail return null or a static message.
#include <cstdlib>
#include <cstring>
#include "api.h"
#include "program.h"

using namespace er;

// Bumped whenever a struct or signature changes, so that a stale library is noticed at load.
ER_API int er_abi_version() { return 6; }

// The instruction set `name`, or the best one for null or "". Null: not in this build or not on this machine.
ER_API const void* er_isa(const char* name) { return name && *name ? find_isa(name) : isas()[0]; }
ER_API const char* er_isa_name(const void* isa) { return static_cast<const Isa*>(isa)->name; }
ER_API int er_isa_has_type(const void* isa, int type) { return static_cast<const Isa*>(isa)->linear.find(type) != nullptr; }

ER_API void* er_pool_new(int threads) { return Pool::create(threads); }
ER_API void er_pool_free(void* pool) { Pool::free(static_cast<Pool*>(pool)); }

// A pool of n_pages pages; layer i has n_kv[i] heads of head_dim[i], stored as `type` (KvType).
ER_API void* er_kv_new(int type, int n_layers, const int32_t* n_kv, const int32_t* head_dim, int n_pages) {
  Kv* kv = type >= 0 && type < N_KV_TYPES ? make<Kv>() : nullptr;
  if (!kv) return nullptr;
  kv->layers = static_cast<KvLayer*>(calloc(n_layers ? n_layers : 1, sizeof(KvLayer)));
  kv->n_pages = n_pages;
  kv->n_layers = n_layers;
  for (int i = 0; kv->layers && i < n_layers; i++) {
    const KvShape s = kv->layers[i].shape = kv_shape(type, n_kv[i], head_dim[i]);
    kv->layers[i].offset = kv->page_bytes;
    kv->page_bytes += (s.n_kv * (s.k_bytes + s.v_bytes) + 63) / 64 * 64;
  }
  // Large pages a power of two apart would compete for the same few sets of the caches.
  if (kv->page_bytes >= size_t(256) << 10) kv->page_bytes = ((kv->page_bytes + 4095) / 4096 * 4096) | 4096;
  kv->bytes = kv->page_bytes * n_pages;
  kv->data = kv->layers ? static_cast<uint8_t*>(alloc_pages(kv->bytes)) : nullptr;
  if (!kv->data) {
    free(kv->layers);
    destroy(kv);
    return nullptr;
  }
  return kv;
}
ER_API void er_kv_free(void* p) {
  Kv* kv = static_cast<Kv*>(p);
  free_pages(kv->data, kv->bytes);
  free(kv->layers);
  destroy(kv);
}
ER_API size_t er_kv_page_bytes(const void* kv) { return static_cast<const Kv*>(kv)->page_bytes; }
ER_API void* er_kv_page(void* kv, int page) {
  Kv* k = static_cast<Kv*>(kv);
  return k->data + size_t(page) * k->page_bytes;
}

ER_API void* er_program_new(const void* isa, void* pool, const Instr* code, int n_code, const int32_t* widths, int n_buffers, void* kv,
                            int logits_buffer) {
  return Program::create(static_cast<const Isa*>(isa), static_cast<Pool*>(pool), code, n_code, widths, n_buffers, static_cast<Kv*>(kv),
                         logits_buffer);
}
ER_API void er_program_free(void* program) { destroy(static_cast<Program*>(program)); }

// Run one step. Null on success, else a message; then the pages hold nothing new that counts.
ER_API const char* er_program_run(void* program, const BatchView* batch, const RopeTable* tables, int n_tables) {
  return static_cast<Program*>(program)->run(*batch, tables, n_tables);
}
ER_API const float* er_program_logits(const void* program) { return static_cast<const Program*>(program)->logits(); }
ER_API const int32_t* er_program_best(const void* program) { return static_cast<const Program*>(program)->best(); }
ER_API const int32_t* er_program_top(const void* program) { return static_cast<const Program*>(program)->top(); }
ER_API int64_t er_program_logits_stride(const void* program) { return static_cast<const Program*>(program)->logits_stride(); }

// For a check at load that both sides agree on the layout.
ER_API int er_sizeof(int which) {
  const int sizes[] = {int(sizeof(Instr)), int(sizeof(BatchView)), int(sizeof(RopeTable)), int(sizeof(Prologue)), int(sizeof(LinearOut))};
  return which >= 0 && which < 5 ? sizes[which] : -1;
}

// program.h: a forward pass as a list of phases, recorded once in Python and run by the pool in one call a step.
// These structs are mirrored field by field in backends/cpu_abi.py.
#pragma once
#include "float_ops.h"
#include "kernels.h"
#include "pool.h"

namespace er {

enum Op : int32_t {
  OP_EMBED = 0,      // out[t] = row tokens[t] of weight * scale
  OP_TOKENWISE = 1,  // out = the prologue's value
  OP_LINEAR = 2,     // prologue, then one or several matrices, then an epilogue
  OP_ROPE_KV = 3,    // per head: optional norm, rope; k and v into their pages
  OP_ATTENTION = 4,
  OP_GATHER = 5,     // out[i] = a[outputs[i]]
};

enum Epilogue : int32_t { EPI_NONE = 0, EPI_RESIDUAL = 1, EPI_GLU = 2, EPI_SOFTCAP = 3 };

// A weight matrix: tiles of interleaved rows, or plain floats for vectors.
struct Weight {
  const Linear* linear;
  int64_t n_rows, n_cols;
  uint8_t* data;
  size_t bytes;
};

// value = scale * (a + norm_b(b)); stored to `sum` if that is a buffer; then norm_n(value). Absent parts are skipped.
struct Prologue {
  int32_t a, b, sum, width;
  const float* norm_b;
  const float* norm_n;
  int32_t group_b, group_n;
  float eps_b, eps_n, scale;
  int32_t pad;
};

struct LinearOut {
  const Weight* weight;
  const float* bias;
  int32_t out, pad;
};

enum { MAX_OUTS = 4 };

struct Instr {
  int32_t op;
  int32_t gathered;  // runs on the batch's outputs instead of its tokens
  Prologue pre;
  LinearOut outs[MAX_OUTS];
  int32_t n_outs, epilogue, glu, residual;
  float softcap;
  int32_t out;
  // OP_ROPE_KV and OP_ATTENTION
  int32_t q, k, v, layer, n_heads, n_kv, head_dim, window;
  float scale;
  int32_t rope;  // index of a table, -1: none
  int32_t n_rot, interleaved;
  const float* q_norm;
  const float* k_norm;
  float eps_q, eps_k;
};

struct RopeTable { const float* cs; int32_t n_pos, n_rot; };  // [n_pos][cosines | sines]

struct BatchView {
  const int32_t *tokens, *positions, *row_start, *n_past, *pages, *outputs;
  int32_t n_tokens, n_rows, n_outputs, max_pages;
};

struct KvLayer { KvShape shape; size_t offset; };  // offset of the layer within a page

struct Kv {
  uint8_t* data;
  size_t page_bytes, bytes;
  int32_t n_pages, n_layers;
  KvLayer* layers;
};

class Program {
 public:
  static Program* create(const Isa* isa, Pool* pool, const Instr* code, int n_code, const int32_t* widths, int n_buffers, Kv* kv,
                         int logits_buffer);
  Program() = default;
  ~Program();
  // Null on success, else what went wrong.
  const char* run(const BatchView& batch, const RopeTable* tables, int n_tables);
  const float* logits() const { return buffers_[logits_]; }
  int64_t logits_stride() const { return ld_[logits_]; }

 private:
  struct Item { int32_t row, kv_head, q0, q1; };
  bool reserve();
  bool plan_attention(const Instr& in);
  const char* check(const RopeTable* tables, int n_tables) const;
  bool inline_prologue(const Instr& in) const;
  int chunk_tiles(const Instr& in) const;
  static int tile_count(const Weight* w);
  static bool uses_act(const Instr& in, Act act);
  void thread_main(int thread);
  void embed(const Instr& in, int thread);
  void tokenwise(const Instr& in, int thread);
  void gather(const Instr& in, int thread);
  void linear(const Instr& in, int thread);
  void rope_kv(const Instr& in, int thread);
  void attention(const Instr& in, int thread);
  void linear_chunk(const Instr& in, int which, int tile, int tiles, const uint8_t* const* acts, int thread);
  void glu_chunk(const Instr& in, int tile, int tiles, const uint8_t* const* acts, int thread);
  void run_tiles(const Instr& in, const LinearOut& o, int tile, int tiles, const uint8_t* const* acts, float* out, int64_t ldo,
                 int thread);
  void quantize_token(const Instr& in, int t, bool store_sum, uint8_t* const* acts, int thread);
  int row_of(int t) const;
  const float* prologue(const Prologue& p, int t, bool store_sum, int thread);
  const float* token(int buffer, int t) const { return buffers_[buffer] + int64_t(t) * ld_[buffer]; }
  float* token(int buffer, int t) { return buffers_[buffer] + int64_t(t) * ld_[buffer]; }
  int count(const Instr& in) const { return in.gathered ? batch_.n_outputs : batch_.n_tokens; }

  const Isa* isa_ = nullptr;
  Pool* pool_ = nullptr;
  Kv* kv_ = nullptr;
  Instr* code_ = nullptr;
  int n_code_ = 0, n_buffers_ = 0, logits_ = 0;
  int32_t* widths_ = nullptr;
  int64_t* ld_ = nullptr;
  float** buffers_ = nullptr;
  size_t *buffer_bytes_ = nullptr;
  int max_width_ = 0;
  uint8_t* act_[N_ACTS] = {};
  size_t act_bytes_[N_ACTS] = {};
  uint8_t** scratch_ = nullptr;
  size_t scratch_bytes_ = 0, vectors_at_ = 0, private_at_ = 0, glu_at_ = 0;  // layout of a thread's scratch
  Item* items_ = nullptr;
  int n_items_ = 0, items_cap_ = 0;
  int max_group_ = 1, max_head_dim_ = 16;
  BatchView batch_ = {};
  const RopeTable* tables_ = nullptr;
};

}  // namespace er

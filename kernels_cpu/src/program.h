// program.h: a forward pass as a list of phases, recorded once in Python and run by the pool in one call a step.
// These structs are mirrored field by field in backends/cpu_abi.py.
#pragma once
#include "float_ops.h"
#include "job.h"
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
  // Experts (moe.cpp). A token's results lie side by side, by the rank of its experts.
  OP_MOE_UP = 6,     // prologue, then gate and up of each expert the token chose
  OP_MOE_DOWN = 7,   // their second matrices
  OP_MOE_SUM = 8,    // out = the weighed sum, from the first rank to the last, and the residual
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

// Lines that another thread has written, on their way to this one.
inline void bring(const float* from, int64_t floats) {
  for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(from + i, 0, 3);
}

// Whether the value is anything but the input as it lies there.
inline bool computes(const Prologue& p) { return p.b >= 0 || p.scale != 1.0f || p.norm_n || p.sum >= 0; }

struct LinearOut {
  const Weight* weight;
  const float* bias;
  int32_t out, pad;
};

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
  const float* sinks;  // of attention: null, or [n_heads]
  // OP_MOE_*: matrices hold the experts behind one another, each from a tile of its own on; biases [n_experts][n_rows].
  int32_t router, n_experts, n_used, n_rows;  // buffer of the router's logits; rows of one expert
  int32_t gating, normalize, moe;             // Gating; which of the pass's layers of experts this is
  float share_scale;
};

// Softmax over all experts, or over the chosen ones alone.
enum Gating : int32_t { GATE_ALL = 0, GATE_CHOSEN = 1 };

// What the tokens of a batch chose, in a thread's own memory. Expert and share are by token and rank; the groups are the
// experts that somebody chose, ascending, each with its tokens' slots (token * n_used + rank), ascending, too.
struct Choice {
  uint64_t run;  // and layer that it belongs to
  int32_t moe, n_groups;
  int32_t *expert, *group, *first, *slot;
  float *share, *logits;
};

struct KvLayer { KvShape shape; size_t offset; };  // offset of the layer within a page

struct Kv {
  uint8_t* data;
  size_t page_bytes, bytes;
  int32_t n_pages, n_layers;
  KvLayer* layers;
};

// Up to so many tokens a batch runs as a step without barriers; a longer one would copy more than barriers cost it.
constexpr int FEW = 16;
// Up to so many columns meet one tile at a time in every set, more may meet two (gemm.h).
constexpr int ONE_BY_ONE = 6;
// Up to so many floats every thread quantizes the whole input for itself, which is cheaper than another barrier.
constexpr int INLINE_FLOATS = 16384;
constexpr int TOGETHER = 16;  // tokens of a long batch whose input is quantized at once

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
  // Of each output the id with the largest logit, the lowest of equals; -1 where some logit is not finite. Null: not asked for.
  const int32_t* best() const { return has_best_ ? best_ : nullptr; }
  // Of each output the ids of the largest logits, [n_outputs][want_top], and behind all of them those logits as floats: best first,
  // of equals the lowest id. Where there are fewer they are -1 and -inf; so are all where some logit is not finite. Null: not asked for.
  const int32_t* top() const { return has_top_ ? top_ : nullptr; }

  // A chunk of a step's phase: into the thread's own memory, and from there to the buffers (relay.h).
  void compute(const Job& job, int phase, uint64_t number, int chunk, int thread);
  void commit(const Job& job, int phase, int chunk, int thread);

 private:
  // What a thread knows of its own: scratch memory, and what of it holds which phase's values.
  struct alignas(64) Lane {
    uint8_t* scratch;
    uint64_t prepared, number;  // phase whose input is quantized here; phase of `sum` and `value`
    int32_t token;              // their token
    int32_t group, single;      // of experts: whose input is prepared, and the token if that is the only one
    const float *sum, *value;   // a prologue's two results
    float tops[FEW];            // of a chunk of logits, each output's largest
    Choice choice;
  };

  // program.cpp: memory, checks, the way through a batch
  bool reserve(int n_tokens, int n_outputs);
  bool reserve_scratch(int n_tokens, int n_outputs);
  bool reserve_parts(int n);
  static bool grow(void** p, size_t* have, size_t need);
  const char* check(const BatchView& batch, const RopeTable* tables, int n_tables) const;
  Job* free_job();
  int count(const Instr& in, const Job& job) const { return in.gathered ? job.batch.n_outputs : job.batch.n_tokens; }

  // phases.cpp: what a chunk computes, and the phases that end with a barrier
  void run_phases(const Job& job, int thread);
  void embed_row(const Instr& in, int32_t id, float* out) const;
  void prologue(const Prologue& p, int t, Lane& lane);
  void quantize_token(const Instr& in, int n, int t, uint8_t* const* acts, Lane& lane);
  void quantize_tokens(const Instr& in, int n, int t0, int t1, uint8_t* const* acts, Lane& lane);
  void index_acts(const Instr& in, int n, const uint8_t* const* acts, const Lane& lane) const;
  void private_acts(const Instr& in, int n, const Lane& lane, uint8_t** acts) const;
  void run_tiles(const LinearOut& o, int n, int tile, int tiles, const uint8_t* const* acts, float* out, int64_t ldo, Lane& lane);
  bool run_fused(const Instr& in, const LinearOut& o, int n, int tile, int tiles, const uint8_t* const* acts, float* out, int64_t ldo,
                 Lane& lane);
  void linear_tiles(const Instr& in, int which, int n, int tile, int tiles, const uint8_t* const* acts, float* out, int64_t ldo,
                    Lane& lane);
  const float* rotate_head(const Instr& in, const Job& job, int t, int h, Lane& lane, float* out);
  // The layer's part of the page that token t goes to, and its slot there.
  uint8_t* page_of(const Instr& in, const Job& job, int t, int* slot = nullptr) const;
  void store_head(const Instr& in, const Job& job, int t, int kv_head, const float* k);
  void attend(const Instr& in, const Job& job, const Item& item, float* out, int64_t ld_out, float* parts, Lane& lane);
  void merge(const Instr& in, const Merge& m, float* out, int64_t ld_out, Lane& lane);
  template <class F> void each_token(int n, int thread, const F& f);
  void linear(const Instr& in, const Job& job, int thread);
  void rope_kv(const Instr& in, const Job& job, int thread);
  bool inline_prologue(const Instr& in, int n) const;
  int chunk_tiles(const Instr& in, int n) const;
  static int tile_count(const Weight* w);
  static bool uses_act(const Instr& in, Act act);

  // moe.cpp: experts
  static bool is_moe(const Instr& in) { return in.op == OP_MOE_UP || in.op == OP_MOE_DOWN; }
  static int expert_tiles(const Instr& in);
  static int most_groups(const Instr& in, int n) { return n < in.n_experts / in.n_used ? n * in.n_used : in.n_experts; }
  int expert_step(const Instr& in, int n) const;
  int expert_chunks(const Instr& in, int n) const;
  size_t choice_bytes(const Instr& in, int n) const;
  const Choice& choose(const Instr& in, const Job& job, Lane& lane) const;
  void prepare_group(const Instr& in, const Choice& choice, int group, uint64_t number, uint8_t** acts, Lane& lane);
  bool compute_experts(const Instr& in, const Job& job, uint64_t number, int chunk, Lane& lane);
  void commit_experts(const Instr& in, const Job& job, int chunk, const Lane& lane);
  void sum_experts(const Instr& in, const Job& job, int t, float* out, Lane& lane) const;

  // best.cpp: the largest logits, chunk by chunk while the head is computed
  struct Head;
  Head head_of(const Job& job) const;
  bool reserve_best(const Job& job);
  bool wants_tops(int buffer, const Job& job) const { return (job.batch.want_best || job.batch.want_top) && buffer == logits_; }
  void top_of_rows(const Instr& in, int n, int tile, int tiles, const float* out, int64_t ldo, float* tops) const;
  void find_best(const Job& job);
  void find_top(const Job& job);

  // step.cpp: the same without barriers
  bool plan_step(Job& job);
  int cut(const Instr& in, const Job& job, Cut& cut) const;
  int64_t patience(const Instr& in, const Job& job, const Cut& cut, int longest) const;
  template <class F> void each_head(const Instr& in, const Job& job, const Cut& cut, int chunk, const F& f) const;
  void compute_linear(const Instr& in, const Job& job, const Cut& cut, uint64_t number, int chunk, Lane& lane);
  void commit_linear(const Instr& in, const Job& job, const Cut& cut, int chunk, Lane& lane);
  void commit_attention(const Instr& in, const Job& job, const Cut& cut, int chunk, const float* from);
  static int matrix_of(const Cut& cut, int chunk);

  const float* token(int buffer, int t) const { return buffers_[buffer] + int64_t(t) * ld_[buffer]; }
  float* token(int buffer, int t) { return buffers_[buffer] + int64_t(t) * ld_[buffer]; }
  float* vectors(const Lane& lane) const { return reinterpret_cast<float*>(lane.scratch + vectors_at_); }
  float* units(const Lane& lane) const { return reinterpret_cast<float*>(lane.scratch + glu_at_); }
  float* result(const Lane& lane) const { return reinterpret_cast<float*>(lane.scratch + result_at_); }

  const Isa* isa_ = nullptr;
  Pool* pool_ = nullptr;
  Kv* kv_ = nullptr;
  Instr* code_ = nullptr;
  int n_code_ = 0, n_buffers_ = 0, logits_ = 0;
  int32_t* widths_ = nullptr;
  int64_t* ld_ = nullptr;
  float** buffers_ = nullptr;
  size_t *buffer_bytes_ = nullptr;
  float* parts_ = nullptr;  // of attention over rows of several splits, layer after layer
  size_t parts_bytes_ = 0;
  float* tops_ = nullptr;  // [chunks of the head][n_outputs]
  int32_t *best_ = nullptr, *top_ = nullptr;
  uint64_t* ranking_ = nullptr;  // [want_top]
  size_t tops_bytes_ = 0, best_bytes_ = 0, top_bytes_ = 0, ranking_bytes_ = 0;
  bool has_best_ = false, has_top_ = false;
  uint64_t runs_ = 0;
  int max_width_ = 0, max_tokens_ = 0, max_outputs_ = 0;
  uint8_t* act_[N_ACTS] = {};
  size_t act_bytes_[N_ACTS] = {};
  Lane* lanes_ = nullptr;
  // Layout of a lane's scratch; kernels have theirs at the start.
  size_t scratch_bytes_ = 0, vectors_at_ = 0, private_at_ = 0, glu_at_ = 0, choice_at_ = 0, result_at_ = 0;
  Job* jobs_ = nullptr;
  int n_jobs_ = 0;
  int max_group_ = 1, max_head_dim_ = 16, max_heads_width_ = 0;
};

}  // namespace er

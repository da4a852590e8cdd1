// program.cpp: building a program, sizing its buffers for a batch, checking the batch, and the walk through the phases.
#include "program.h"
#include <cstdlib>
#include <cstring>

namespace er {

template <class T> static T* copy_of(const T* src, int n) {
  T* p = static_cast<T*>(calloc(n ? n : 1, sizeof(T)));
  if (p && n) memcpy(p, src, sizeof(T) * n);
  return p;
}

Program* Program::create(const Isa* isa, Pool* pool, const Instr* code, int n_code, const int32_t* widths, int n_buffers, Kv* kv,
                         int logits_buffer) {
  Program* p = make<Program>();
  if (!p) return nullptr;
  p->isa_ = isa;
  p->pool_ = pool;
  p->kv_ = kv;
  p->logits_ = logits_buffer;
  p->n_code_ = n_code;
  p->n_buffers_ = n_buffers;
  p->code_ = copy_of(code, n_code);
  p->widths_ = copy_of(widths, n_buffers);
  p->ld_ = static_cast<int64_t*>(calloc(n_buffers, sizeof(int64_t)));
  p->buffers_ = static_cast<float**>(calloc(n_buffers, sizeof(float*)));
  p->buffer_bytes_ = static_cast<size_t*>(calloc(n_buffers, sizeof(size_t)));
  p->lanes_ = static_cast<Lane*>(alloc_pages(sizeof(Lane) * pool->n_threads()));
  // A job for every thread that may be late, for the newest, and for the next.
  p->n_jobs_ = pool->n_threads() + 2;
  p->jobs_ = static_cast<Job*>(calloc(p->n_jobs_, sizeof(Job)));
  if (!p->code_ || !p->widths_ || !p->ld_ || !p->buffers_ || !p->buffer_bytes_ || !p->lanes_ || !p->jobs_) {
    destroy(p);
    return nullptr;
  }
  for (int i = 0; i < p->n_jobs_; i++) (::new (p->jobs_ + i) Job())->program = p;
  for (int i = 0; i < n_buffers; i++) {
    p->ld_[i] = (widths[i] + 15) / 16 * 16;  // the last tile of a matrix may write past its rows
    if (i != logits_buffer && widths[i] > p->max_width_) p->max_width_ = widths[i];
  }
  for (int i = 0; i < n_code; i++)
    if (code[i].op == OP_ATTENTION) {
      const int group = code[i].n_heads / code[i].n_kv;
      if (group > p->max_group_) p->max_group_ = group;
      if (code[i].head_dim > p->max_head_dim_) p->max_head_dim_ = code[i].head_dim;
      const int width = code[i].head_dim * code[i].n_heads;
      if (width > p->max_heads_width_) p->max_heads_width_ = width;
    }
  return p;
}

Program::~Program() {
  pool_->relay().quiesce();
  for (int i = 0; i < n_buffers_ && buffers_; i++) free_pages(buffers_[i], buffer_bytes_[i]);
  for (int i = 0; i < N_ACTS; i++) free_pages(act_[i], act_bytes_[i]);
  free_pages(parts_, parts_bytes_);
  for (int i = 0; i < pool_->n_threads() && lanes_; i++) free_pages(lanes_[i].scratch, scratch_bytes_);
  for (int i = 0; i < n_jobs_ && jobs_; i++) jobs_[i].~Job();
  free_pages(lanes_, sizeof(Lane) * pool_->n_threads());
  free_pages(tops_, tops_bytes_);
  free_pages(best_, best_bytes_);
  free_pages(top_, top_bytes_);
  free_pages(ranking_, ranking_bytes_);
  free(code_); free(widths_); free(ld_); free(buffers_); free(buffer_bytes_); free(jobs_);
}

bool Program::grow(void** p, size_t* have, size_t need) {
  if (need <= *have) return true;
  free_pages(*p, *have);
  *have = 0;
  *p = alloc_pages(need);
  if (!*p) return false;
  *have = need;
  return true;
}

// Grows only: what is too small now was read by late threads of the steps before.
bool Program::reserve(int n_tokens, int n_outputs) {
  if (n_tokens <= max_tokens_ && n_outputs <= max_outputs_) return true;
  pool_->relay().quiesce();
  const size_t tokens = n_tokens > max_tokens_ ? (n_tokens > FEW ? n_tokens : FEW) : max_tokens_;
  // Room for FEW at least, also in a step that wants none: kernels are not asked for the size of nothing.
  const size_t outputs = n_outputs > max_outputs_ || !max_outputs_ ? (n_outputs > FEW ? n_outputs : FEW) : max_outputs_;
  max_tokens_ = max_outputs_ = 0;  // should memory run out half way
  for (int i = 0; i < n_buffers_; i++) {
    const size_t rows = i == logits_ ? outputs : tokens;
    if (!grow((void**)&buffers_[i], &buffer_bytes_[i], rows * ld_[i] * sizeof(float) + 64)) return false;
  }
  if (!reserve_scratch(int(tokens), int(outputs))) return false;
  max_tokens_ = int(tokens);
  max_outputs_ = int(outputs);
  return true;
}

bool Program::reserve_parts(int n) {
  const size_t need = size_t(n) * part_floats(max_head_dim_) * sizeof(float);
  if (need <= parts_bytes_) return true;
  pool_->relay().quiesce();
  return grow((void**)&parts_, &parts_bytes_, need * 2);
}

static size_t up(size_t bytes) { return (bytes + 127) / 64 * 64; }
static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// Sizes grow with the columns from 16 on (act_q8.h), so those of the most columns cover all.
bool Program::reserve_scratch(int n_tokens, int n_outputs) {
  size_t kernel = isa_->ops->attn_scratch(max_head_dim_), acts[N_ACTS] = {}, mine = 0, glu = 0, choice = 0;
  size_t result = max(max_width_, FEW * size_t(max_heads_width_));
  result = max(result, FEW * size_t(max_group_) * size_t(part_floats(max_head_dim_)));
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    if (in.op != OP_LINEAR && !is_moe(in)) continue;
    const int n = in.gathered ? n_outputs : n_tokens, few = INLINE_FLOATS / in.pre.width, own = is_moe(in) ? n : few > FEW ? few : FEW;
    const int tiles = is_moe(in) ? max(expert_step(in, 1), expert_step(in, n)) : chunk_tiles(in, FEW + 1);
    size_t rows = 0;
    for (int o = 0; o < in.n_outs; o++) rows = max(rows, size_t(tiles) * in.outs[o].weight->linear->tile_rows);
    kernel = max(kernel, isa_->linear.scratch_bytes(in.pre.width, n));
    size_t sum = 0;
    for (int a = 0; a < N_ACTS; a++)
      if (uses_act(in, Act(a))) {
        if (!is_moe(in)) acts[a] = max(acts[a], up(isa_->linear.act_bytes(Act(a), in.pre.width, n)));
        sum += up(isa_->linear.act_bytes(Act(a), in.pre.width, own));
      }
    mine = max(mine, sum);
    if (is_moe(in)) choice = max(choice, choice_bytes(in, n));
    else result = max(result, max(FEW * rows, computes(in.pre) ? size_t(TOGETHER) * in.pre.width : 0));
    if (in.epilogue == EPI_GLU || is_moe(in)) glu = max(glu, 2 * n * rows * sizeof(float));
  }
  for (int a = 0; a < N_ACTS; a++)
    if (!grow((void**)&act_[a], &act_bytes_[a], acts[a])) return false;
  vectors_at_ = up(kernel);
  private_at_ = vectors_at_ + up(size_t(2) * (max_width_ + 16) * sizeof(float));
  glu_at_ = private_at_ + up(mine);
  choice_at_ = glu_at_ + up(glu);
  result_at_ = choice_at_ + up(choice);
  const size_t need = result_at_ + up(result * sizeof(float));
  if (need <= scratch_bytes_) return true;
  for (int i = 0; i < pool_->n_threads(); i++) {
    free_pages(lanes_[i].scratch, scratch_bytes_);
    lanes_[i].scratch = nullptr;
  }
  scratch_bytes_ = need;
  for (int i = 0; i < pool_->n_threads(); i++)
    if (!(lanes_[i].scratch = static_cast<uint8_t*>(alloc_pages(need)))) return false;
  return true;
}

Job* Program::free_job() {
  for (int i = 0; i < n_jobs_; i++)
    if (!pool_->relay().in_use(jobs_ + i)) return jobs_ + i;
  return nullptr;  // cannot be: there are more jobs than threads
}

const char* Program::check(const BatchView& batch, const RopeTable* tables, int n_tables) const {
  if (batch.n_tokens < 1 || batch.n_rows < 1 || batch.row_start[0] != 0 || batch.row_start[batch.n_rows] != batch.n_tokens)
    return "the batch is empty or its rows do not add up";
  if (batch.n_outputs > batch.n_tokens) return "more outputs than tokens";
  if (batch.want_top < 0) return "fewer than none of the largest logits are wanted";
  for (int i = 0; i < batch.n_outputs; i++)
    if (batch.outputs[i] < 0 || batch.outputs[i] >= batch.n_tokens) return "an output index is out of range";
  for (int r = 0; r < batch.n_rows; r++) {
    const int n = batch.row_start[r + 1] - batch.row_start[r];
    if (n < 1 || batch.n_past[r] < 0) return "a row has no tokens or a negative past";
    const int last = (batch.n_past[r] + n - 1) / PAGE;
    if (last >= batch.max_pages) return "a row's block table does not cover its tokens";
    for (int p = 0; p <= last; p++) {
      const int page = batch.pages[int64_t(r) * batch.max_pages + p];
      if (page < 0 || page >= kv_->n_pages) return "a row's block table names a page outside the pool";
    }
  }
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    if (in.op == OP_EMBED)
      for (int t = 0; t < batch.n_tokens; t++)
        if (batch.tokens[t] < 0 || batch.tokens[t] >= in.outs[0].weight->n_rows) return "a token id is outside the embedding table";
    if (in.op == OP_ROPE_KV && in.rope >= 0) {
      if (in.rope >= n_tables) return "a rope table is missing";
      for (int t = 0; t < batch.n_tokens; t++)
        if (batch.positions[t] < 0 || batch.positions[t] >= tables[in.rope].n_pos) return "a position is outside the rope table";
    }
  }
  return nullptr;
}

const char* Program::run(const BatchView& batch, const RopeTable* tables, int n_tables) {
  if (const char* error = check(batch, tables, n_tables)) return error;
  const bool few = batch.n_tokens <= FEW && pool_->size() > 1;
  if (!few) pool_->relay().quiesce();  // phases with barriers write what late threads write and read
  Job* job = free_job();
  if (!job || !reserve(batch.n_tokens, batch.n_outputs) || !job->take(batch, tables, n_tables)) return "out of memory";
  job->run = ++runs_;
  has_best_ = batch.want_best && batch.n_outputs > 0;
  has_top_ = batch.want_top > 0 && batch.n_outputs > 0;
  if ((has_best_ || has_top_) && !reserve_best(*job)) return "out of memory";
  for (int i = 0; i < n_code_; i++)
    if (code_[i].op == OP_ATTENTION) {
      if (!job->plan_attention(code_[i].n_heads, code_[i].n_kv, pool_->size(), few)) return "out of memory";
      break;  // every layer has the same heads
    }
  if (few) {
    if (!reserve_parts(job->n_parts) || !plan_step(*job)) return "out of memory";
    pool_->run_step(job);
  } else {
    pool_->run([](void* j, int thread) { static_cast<Job*>(j)->program->run_phases(*static_cast<Job*>(j), thread); }, job);
  }
  if (has_best_) find_best(*job);
  if (has_top_) find_top(*job);
  return nullptr;
}

}  // namespace er

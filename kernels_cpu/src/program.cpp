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
  p->scratch_ = static_cast<uint8_t**>(calloc(pool->size(), sizeof(uint8_t*)));
  if (!p->code_ || !p->widths_ || !p->ld_ || !p->buffers_ || !p->buffer_bytes_ || !p->scratch_) { destroy(p); return nullptr; }
  for (int i = 0; i < n_buffers; i++) {
    p->ld_[i] = (widths[i] + 15) / 16 * 16;  // the last tile of a matrix may write past its rows
    if (i != logits_buffer && widths[i] > p->max_width_) p->max_width_ = widths[i];
  }
  for (int i = 0; i < n_code; i++)
    if (code[i].op == OP_ATTENTION) {
      const int group = code[i].n_heads / code[i].n_kv;
      if (group > p->max_group_) p->max_group_ = group;
      if (code[i].head_dim > p->max_head_dim_) p->max_head_dim_ = code[i].head_dim;
    }
  return p;
}

Program::~Program() {
  for (int i = 0; i < n_buffers_ && buffers_; i++) free_pages(buffers_[i], buffer_bytes_[i]);
  for (int i = 0; i < N_ACTS; i++) free_pages(act_[i], act_bytes_[i]);
  for (int i = 0; i < pool_->size() && scratch_; i++) free_pages(scratch_[i], scratch_bytes_);
  free(code_); free(widths_); free(ld_); free(buffers_); free(buffer_bytes_); free(scratch_); free(items_);
}

static bool grow(void** p, size_t* have, size_t need) {
  if (need <= *have) return true;
  free_pages(*p, *have);
  *have = 0;
  *p = alloc_pages(need);
  if (!*p) return false;
  *have = need;
  return true;
}

// Few tokens: every thread prepares the input for itself, which is cheaper than another barrier.
bool Program::inline_prologue(const Instr& in) const { return count(in) == 1 || int64_t(count(in)) * in.pre.width <= 16384; }

int Program::chunk_tiles(const Instr& in) const {
  int tiles = 0;
  const int n = in.epilogue == EPI_GLU ? 1 : in.n_outs;
  for (int i = 0; i < n; i++) tiles += tile_count(in.outs[i].weight);
  const int even = tiles / (pool_->size() * 8);
  const int most = 64 / in.outs[0].weight->linear->tile_rows;
  return even < 1 ? 1 : even > most ? most : even;
}

int Program::tile_count(const Weight* w) { return int((w->n_rows + w->linear->tile_rows - 1) / w->linear->tile_rows); }

bool Program::reserve() {
  const size_t tokens = batch_.n_tokens;
  for (int i = 0; i < n_buffers_; i++) {
    const size_t rows = i == logits_ ? batch_.n_outputs : tokens;
    if (!grow((void**)&buffers_[i], &buffer_bytes_[i], rows * ld_[i] * sizeof(float) + 64)) return false;
  }
  size_t linear = 0, acts[N_ACTS] = {}, priv = 0, glu = 0;
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    if (in.op != OP_LINEAR) continue;
    const int n = count(in);
    if (n == 0) continue;
    const size_t s = isa_->linear.scratch_bytes(in.pre.width, n);
    linear = s > linear ? s : linear;
    const bool mine = inline_prologue(in);
    size_t sum = 0;
    for (int a = 0; a < N_ACTS; a++) {
      if (!uses_act(in, Act(a))) continue;
      const size_t b = (isa_->linear.act_bytes(Act(a), in.pre.width, n) + 127) / 64 * 64;
      sum += b;
      if (!mine && b > acts[a]) acts[a] = b;
    }
    if (mine && sum > priv) priv = sum;
    if (in.epilogue == EPI_GLU) {
      const size_t g = size_t(2) * n * chunk_tiles(in) * in.outs[0].weight->linear->tile_rows * sizeof(float);
      glu = g > glu ? g : glu;
    }
  }
  for (int a = 0; a < N_ACTS; a++)
    if (!grow((void**)&act_[a], &act_bytes_[a], acts[a])) return false;
  const size_t attn = isa_->ops->attn_scratch(max_head_dim_, max_group_);
  vectors_at_ = (linear + 127) / 64 * 64;
  private_at_ = vectors_at_ + (size_t(2) * (max_width_ + 16) * sizeof(float) + 127) / 64 * 64;
  glu_at_ = private_at_ + (priv + 127) / 64 * 64;
  const size_t need = glu_at_ + glu > attn ? glu_at_ + glu : attn;
  if (need + 64 > scratch_bytes_) {
    for (int i = 0; i < pool_->size(); i++) {
      free_pages(scratch_[i], scratch_bytes_);
      scratch_[i] = nullptr;
    }
    scratch_bytes_ = need + 64;
    for (int i = 0; i < pool_->size(); i++)
      if (!(scratch_[i] = static_cast<uint8_t*>(alloc_pages(scratch_bytes_)))) return false;
  }
  return true;
}

bool Program::uses_act(const Instr& in, Act act) {
  for (int i = 0; i < in.n_outs; i++)
    if (in.outs[i].weight->linear->act == act) return true;
  return false;
}

// Queries are cut so that every thread gets several items; where the cuts fall does not touch the bits.
bool Program::plan_attention(const Instr& in) {
  const int group = in.n_heads / in.n_kv;
  int64_t queries = 0;
  for (int r = 0; r < batch_.n_rows; r++) queries += int64_t(batch_.row_start[r + 1] - batch_.row_start[r]) * group;
  const int64_t want = int64_t(pool_->size()) * 4;
  int64_t per = (queries * in.n_kv + want - 1) / want;
  per = per > 32 ? 32 : per > 8 ? per / 8 * 8 : per < group && queries > group ? group : per < 1 ? 1 : per;
  n_items_ = 0;
  for (int r = 0; r < batch_.n_rows; r++) {
    const int n = (batch_.row_start[r + 1] - batch_.row_start[r]) * group;
    const int cuts = int((n + per - 1) / per);
    if (n_items_ + cuts * in.n_kv > items_cap_) {
      const int cap = (n_items_ + cuts * in.n_kv) * 2;
      Item* items = static_cast<Item*>(realloc(items_, sizeof(Item) * cap));
      if (!items) return false;
      items_ = items;
      items_cap_ = cap;
    }
    for (int h = 0; h < in.n_kv; h++)
      for (int c = 0; c < cuts; c++) {
        const int q1 = int((c + 1) * per);
        items_[n_items_++] = {r, h, int(c * per), q1 < n ? q1 : n};
      }
  }
  return true;
}

const char* Program::check(const RopeTable* tables, int n_tables) const {
  if (batch_.n_outputs > batch_.n_tokens) return "more outputs than tokens";
  for (int i = 0; i < batch_.n_outputs; i++)
    if (batch_.outputs[i] < 0 || batch_.outputs[i] >= batch_.n_tokens) return "an output index is out of range";
  for (int r = 0; r < batch_.n_rows; r++) {
    const int n = batch_.row_start[r + 1] - batch_.row_start[r];
    if (n < 1 || batch_.n_past[r] < 0) return "a row has no tokens or a negative past";
    const int last = (batch_.n_past[r] + n - 1) / PAGE;
    if (last >= batch_.max_pages) return "a row's block table does not cover its tokens";
    for (int p = 0; p <= last; p++) {
      const int page = batch_.pages[int64_t(r) * batch_.max_pages + p];
      if (page < 0 || page >= kv_->n_pages) return "a row's block table names a page outside the pool";
    }
  }
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    if (in.op == OP_EMBED)
      for (int t = 0; t < batch_.n_tokens; t++)
        if (batch_.tokens[t] < 0 || batch_.tokens[t] >= in.outs[0].weight->n_rows) return "a token id is outside the embedding table";
    if (in.op == OP_ROPE_KV && in.rope >= 0) {
      if (in.rope >= n_tables) return "a rope table is missing";
      for (int t = 0; t < batch_.n_tokens; t++)
        if (batch_.positions[t] < 0 || batch_.positions[t] >= tables[in.rope].n_pos) return "a position is outside the rope table";
    }
  }
  return nullptr;
}

const char* Program::run(const BatchView& batch, const RopeTable* tables, int n_tables) {
  batch_ = batch;
  tables_ = tables;
  if (batch.n_tokens < 1 || batch.n_rows < 1 || batch.row_start[0] != 0 || batch.row_start[batch.n_rows] != batch.n_tokens)
    return "the batch is empty or its rows do not add up";
  if (const char* error = check(tables, n_tables)) return error;
  for (int i = 0; i < n_code_; i++)
    if (code_[i].op == OP_ATTENTION) {
      if (!plan_attention(code_[i])) return "out of memory";
      break;  // every layer has the same heads
    }
  if (!reserve()) return "out of memory";
  pool_->run([](void* self, int thread) { static_cast<Program*>(self)->thread_main(thread); }, this);
  return nullptr;
}

void Program::thread_main(int thread) {
  for (int i = 0; i < n_code_; i++) {
    const Instr& in = code_[i];
    if (count(in) == 0) continue;
    switch (in.op) {
      case OP_EMBED: embed(in, thread); break;
      case OP_TOKENWISE: tokenwise(in, thread); break;
      case OP_LINEAR: linear(in, thread); break;
      case OP_ROPE_KV: rope_kv(in, thread); break;
      case OP_ATTENTION: attention(in, thread); break;
      case OP_GATHER: gather(in, thread); break;
      default: break;
    }
  }
}

}  // namespace er

// job.h: one batch on its way through a program: everything that threads read besides floats and weights. A job's memory
// is its own and stays as it is while any thread works on it, however late.
#pragma once
#include "kernels.h"
#include "relay.h"

namespace er {

class Program;
struct Instr;

struct RopeTable { const float* cs; int32_t n_pos, n_rot; };  // [n_pos][cosines | sines]

struct BatchView {
  const int32_t *tokens, *positions, *row_start, *n_past, *pages, *outputs;
  int32_t n_tokens, n_rows, n_outputs, max_pages;
  int32_t want_best, want_top;  // whether Program::best is to be known, and how many the rows of Program::top hold
};

enum { MAX_OUTS = 4 };

// How a phase without barriers is cut: `first[i]`..`first[i + 1]` are the chunks of matrix i, of `step` tiles each; for
// heads, `step` of them make a chunk. A linear's chunks beyond them store the sums of its prologue, a token each.
struct Cut {
  const Instr* in;
  int32_t step;
  bool merge;  // of attention: folds the parts that the phase before left
  int32_t first[MAX_OUTS + 1];
};

// Queries q0..q1 of a KV head over all pages they see, or (split >= 0) over one split of them, into parts from `part` on.
struct Item { int32_t row, kv_head, q0, q1, split, part; };
// Queries whose splits are folded: split s of query q lies at part + s * (q1 - q0) + q - q0.
struct Merge { int32_t row, kv_head, q0, q1, part, n_splits; };

struct Job : Step {
  Program* program = nullptr;
  uint64_t run = 0;  // number of the batch
  BatchView batch = {};
  const float** ropes = nullptr;  // of each table [n_tokens][n_rot], the rows of the batch's positions
  const RopeTable* tables = nullptr;
  Item* items = nullptr;
  Merge* merges = nullptr;
  int n_items = 0, items_cap = 0, n_merges = 0, merges_cap = 0, n_parts = 0;
  Cut* cuts = nullptr;  // [n_phases]
  int32_t planned[5] = {};  // the sizes that `cuts` fit
  int most = 0;             // chunks of a phase
  void* memory = nullptr;
  size_t bytes = 0;

  ~Job();
  // Copies the batch and the rope rows it needs. False: no memory.
  bool take(const BatchView& view, const RopeTable* tables, int n_tables);
  // Cuts the queries so that every thread gets several items; where the cuts fall does not touch the bits. With `split`,
  // rows of several splits are cut there first, so that one long row is work for all threads.
  bool plan_attention(int n_heads, int n_kv, int n_threads, bool split);
  int row_of(int t) const;
};

}  // namespace er

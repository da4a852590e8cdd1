// moe.cpp: a layer of experts as three phases. Which experts a token has follows from the router's logits, so each thread
// works that out for itself, and a phase is cut as if as many experts were chosen as there can be: the chunks of those that
// nobody chose are empty. A chunk is some tiles of one expert, for all tokens that chose it; a token's values do not depend
// on who else did, and are added by rank.
#include <cstring>
#include "program.h"

namespace er {

int Program::expert_tiles(const Instr& in) {
  const int rows = in.outs[0].weight->linear->tile_rows;
  return (in.n_rows + rows - 1) / rows;
}

// As chunk_tiles cuts a matrix, of all the rows that may be asked for.
int Program::expert_step(const Instr& in, int n) const {
  const int each = expert_tiles(in), tiles = each * most_groups(in, n);
  const int even = tiles / (pool_->size() * 8), most = 64 / in.outs[0].weight->linear->tile_rows;
  const int least = tiles / (pool_->size() * 256);
  int step = even < 1 ? 1 : even <= most ? even : least > most ? least : most;
  if (n > ONE_BY_ONE) step = (step + 1) / 2 * 2;
  return step < each ? step : each;
}

int Program::expert_chunks(const Instr& in, int n) const {
  const int step = expert_step(in, n);
  return most_groups(in, n) * ((expert_tiles(in) + step - 1) / step);
}

static size_t line(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t Program::choice_bytes(const Instr& in, int n) const {
  return 3 * line(size_t(n) * in.n_used * 4) + 3 * line(size_t(in.n_experts + 16) * 4);
}

// The k largest of n, of equals the first; distinct and in range whatever the values are.
static void largest(const float* x, int n, int k, int32_t* best) {
  int have = 0;
  for (int e = 0; e < n; e++) {
    if (have == k && !(x[e] > x[best[k - 1]])) continue;
    int i = have < k ? have++ : k - 1;
    for (; i > 0 && x[e] > x[best[i - 1]]; i--) best[i] = best[i - 1];
    best[i] = e;
  }
}

// Kept from a layer's first phase to its last. A thread that is late may find garbage, in range; what it makes of that is
// not committed, and once the logits are gone so is the layer.
const Choice& Program::choose(const Instr& in, const Job& job, Lane& lane) const {
  Choice& c = lane.choice;
  if (c.run == job.run && c.moe == in.moe) return c;
  const FloatOps& f = *isa_->ops;
  const int n = count(in, job), k = in.n_used, E = in.n_experts;
  uint8_t* at = lane.scratch + choice_at_;
  const auto take = [&](size_t items) {
    uint8_t* p = at;
    at += line(items * 4);
    return p;
  };
  c.expert = reinterpret_cast<int32_t*>(take(size_t(n) * k));
  c.slot = reinterpret_cast<int32_t*>(take(size_t(n) * k));
  c.share = reinterpret_cast<float*>(take(size_t(n) * k));
  c.group = reinterpret_cast<int32_t*>(take(E + 16));
  c.first = reinterpret_cast<int32_t*>(take(E + 16));
  c.logits = reinterpret_cast<float*>(take(E + 16));
  memset(c.first, 0, sizeof(int32_t) * (E + 1));
  for (int t = 0; t < n; t++) {
    int32_t* expert = c.expert + t * k;
    float* share = c.share + t * k;
    memcpy(c.logits, token(in.router, t), sizeof(float) * E);
    largest(c.logits, E, k, expert);
    if (in.gating == GATE_ALL) f.softmax(c.logits, E);
    for (int r = 0; r < k; r++) {
      share[r] = c.logits[expert[r]];
      c.first[expert[r] + 1]++;
    }
    if (in.gating == GATE_CHOSEN) f.softmax(share, k);
    float sum = 0;
    for (int r = 0; r < k; r++) sum += share[r];
    for (int r = 0; r < k; r++) share[r] = (in.normalize ? share[r] / sum : share[r]) * in.share_scale;
  }
  for (int e = 0; e < E; e++) c.first[e + 1] += c.first[e];
  for (int i = 0; i < n * k; i++) c.slot[c.first[c.expert[i]]++] = i;  // leaves first[e] where e's slots end
  c.n_groups = 0;
  for (int e = 0, begin = 0; e < E; e++) {
    const int end = c.first[e];
    if (end == begin) continue;
    c.group[c.n_groups] = e;
    c.first[c.n_groups++] = begin;
    begin = end;
  }
  c.first[c.n_groups] = n * k;
  c.run = job.run;
  c.moe = in.moe;
  return c;
}

// The group whose place in the cut is `place` of `places`, -1 if none is: the groups are spread evenly, so that each
// thread's share of the chunks is a like part of the work.
static int group_at(int place, int places, int groups) {
  const int g = (place * groups + places - 1) / places;
  return g < groups && g * places / groups == place ? g : -1;
}

// The input of a group's tokens, quantized together as the kernels want it.
void Program::prepare_group(const Instr& in, const Choice& c, int g, uint64_t number, uint8_t** acts, Lane& lane) {
  const int32_t* slots = c.slot + c.first[g];
  const int m = c.first[g + 1] - c.first[g];
  private_acts(in, m, lane, acts);
  const int single = in.op == OP_MOE_UP && m == 1 ? slots[0] / in.n_used : -1;
  const bool ready = lane.prepared == number && lane.group >= 0 && (lane.group == g || (single >= 0 && lane.single == single));
  lane.group = g;
  if (ready) return;
  for (int j = 0; j < m; j++) {
    const int t = slots[j] / in.n_used, rank = slots[j] % in.n_used;
    const float* x = token(in.pre.a, t) + rank * in.pre.width;
    if (in.op == OP_MOE_UP) {
      prologue(in.pre, t, lane);
      x = lane.value;
    }
    for (int a = 0; a < N_ACTS; a++)
      if (uses_act(in, Act(a))) isa_->linear.quantize(Act(a), x, 0, in.pre.width, m, j, j + 1, acts[a]);
  }
  index_acts(in, m, acts, lane);
  lane.prepared = number;
  lane.single = single;
}

// Leaves [tokens of the group][rows of the tiles] in the lane's units; false: the chunk is empty.
bool Program::compute_experts(const Instr& in, const Job& job, uint64_t number, int chunk, Lane& lane) {
  const Choice& c = choose(in, job, lane);
  const int n = count(in, job), each = expert_tiles(in), step = expert_step(in, n), parts = (each + step - 1) / step;
  const int g = group_at(chunk / parts, most_groups(in, n), c.n_groups);
  if (g < 0) return false;
  if (lane.prepared != number) lane.group = -1;
  uint8_t* acts[N_ACTS];
  prepare_group(in, c, g, number, acts, lane);
  const int m = c.first[g + 1] - c.first[g], e = c.group[g], tile = chunk % parts * step;
  const int tiles = each - tile < step ? each - tile : step, rows = tiles * in.outs[0].weight->linear->tile_rows;
  const int r0 = tile * in.outs[0].weight->linear->tile_rows, real = in.n_rows - r0 < rows ? in.n_rows - r0 : rows;
  float* out = units(lane);
  for (int i = 0; i < in.n_outs; i++, out += int64_t(m) * rows) {
    run_tiles({in.outs[i].weight, nullptr, 0, 0}, m, e * each + tile, tiles, acts, out, rows, lane);
    const float* bias = in.outs[i].bias;
    for (int j = 0; bias && j < m; j++) isa_->ops->add(out + j * rows, bias + int64_t(e) * in.n_rows + r0, real, out + j * rows);
  }
  if (in.op == OP_MOE_UP)
    for (float *gate = units(lane), *end = gate + int64_t(m) * rows; gate < end; gate += rows)
      isa_->ops->glu(gate, gate + int64_t(m) * rows, rows, in.glu, gate);
  return true;
}

void Program::commit_experts(const Instr& in, const Job& job, int chunk, const Lane& lane) {
  const Choice& c = lane.choice;
  const int n = count(in, job), each = expert_tiles(in), step = expert_step(in, n), parts = (each + step - 1) / step;
  const int g = group_at(chunk / parts, most_groups(in, n), c.n_groups), tile_rows = in.outs[0].weight->linear->tile_rows;
  if (g < 0) return;
  const int tile = chunk % parts * step, rows = (each - tile < step ? each - tile : step) * tile_rows, r0 = tile * tile_rows;
  const int real = in.n_rows - r0 < rows ? in.n_rows - r0 : rows;
  const float* from = units(lane);
  for (int i = c.first[g]; i < c.first[g + 1]; i++, from += rows) {
    const int slot = c.slot[i];
    memcpy(token(in.out, slot / in.n_used) + int64_t(slot % in.n_used) * in.n_rows + r0, from, sizeof(float) * size_t(real));
  }
}

void Program::sum_experts(const Instr& in, const Job& job, int t, float* out, Lane& lane) const {
  const FloatOps& f = *isa_->ops;
  const Choice& c = choose(in, job, lane);
  const float* share = c.share + int64_t(t) * in.n_used;
  const float* x = token(in.pre.a, t);
  const int width = in.pre.width;
  f.scale(x, share[0], width, out);
  for (int r = 1; r < in.n_used; r++) f.add_scaled(x + int64_t(r) * width, share[r], width, out);
  if (in.residual >= 0) f.add(out, token(in.residual, t), width, out);
}

}  // namespace er

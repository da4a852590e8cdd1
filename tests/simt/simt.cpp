// simt.cpp: the engine of simt.h. One launch at a time; threads run in one of three orders.
#include "simt.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "fiber.h"

namespace simt {
namespace {

enum class State : uint8_t { READY, AT_BARRIER, AT_WARP, DONE };
enum Order { ASCENDING, DESCENDING, RANDOM };

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
  int group;
};

struct Fiber {
  Stack stack;
  Dim tid;
  unsigned warp = 0, lane = 0;
  State state = State::READY;
  uint32_t mask = 0;  // of the warp operation it waits at
  int kind = 0;
  void* arg = nullptr;
  Where where;
  char in = 0, out = 0;  // what the thread sanitizer orders warp operations by
  std::vector<Copy> copies;
  int group = 0;
};

struct Kernel {
  const char* name;
  void (*body)(const void*);
  const unsigned* sizes;
  int n_args;
};

constexpr unsigned CANARY_BYTES = 256;  // behind dynamic shared memory
constexpr unsigned char CANARY = 0xC5;

struct Engine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<uint32_t> ready, alive, rank;  // per warp: lanes that can run, that have not ended; warps as RANDOM picks them
  Fiber host;
  Fiber* now = nullptr;
  std::string error;
  unsigned n = 0, n_warps = 0, n_done = 0, n_waiting = 0, last_warp = 0, style = 0;
  Where barrier_at;
  unsigned phase = 0;
  char barrier_sync[2], block_sync[2];
  void (*body)(const void*) = nullptr;
  const void* args = nullptr;
  Order order = ASCENDING;
  bool poison = true;
  uint64_t seed = 1, rng = 1, switches = 0;

  uint64_t random() {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    return rng ^= rng << 17;
  }
};
Engine E;

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> table;
  return table;
}

__attribute__((noinline)) void go_to(Fiber* to) {
  Fiber* from = E.now;
  if (from == to) return;
  ++E.switches;
  E.now = to;
  thread_idx = to->tid;
  lane = to->lane;
  change(&from->stack, &to->stack);
}

std::string waiting_threads() {
  std::string text;
  int shown = 0;
  const Fiber* last = nullptr;
  for (unsigned i = 0; i < E.n && shown < 6; ++i) {
    const Fiber& f = *E.fibers[i];
    if (f.state != State::AT_BARRIER && f.state != State::AT_WARP) continue;
    if (last && last->state == f.state && last->where.line() == f.where.line()) continue;
    char line[256];
    const char* what = f.state == State::AT_BARRIER ? "block barrier" : "warp operation";
    snprintf(line, sizeof line, "\n  thread (%u,%u,%u) waits at a %s, %s:%u, mask %08x", f.tid.x, f.tid.y, f.tid.z, what,
             f.where.file_name(), unsigned(f.where.line()), f.mask);
    text += line;
    last = &f;
    ++shown;
  }
  return text;
}

// The next thread to run, or null where none can.
Fiber* pick() {
  if (E.order == RANDOM) {
    // Even picks keep warps nearly in step; ranks that change now and then let one run far ahead, which finds overwriting too early.
    if (E.style == 0 || (E.random() & 63) == 0)
      for (unsigned i = E.n_warps; i > 1; --i) std::swap(E.rank[i - 1], E.rank[E.random() % i]);
    for (unsigned i = 0; i < E.n_warps; ++i) {
      const unsigned w = E.rank[i];
      if (!E.ready[w]) continue;
      const int r = int(E.random() & 31);
      return E.fibers[w * 32 + ((unsigned(std::countr_zero(std::rotr(E.ready[w], r))) + unsigned(r)) & 31)].get();
    }
    return nullptr;
  }
  for (unsigned i = 0; i < E.n_warps; ++i) {
    const bool down = E.order == DESCENDING;
    const unsigned w = (E.last_warp + (down ? E.n_warps - i : i)) % E.n_warps;
    if (!E.ready[w]) continue;
    if (down) E.last_warp = w;
    return E.fibers[w * 32 + unsigned(down ? 31 - std::countl_zero(E.ready[w]) : std::countr_zero(E.ready[w]))].get();
  }
  return nullptr;
}

void wake(Fiber* f) {
  f->state = State::READY;
  E.ready[f->warp] |= 1u << f->lane;
}

// The running thread cannot go on: another does.
void give_way() {
  E.ready[E.now->warp] &= ~(1u << E.now->lane);
  if (Fiber* next = pick()) return go_to(next);
  if (E.n_done == E.n) return go_to(&E.host);
  fail("deadlock: %u of %u threads ended, the others wait for threads that never come", E.n_done, E.n);
}

void open_barrier() {
  E.n_waiting = 0;
  E.phase ^= 1;
  for (unsigned i = 0; i < E.n; ++i)
    if (E.fibers[i]->state == State::AT_BARRIER) wake(E.fibers[i].get());
  E.last_warp = 0;
}

Fiber* lane_of(unsigned warp, uint32_t mask) { return E.fibers[warp * 32 + unsigned(std::countr_zero(mask))].get(); }

void fiber_main() {
  arrived(&E.now->stack, &E.host.stack);
  for (;;) {
    acquire(&E.block_sync[0]);
    E.body(E.args);
    Fiber* f = E.now;
    f->copies.clear();
    f->group = 0;
    release(&E.block_sync[1]);
    f->state = State::DONE;
    ++E.n_done;
    E.alive[f->warp] &= ~(1u << f->lane);
    if (E.n_waiting && E.n_waiting + E.n_done == E.n) open_barrier();
    give_way();
  }
}

}  // namespace

Dim thread_idx, block_idx, block_dim, grid_dim;
unsigned lane;
unsigned char* dynamic_shared = nullptr;

void fail(const char* format, ...) {
  char text[512], block[96];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  snprintf(block, sizeof block, " [block (%u,%u,%u)]", block_idx.x, block_idx.y, block_idx.z);
  E.error = std::string(text) + block + waiting_threads();
  release(&E.block_sync[1]);
  go_to(&E.host);  // the launch is given up, the next one starts its fibers anew
  abort();
}

unsigned warp_mask() {
  const bool is_short = E.now->warp + 1 == E.n_warps && E.n % 32;
  return is_short ? (1u << E.n % 32) - 1 : ~0u;
}

void barrier(Where where) {
  Fiber* f = E.now;
  f->state = State::AT_BARRIER;
  f->where = where;
  f->mask = 0;
  if (E.n_waiting == 0) E.barrier_at = where;
  if (E.barrier_at.line() != where.line() || E.barrier_at.column() != where.column())
    fail("threads wait at different barriers, lines %u and %u", unsigned(E.barrier_at.line()), unsigned(where.line()));
  char* sync = &E.barrier_sync[E.phase];
  release(sync);
  if (++E.n_waiting + E.n_done == E.n) {
    open_barrier();
    if (E.order != ASCENDING) go_to(pick());
  } else {
    give_way();
  }
  acquire(sync);
}

void collective(uint32_t mask, int kind, void* arg, Resolve resolve, Where where) {
  Fiber* f = E.now;
  const unsigned line = unsigned(where.line());
  if (!(mask >> f->lane & 1))
    fail("thread (%u,%u,%u) is at the warp operation of line %u with a mask %08x without its own lane", f->tid.x, f->tid.y,
         f->tid.z, line, mask);
  if (const uint32_t gone = mask & ~E.alive[f->warp])
    fail("the warp operation of line %u: mask %08x names lanes %08x that ended or do not exist", line, mask, gone);
  f->state = State::AT_WARP;
  f->mask = mask;
  f->kind = kind;
  f->arg = arg;
  f->where = where;
  release(&f->in);
  for (uint32_t m = mask; m; m &= m - 1) {
    const Fiber* g = lane_of(f->warp, m);
    if (g->state == State::AT_WARP && g->mask == mask && g->kind == kind) continue;
    give_way();  // that lane is not here yet; if it never comes, the deadlock names both
    acquire(&f->out);
    return;
  }
  void* args[32] = {};
  for (uint32_t m = mask; m; m &= m - 1) {
    Fiber* g = lane_of(f->warp, m);
    args[g->lane] = g->arg;
    acquire(&g->in);
  }
  resolve(args, mask);
  for (uint32_t m = mask; m; m &= m - 1) {
    Fiber* g = lane_of(f->warp, m);
    release(&g->out);
    wake(g);
  }
  if (E.order != ASCENDING || f->lane) go_to(pick());
  acquire(&f->out);
}

void copy_async(void* to, const void* from, unsigned bytes) { E.now->copies.push_back({to, from, bytes, E.now->group}); }
void copy_commit() { ++E.now->group; }
void copy_wait(int groups_left) {
  auto& copies = E.now->copies;
  size_t kept = 0;
  for (const Copy& c : copies) {
    if (c.group < E.now->group - groups_left)
      memcpy(c.to, c.from, c.bytes);
    else
      copies[kept++] = c;
  }
  copies.resize(kept);
}

int add_kernel(const char* name, void (*body)(const void*), const unsigned* sizes, int n) {
  kernels().push_back({name, body, sizes, n});
  return 0;
}

// Static shared arrays lie in one section, so that all of them can be poisoned; the linker knows its ends.
extern "C" unsigned char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));

namespace {

// Shared memory as a block finds it: all ones, which is NaN as float32, float16 and bfloat16.
void poison_shared(unsigned char* dynamic, size_t bytes) {
  if (dynamic) memset(dynamic, 0xFF, bytes);
  if (__start_simt_shared) memset(__start_simt_shared, 0xFF, size_t(__stop_simt_shared - __start_simt_shared));
}

void run_block(unsigned char* dynamic, size_t bytes) {
  if (E.poison) poison_shared(dynamic, bytes);
  E.n_done = E.n_waiting = E.last_warp = 0;
  if (E.order == RANDOM) {
    E.style = E.random() & 3;
    for (unsigned i = E.n_warps; i > 1; --i) std::swap(E.rank[i - 1], E.rank[E.random() % i]);
  }
  for (unsigned i = 0; i < E.n; ++i) wake(E.fibers[i].get());
  E.alive = E.ready;
  release(&E.block_sync[0]);
  E.now = &E.host;
  go_to(pick());
  E.now = nullptr;
  acquire(&E.block_sync[1]);
}

void prepare_fibers() {
  E.n = block_dim.x * block_dim.y * block_dim.z;
  E.n_warps = (E.n + 31) / 32;
  E.ready.assign(E.n_warps, 0);
  E.rank.resize(E.n_warps);
  std::iota(E.rank.begin(), E.rank.end(), 0u);
  while (E.fibers.size() < E.n) E.fibers.push_back(std::make_unique<Fiber>());
#ifdef SIMT_KERNELS_TSAN
  E.host.stack.tsan = __tsan_get_current_fiber();
#endif
#ifdef SIMT_KERNELS_ASAN
  E.host.stack.bottom = nullptr;
#endif
  for (unsigned i = 0; i < E.n; ++i) {
    Fiber* f = E.fibers[i].get();
    f->stack.start(fiber_main);
    f->warp = i / 32, f->lane = i % 32, f->group = 0;
    f->copies.clear();
    f->tid = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
  }
}

const char* launch(Dim grid, Dim block, size_t shared_bytes, const Kernel& kernel, const void* args) {
  grid_dim = grid, block_dim = block;
  E.error.clear();
  E.body = kernel.body, E.args = args;
  E.rng = E.seed * 0x9E3779B97F4A7C15ull | 1;
  const uint64_t threads = uint64_t(block.x) * block.y * block.z, blocks = uint64_t(grid.x) * grid.y * grid.z;
  if (!threads || threads > 1024 || block.z > 64) return "a block of 1 to 1024 threads is needed, z up to 64";
  if (!blocks || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return "the grid is empty or too large";
  if (shared_bytes > 49152) return "more than 48 KiB of dynamic shared memory";
  prepare_fibers();
  const size_t padded = (shared_bytes + 127) / 128 * 128 + CANARY_BYTES;
  unsigned char* dynamic = shared_bytes ? static_cast<unsigned char*>(aligned_alloc(128, padded)) : nullptr;
  if (dynamic) memset(dynamic + shared_bytes, CANARY, padded - shared_bytes);
#ifdef SIMT_KERNELS_ASAN
  if (dynamic) __asan_poison_memory_region(dynamic + shared_bytes, padded - shared_bytes);
#endif
  dynamic_shared = dynamic;
  uint64_t step = 1, first = 0;
  if (E.order == DESCENDING) step = blocks - 1, first = blocks - 1;
  if (E.order == RANDOM) {
    first = E.random() % blocks;
    do step = E.random() % blocks | 1;
    while (std::gcd(step, blocks) != 1);
  }
  for (uint64_t i = 0, b = first; i < blocks && E.error.empty(); ++i, b = (b + step) % blocks) {
    block_idx = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / (uint64_t(grid.x) * grid.y))};
    run_block(dynamic, shared_bytes);
  }
#ifdef SIMT_KERNELS_ASAN
  if (dynamic) __asan_unpoison_memory_region(dynamic + shared_bytes, padded - shared_bytes);
#endif
  for (size_t i = shared_bytes; dynamic && i < padded && E.error.empty(); ++i)
    if (dynamic[i] != CANARY) E.error = "a block wrote past its dynamic shared memory";
  free(dynamic);
  return E.error.empty() ? nullptr : E.error.c_str();
}

}  // namespace
}  // namespace simt

// ---- what ctypes calls
#define SIMT_API extern "C" __attribute__((visibility("default")))

SIMT_API int simt_find(const char* name) {
  const auto& table = simt::kernels();
  for (size_t i = 0; i < table.size(); ++i)
    if (!strcmp(table[i].name, name)) return int(i);
  return -1;
}
SIMT_API int simt_n_args(int kernel) { return simt::kernels()[size_t(kernel)].n_args; }
SIMT_API unsigned simt_arg_size(int kernel, int i) { return simt::kernels()[size_t(kernel)].sizes[i]; }
SIMT_API void simt_options(int order, uint64_t seed, int poison) {
  simt::E.order = simt::Order(order), simt::E.seed = seed, simt::E.poison = poison != 0;
}
SIMT_API uint64_t simt_switches() { return simt::E.switches; }
// args: pointers to the arguments. Returns null, or what went wrong.
SIMT_API const char* simt_launch(int kernel, const unsigned* grid, const unsigned* block, uint64_t shared_bytes, void** args) {
  return simt::launch({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes,
                      simt::kernels()[size_t(kernel)], args);
}

// relay_stress.cpp: the claim and commit protocol of relay.h under threads that fall asleep at the worst moments.
//
// A chunk of phase p is a hash of all values of phase p - 1, so any lost, doubled or early commit changes what follows. Each
// phase has memory of its own and a step's memory is reused only when no thread is in it: late threads read nothing that
// anybody writes, and the thread sanitizer must have nothing to say.
//
//   c++ -std=c++17 -O1 -g -fsanitize=thread -pthread -I kernels_cpu/src -o relay_stress tests/native/relay_stress.cpp
//       kernels_cpu/src/{relay,pool,os}.cpp
//
// Also the order in which a thread takes chunks while its neighbours are away.
//
// Run: ./relay_stress THREADS STEPS. Prints "ok" and how many chunks were computed in vain.
#include <cstdio>
#include <cstdlib>
#include "pool.h"

using namespace er;

enum { PHASES = 12, MOST = 24 };

struct Walk : Step {
  int32_t sizes[PHASES], waits[PHASES];
  uint64_t seed = 0;
  uint64_t cells[PHASES][MOST];
  uint64_t* mine = nullptr;  // [threads], a cache line each
  std::atomic<int64_t> *computed = nullptr, *committed = nullptr;
};

static uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

static uint64_t value(const Walk& w, int phase, int chunk) {
  uint64_t h = mix(w.seed + uint64_t(phase) * 1000 + uint64_t(chunk));
  if (phase)
    for (int c = 0; c < w.sizes[phase - 1]; c++) h = mix(h ^ w.cells[phase - 1][c]);
  return h;
}

// One chunk in 64 sleeps a millisecond in its middle, one commit in 512 a tenth of one. By thread, so that who does a
// sleeper's chunk again does not sleep too.
static void doze(uint64_t number, int chunk, int thread, int one_in, int64_t ns) {
  if (mix(number * 977 + uint64_t(chunk) * 31 + uint64_t(thread)) % uint64_t(one_in) == 0) nap(ns);
}

static void compute(const Step& s, int phase, uint64_t number, int chunk, int thread) {
  const Walk& w = static_cast<const Walk&>(s);
  w.computed->fetch_add(1, std::memory_order_relaxed);
  const uint64_t v = value(w, phase, chunk);
  doze(number, chunk, thread, 64, 1000 * 1000);
  w.mine[thread * 8] = v;
}

static void commit(const Step& s, int phase, int chunk, int thread) {
  Walk& w = const_cast<Walk&>(static_cast<const Walk&>(s));
  doze(w.seed + uint64_t(phase), chunk, thread, 512, 100 * 1000);
  w.committed->fetch_add(1, std::memory_order_relaxed);
  w.cells[phase][chunk] = w.mine[thread * 8];
}

static int run_steps(Pool& pool, int steps) {
  const int slots = pool.n_threads() + 2;
  Walk* walks = new Walk[slots];
  std::atomic<int64_t> computed{0}, committed{0};
  uint64_t* mine = new uint64_t[pool.n_threads() * 8]();
  int64_t chunks = 0;
  for (int i = 0; i < steps; i++) {
    int slot = 0;
    while (slot < slots && pool.relay().in_use(walks + slot)) slot++;
    if (slot == slots) { std::printf("no free slot\n"); return 1; }
    Walk& w = walks[slot];
    w.seed = mix(uint64_t(i));
    w.n_phases = 1 + i % PHASES;
    for (int p = 0; p < w.n_phases; p++) {
      w.sizes[p] = int32_t(1 + mix(w.seed + uint64_t(p)) % MOST);
      w.waits[p] = 20 * 1000;
      chunks += w.sizes[p];
    }
    w.chunks = w.sizes;
    w.patience = w.waits;
    w.compute = compute;
    w.commit = commit;
    w.mine = mine;
    w.computed = &computed;
    w.committed = &committed;
    if (!pool.relay().reserve(MOST)) { std::printf("no memory\n"); return 1; }
    pool.run_step(&w);
    for (int p = 0; p < w.n_phases; p++)
      for (int c = 0; c < w.sizes[p]; c++)
        if (w.cells[p][c] != value(w, p, c)) {
          std::printf("step %d phase %d chunk %d: wrong value\n", i, p, c);
          return 1;
        }
    if (i % 16 == 0) pool.relay().quiesce();  // as before a long batch
    if (i % 32 == 0) nap(300 * 1000);         // long enough for the threads to fall asleep
    if (i % 64 == 0) {                        // a job with barriers in between
      std::atomic<int> joined{0};
      pool.run([](void* n, int) { static_cast<std::atomic<int>*>(n)->fetch_add(1); }, &joined);
      if (joined.load() != pool.size()) { std::printf("%d threads joined a job\n", joined.load()); return 1; }
    }
  }
  pool.relay().quiesce();
  const int64_t vain = computed.load() - committed.load();
  if (committed.load() != chunks) { std::printf("%lld commits of %lld chunks\n", (long long)committed.load(), (long long)chunks); return 1; }
  if (pool.size() > 1 && vain == 0) { std::printf("nobody ever helped\n"); return 1; }
  std::printf("ok %d threads, %lld chunks, %lld in vain\n", pool.size(), (long long)chunks, (long long)vain);
  delete[] walks;
  delete[] mine;
  return 0;
}

// A thread whose neighbours are all away takes every chunk once: its own share in order, then of each other share, in order
// too, first the part that is its own of several thieves.
static bool alone_in_order(int shares, int share, int chunks) {
  static int order[MOST], taken;
  Relay relay;
  if (!relay.open(shares, shares) || !relay.reserve(MOST)) return false;
  const int32_t sizes[] = {chunks}, waits[] = {20 * 1000};
  Step step;
  step.n_phases = 1;
  step.chunks = sizes;
  step.patience = waits;
  step.compute = [](const Step&, int, uint64_t, int chunk, int) { order[taken++ % MOST] = chunk; };
  step.commit = [](const Step&, int, int, int) {};
  taken = 0;
  relay.publish(&step);
  relay.enter(share);
  relay.work(step, share, share);
  relay.leave(share);
  relay.close();
  bool ok = taken == chunks;
  int at = 0;
  for (int i = 0; ok && i < shares; i++) {
    const int owner = (share + i) % shares, begin = chunks * owner / shares, end = chunks * (owner + 1) / shares;
    const int from = begin + (i ? (end - begin) * (i - 1) / (shares - 1) : 0);
    for (int c = from; c < end; c++) ok &= order[at++] == c;
    uint64_t rest = 0;
    for (int c = begin; c < from; c++) rest |= uint64_t(1) << order[at++];
    ok &= rest == (uint64_t(1) << from) - (uint64_t(1) << begin);
  }
  return ok;
}

int main(int argc, char** argv) {
  for (int shares = 1; shares <= 5; shares++)
    for (int i = 0; i < shares * MOST; i++)
      if (!alone_in_order(shares, i % shares, 1 + i / shares)) {
        std::printf("%d chunks in %d shares: wrong order from share %d\n", 1 + i / shares, shares, i % shares);
        return 1;
      }
  Pool* pool = Pool::create(argc > 1 ? std::atoi(argv[1]) : 3);
  if (!pool) { std::printf("no threads\n"); return 1; }
  const int failed = run_steps(*pool, argc > 2 ? std::atoi(argv[2]) : 200);
  Pool::free(pool);
  return failed;
}

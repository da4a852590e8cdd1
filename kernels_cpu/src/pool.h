// pool.h: a persistent team of threads. Two kinds of work: jobs, which every thread joins and whose phases end with a
// barrier (long prefills, packing), and steps without barriers (relay.h). In both a thread takes chunks of its own share
// first, then steals from the far end of the others' shares. Waiting spins briefly, then sleeps.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include "os.h"
#include "relay.h"

namespace er {

// A number that threads wait to see changed.
struct alignas(64) Event {
  std::atomic<uint32_t> value{0};
  alignas(64) std::atomic<uint32_t> sleepers{0};
  void wait_past(uint32_t seen, int64_t spin_ns);
  void bump();
};

class Pool {
 public:
  // Null if threads cannot be started. n_threads counts the caller, which works as thread 0.
  static Pool* create(int n_threads);
  static void free(Pool* pool);
  int size() const { return n_; }
  int n_threads() const { return n_ + 1; }  // with the stand-in: numbers a step's chunks are computed under

  // Run job(ctx, thread) on every thread and return when all are done. One caller at a time.
  void run(void (*job)(void*, int), void* ctx);

  // Walk through a step with all threads that have time. Returns when its work is done; others may still be in it.
  //
  // The caller alone can go on with the next step, so where cores are scarce it must not be waiting for one: as soon as it
  // sees that it lost its core within a step, it leaves its share to a stand-in for a while and sleeps. A thread that has
  // slept gets a core at once.
  void run_step(Step* step);
  Relay& relay() { return relay_; }

  // Called by all threads inside a job, with the same count: ends a phase and deals `chunks` out for the next one.
  void next_phase(int chunks);
  // A chunk of the current phase, or -1 when none is left.
  int claim(int thread);

 private:
  struct alignas(64) Share { std::atomic<uint64_t> range{0}; };  // low 32 bits: first free chunk, high: past the last
  explicit Pool(int n) : n_(n) {}
  void stop();
  static void* worker(void* arg);
  void deal(int chunks);
  void serve(int thread);

  int n_;
  int started_ = 0;
  bool pinned_ = false;
  Share* shares_ = nullptr;
  void* threads_ = nullptr;
  void (*job_)(void*, int) = nullptr;
  void* ctx_ = nullptr;
  std::atomic<uint32_t> job_number_{0};
  std::atomic<bool> stop_{false};
  Relay relay_;
  Event begin_, end_, barrier_, stand_in_;
  int crowded_ = 0, span_ = 2, since_ = 0;  // steps yet to run with the stand-in, of how many; steps since without
  std::atomic<bool> scarce_{false};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> finished_{0};
};

}  // namespace er

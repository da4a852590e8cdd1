// pool.h: a persistent team of threads that walks through phases. In a phase every thread takes chunks of its own share
// first, then steals from the far end of the others' shares; a barrier ends the phase. Waiting spins briefly, then sleeps.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include "os.h"

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

  // Run job(ctx, thread) on every thread and return when all are done. One caller at a time.
  void run(void (*job)(void*, int), void* ctx);

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
  Share* shares_ = nullptr;
  void* threads_ = nullptr;
  void (*job_)(void*, int) = nullptr;
  void* ctx_ = nullptr;
  std::atomic<bool> stop_{false};
  Event begin_, end_, barrier_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> finished_{0};
};

}  // namespace er

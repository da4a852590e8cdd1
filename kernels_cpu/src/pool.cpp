// pool.cpp
#include "pool.h"
#include <pthread.h>

namespace er {

// Inside a step the other threads are microseconds away; between steps a sampler runs, so workers stay warm a little longer.
constexpr int64_t SPIN_PHASE_NS = 100 * 1000;
constexpr int64_t SPIN_IDLE_NS = 200 * 1000;
// Steps to run with the stand-in before looking whether the other program is gone: few at first, for it may be a short
// one, and twice as many each time it is still there.
constexpr int MIN_CROWDED = 4, MAX_CROWDED = 64, STILL_THERE = 8;

void Event::wait_past(uint32_t seen, int64_t spin_ns) {
  const int64_t end = spin_ns ? now_ns() + spin_ns : 0;
  do {
    for (int i = 0; i < 64; i++) {
      if (value.load(std::memory_order_acquire) != seen) return;
      cpu_relax();
    }
  } while (end && now_ns() < end);
  sleepers.fetch_add(1);
  while (value.load() == seen) wait_on(&value, seen);
  sleepers.fetch_sub(1);
}

void Event::bump() {
  value.fetch_add(1);
  if (sleepers.load()) wake_all(&value);
}

struct Start { Pool* pool = nullptr; int thread = 0; };

void* Pool::worker(void* arg) {
  const Start start = *static_cast<Start*>(arg);
  destroy(static_cast<Start*>(arg));
  start.pool->serve(start.thread);
  return nullptr;
}

// Both live on pages of their own: their members are aligned to cache lines.
Pool* Pool::create(int n) {
  n = n < 1 ? 1 : n;
  void* at = alloc_pages(sizeof(Pool));
  if (!at) return nullptr;
  Pool* p = ::new (at) Pool(n);
  p->shares_ = static_cast<Share*>(alloc_pages(sizeof(Share) * n));
  p->threads_ = calloc(n + 1, sizeof(pthread_t));
  p->pinned_ = n > 1 && n == cpu_count();
  bool ok = p->shares_ && p->threads_ && p->relay_.open(n, n + 1);
  for (int i = 0; ok && i < n; i++) ::new (p->shares_ + i) Share();
  for (int i = 1; ok && n > 1 && i <= n; i++) {
    Start* start = make<Start>();
    if (start) *start = {p, i};
    ok = start && pthread_create(static_cast<pthread_t*>(p->threads_) + i, nullptr, worker, start) == 0;
    if (ok) p->started_ = i;
    else destroy(start);
  }
  if (ok) return p;
  free(p);
  return nullptr;
}

void Pool::free(Pool* p) {
  if (!p) return;
  p->stop();
  p->relay_.close();
  free_pages(p->shares_, sizeof(Share) * p->n_);
  ::free(p->threads_);
  free_pages(p, sizeof(Pool));
}

void Pool::stop() {
  stop_.store(true);
  begin_.bump();
  stand_in_.bump();
  for (int i = 1; i <= started_; i++) pthread_join(static_cast<pthread_t*>(threads_)[i], nullptr);
}

void Pool::serve(int thread) {
  const bool stand_in = thread == n_;
  // A team of as many threads as CPUs is placed once and for all: beside a busy program the scheduler tends to put two of
  // them on one core and leave the other core to the program.
  if (pinned_) pin_thread(thread % n_);
  Event& begin = stand_in ? stand_in_ : begin_;
  uint32_t jobs = 0;
  for (;;) {
    const uint32_t seen = begin.value.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!stand_in && job_number_.load(std::memory_order_acquire) != jobs) {  // one behind at most: run() waits for all
      jobs++;
      job_(ctx_, thread);
      if (finished_.fetch_add(1) + 1 == n_ - 1) end_.bump();
    } else if (const Step* step = relay_.enter(thread)) {
      relay_.work(*step, stand_in ? 0 : thread, thread);
    }
    relay_.leave(thread);
    begin.wait_past(seen, scarce_.load() ? 0 : SPIN_IDLE_NS);  // the caller may need this core
  }
}

void Pool::run(void (*job)(void*, int), void* ctx) {
  if (n_ == 1) { job(ctx, 0); return; }
  job_ = job;
  ctx_ = ctx;
  finished_.store(0);
  const uint32_t seen = end_.value.load();
  job_number_.fetch_add(1, std::memory_order_release);
  begin_.bump();
  job(ctx, 0);
  end_.wait_past(seen, SPIN_PHASE_NS);
}

void Pool::run_step(Step* step) {
  scarce_.store(crowded_ > 0, std::memory_order_relaxed);
  relay_.publish(step);
  begin_.bump();
  if (crowded_ > 0) {
    crowded_--;
    stand_in_.bump();
    relay_.wait_done(*step);
    return;
  }
  const bool missed = relay_.work(*step, 0, 0);
  since_ = since_ < STILL_THERE ? since_ + 1 : since_;
  if (!missed) return;
  span_ = since_ == STILL_THERE ? MIN_CROWDED : span_ * 2 < MAX_CROWDED ? span_ * 2 : MAX_CROWDED;
  crowded_ = span_;
  since_ = 0;
}

void Pool::deal(int chunks) {
  for (int i = 0; i < n_; i++) {
    const uint64_t lo = uint64_t(chunks) * i / n_, hi = uint64_t(chunks) * (i + 1) / n_;
    shares_[i].range.store(lo | hi << 32, std::memory_order_relaxed);
  }
}

void Pool::next_phase(int chunks) {
  if (n_ == 1) { deal(chunks); return; }
  const uint32_t seen = barrier_.value.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_) {
    arrived_.store(0, std::memory_order_relaxed);
    deal(chunks);
    barrier_.bump();
  } else {
    barrier_.wait_past(seen, SPIN_PHASE_NS);
  }
}

int Pool::claim(int thread) {
  std::atomic<uint64_t>& own = shares_[thread].range;
  uint64_t r = own.load(std::memory_order_relaxed);
  while (uint32_t(r) < uint32_t(r >> 32))
    if (own.compare_exchange_weak(r, r + 1, std::memory_order_relaxed)) return int(uint32_t(r));
  for (int i = 1; i < n_; i++) {
    std::atomic<uint64_t>& other = shares_[(thread + i) % n_].range;
    r = other.load(std::memory_order_relaxed);
    while (uint32_t(r) < uint32_t(r >> 32))
      if (other.compare_exchange_weak(r, r - (uint64_t(1) << 32), std::memory_order_relaxed)) return int(uint32_t(r >> 32)) - 1;
  }
  return -1;
}

}  // namespace er

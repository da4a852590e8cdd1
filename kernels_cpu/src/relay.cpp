// relay.cpp
#include "relay.h"

namespace er {

enum : uint64_t { CLAIMED = 1, COMMITTING = 2, DONE = 3 };

// What is left after helping is a commit in flight, microseconds unless its thread lost the core.
constexpr int64_t SPIN_NS = 100 * 1000;
// Phases that pass while a thread looks away for a moment; losing the core costs it many more.
constexpr uint64_t SKIP = 3;
constexpr int CALMEST = 6;
constexpr int64_t QUIESCE_NAP_NS = 20 * 1000;

static uint64_t word(uint64_t number, uint64_t state) { return number << 2 | state; }

// A thread's view of the phase it works on.
struct Relay::Part {
  const Step& step;
  int phase, chunks, share, thread;
  uint64_t number;
};

bool Relay::open(int n_shares, int n_threads) {
  n_shares_ = n_shares;
  n_threads_ = n_threads;
  places_ = static_cast<Place*>(alloc_pages(sizeof(Place) * n_threads));
  for (int i = 0; places_ && i < n_threads; i++) ::new (places_ + i) Place();
  return places_ && reserve(1024);
}

void Relay::close() {
  free_pages(places_, sizeof(Place) * n_threads_);
  free_pages(words_, sizeof(*words_) * n_words_);
}

bool Relay::reserve(int chunks) {
  if (chunks <= n_words_) return true;
  quiesce();
  free_pages(words_, sizeof(*words_) * n_words_);
  n_words_ = 0;
  words_ = static_cast<std::atomic<uint64_t>*>(alloc_pages(sizeof(*words_) * chunks));
  if (!words_) return false;
  for (int i = 0; i < chunks; i++) ::new (words_ + i) std::atomic<uint64_t>(0);
  n_words_ = chunks;
  return true;
}

void Relay::publish(Step* step) {
  step->base = phase_.load();
  newest_.store(step);
}

bool Relay::in_use(const Step* step) const {
  if (newest_.load() == step) return true;
  for (int i = 0; i < n_threads_; i++)
    if (places_[i].step.load() == step) return true;
  return false;
}

void Relay::quiesce() {
  newest_.store(nullptr);
  for (int i = 0; i < n_threads_; i++)
    for (int tries = 0; places_[i].step.load(); tries++)
      if (tries < 256) cpu_relax();
      else nap(QUIESCE_NAP_NS);
}

// Saying where one is before looking again closes the gap in which the step could be taken back.
const Step* Relay::enter(int thread) {
  for (;;) {
    const Step* step = newest_.load();
    places_[thread].step.store(step);
    if (newest_.load() == step) return step;
  }
}

void Relay::leave(int thread) { places_[thread].step.store(nullptr, std::memory_order_release); }

bool Relay::work(const Step& step, int share, int thread) {
  const uint64_t end = step.base + uint64_t(step.n_phases);
  bool missed = false;
  for (uint64_t last = 0;;) {
    const uint64_t number = phase_.load(std::memory_order_acquire);
    missed |= last && number > last + SKIP;
    if (number >= end) return missed;
    const int phase = int(number - step.base);
    take_part({step, phase, step.chunks[phase], share, thread, number});
    last = number;
  }
}

bool Relay::is_free(const Part& p, int chunk) const { return words_[chunk].load(std::memory_order_relaxed) >> 2 < p.number; }

bool Relay::claim(const Part& p, int chunk) {
  uint64_t seen = words_[chunk].load(std::memory_order_relaxed);
  return seen >> 2 < p.number && words_[chunk].compare_exchange_strong(seen, word(p.number, CLAIMED), std::memory_order_relaxed);
}

bool Relay::do_chunk(const Part& p, int chunk) {
  p.step.compute(p.step, p.phase, p.number, chunk, p.thread);
  return hand_in(p, chunk);
}

// False: another has been quicker.
bool Relay::hand_in(const Part& p, int chunk) {
  uint64_t claimed = word(p.number, CLAIMED);
  if (!words_[chunk].compare_exchange_strong(claimed, word(p.number, COMMITTING), std::memory_order_relaxed)) return false;
  p.step.commit(p.step, p.phase, chunk, p.thread);
  words_[chunk].store(word(p.number, DONE), std::memory_order_release);
  return true;
}

// The own share in order, since each core's memory stream likes to be long; then of each other share a back part of what is
// left, again and again. All of a share that nobody has begun, whose thread is away: backwards that takes a tenth longer.
void Relay::take_part(const Part& p) {
  for (int i = 0; i < n_shares_; i++) {
    const int64_t owner = (p.share + i) % n_shares_;
    const int begin = int(p.chunks * owner / n_shares_);
    for (int lo = begin, hi = int(p.chunks * (owner + 1) / n_shares_);;) {
      while (lo < hi && !is_free(p, lo)) lo++;
      if (lo == hi) break;
      // Thieves begin at different chunks.
      const int left = hi - lo, from = lo + (i && lo == begin ? left * (i - 1) / (n_shares_ - 1) : left * i / n_shares_);
      if (!take_run(p, from, hi)) return;
      hi = from;
    }
  }
  finish(p);
}

// False: somebody thought we had lost the core and committed in our place, and the phase is over.
bool Relay::take_run(const Part& p, int from, int to) {
  bool mine = from < to && claim(p, from);
  for (int chunk = from; chunk < to; chunk++) {
    const bool now = mine;
    if (now) p.step.compute(p.step, p.phase, p.number, chunk, p.thread);
    // Before the commit, as a claim would wait until its stores have reached their lines, which others hold.
    mine = chunk + 1 < to && claim(p, chunk + 1);
    if (now && !hand_in(p, chunk) && phase_.load(std::memory_order_relaxed) != p.number) return false;
  }
  return true;
}

void Relay::finish(const Part& p) {
  int64_t since = 0;
  bool helped = false;
  for (int at = 0, round = 1;; round++) {
    while (at < p.chunks && words_[at].load(std::memory_order_acquire) == word(p.number, DONE)) at++;
    if (at == p.chunks) return advance(p);
    if (phase_.load(std::memory_order_relaxed) != p.number) return;
    cpu_relax();
    if (round % 16) continue;
    const int64_t now = now_ns();
    if (!since) since = now;
    if (!helped && now - since >= int64_t(p.step.patience[p.phase]) << places_[p.thread].calm) {
      help(p, at);
      helped = true;
      since = 0;
    } else if (helped && now - since >= SPIN_NS) {
      return sleep_past(p.number);
    }
  }
}

// Waiters begin at different chunks, so that several of them share the work.
void Relay::help(const Part& p, int from) {
  const int n = p.chunks - from, skip = int(int64_t(n) * p.share / n_shares_);
  for (int k = 0; k < n; k++) {
    const int chunk = from + (k + skip) % n;
    if (words_[chunk].load(std::memory_order_relaxed) != word(p.number, CLAIMED)) continue;
    // In vain: its owner had its core all the time, and this machine is slower than the patience assumes.
    int& calm = places_[p.thread].calm;
    const bool won = do_chunk(p, chunk);
    if (won ? calm > 0 : calm < CALMEST) calm += won ? -1 : 1;
    if (phase_.load(std::memory_order_relaxed) != p.number) return;
  }
}

// Whoever sees all chunks done may call this; the first one counts.
void Relay::advance(const Part& p) {
  uint64_t number = p.number;
  if (!phase_.compare_exchange_strong(number, number + 1)) return;
  if (sleepers_.load()) {
    bell_.fetch_add(1);
    wake_all(&bell_);
  }
  if (p.phase + 1 == p.step.n_phases && watchers_.load()) {
    done_bell_.fetch_add(1);
    wake_all(&done_bell_);
  }
}

void Relay::wait_done(const Step& step) {
  const uint64_t end = step.base + uint64_t(step.n_phases);
  watchers_.fetch_add(1);
  for (;;) {
    const uint32_t heard = done_bell_.load();
    if (phase_.load() >= end) break;
    wait_on(&done_bell_, heard);
  }
  watchers_.fetch_sub(1);
}

// Announced before the last look, so that advance either sees us or we see its new number.
void Relay::sleep_past(uint64_t number) {
  sleepers_.fetch_add(1);
  for (;;) {
    const uint32_t heard = bell_.load();
    if (phase_.load() != number) break;
    wait_on(&bell_, heard);
  }
  sleepers_.fetch_sub(1);
}

}  // namespace er

// relay.h: phases without barriers, for machines whose cores other programs want too.
//
// A barrier waits for threads; when the scheduler takes the core of one of them, everybody waits for a time slice. Here a
// phase waits for work only. Its chunks are computed into a thread's own memory and committed to the shared buffers by
// whoever comes first; a thread out of work does again what another holds for too long. Both get the same bits, so it does
// not matter who wins. A chunk's word holds the phase's number, which never repeats, and a state:
//
//   older number: free -> CLAIMED -> COMMITTING -> DONE
//
// The number makes every claim and commit of a late thread fail. Late threads go on reading what others overwrite: their
// floats may be garbage, their indexes must not be, so a step's indexes live in memory that is not reused while any thread
// is in the step (in_use), and buffers are moved or freed after quiesce() only.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include "os.h"

namespace er {

// One walk through phases.
struct Step {
  int n_phases = 0;
  const int32_t* chunks = nullptr;    // of each phase, at least 1
  const int32_t* patience = nullptr;  // of each phase: ns to wait before doing another thread's chunk again
  // Chunk into the thread's own memory, reading only what this phase does not write. `number` names the phase uniquely.
  void (*compute)(const Step& step, int phase, uint64_t number, int chunk, int thread) = nullptr;
  // From there to shared memory; once per chunk, and quick: nobody can take this over.
  void (*commit)(const Step& step, int phase, int chunk, int thread) = nullptr;
  uint64_t base = 0;  // number of the first phase, set by publish
};

class Relay {
 public:
  // n_shares: threads that work at the same time; n_threads: all that ever do.
  bool open(int n_shares, int n_threads);
  void close();

  // Called by the one thread that starts steps.
  bool reserve(int chunks);             // room for phases of so many chunks; false: no memory
  void publish(Step* step);             // from now on threads may enter it
  bool in_use(const Step* step) const;  // some thread is in it
  void quiesce();                       // returns when no thread is in any step

  // Called by all. Null: there is no step.
  const Step* enter(int thread);
  void leave(int thread);
  // `share` of every phase first. Returns when the step's last phase is done; true if this thread missed
  // phases, as one that lost its core does.
  bool work(const Step& step, int share, int thread);
  void wait_done(const Step& step);  // asleep, for a thread that does not work

 private:
  struct alignas(64) Place {
    std::atomic<const Step*> step{nullptr};
    int calm = 0;  // the thread's own: its patience doubles so often
  };
  struct Part;
  bool is_free(const Part& part, int chunk) const;
  bool claim(const Part& part, int chunk);
  bool do_chunk(const Part& part, int chunk);
  bool hand_in(const Part& part, int chunk);
  void take_part(const Part& part);
  bool take_run(const Part& part, int from, int to);
  void finish(const Part& part);
  void help(const Part& part, int from);
  void advance(const Part& part);
  void sleep_past(uint64_t number);

  int n_shares_ = 0, n_threads_ = 0, n_words_ = 0;
  std::atomic<uint64_t>* words_ = nullptr;
  Place* places_ = nullptr;
  alignas(64) std::atomic<const Step*> newest_{nullptr};
  alignas(64) std::atomic<uint64_t> phase_{1};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> bell_{0}, watchers_{0}, done_bell_{0};
};

}  // namespace er

// draft.h: drafts the next tokens of one request from the text it has so far.
#pragma once
#include <cstdint>

#include "draft_copy.h"
#include "draft_odds.h"
#include "draft_text.h"

namespace er {

// Two sources propose a token: the matches of the text's end, and the copy under way. Every emitted token scores what each
// would have said, drafted or not, so their odds are learned without trying. The likelier one is drafted. Out of memory it
// falls silent: no drafts, nothing fails.
class Draft {
 public:
  static constexpr int kMost = 31;

  explicit Draft(int64_t max_bytes) : text_(max_bytes) {}

  // Committed tokens in order; the first call is the prompt, which is not scored. False: out of memory.
  bool extend(const int32_t* ids, int64_t n);

  // What a step costs by its width, cost[1..widest], and what this one may cost more than one of width 1.
  struct Price {
    const double* cost;
    int widest;
    double allowance;
  };

  // Up to `most` tokens after the text and `given` ones; [j] is right with probability odds[j] if all before it are. With a
  // price, as many as give the most expected tokens for it.
  int propose(const int32_t* given, int n_given, int most, const Price* price, int32_t* tokens, double* odds) const;

  int64_t bytes() const { return text_.bytes() + int64_t(sizeof *this); }

 private:
  struct Guess {
    int32_t token = 0;
    int cell = -1;
  };
  // The token that matches go on with; and the next one where they count, as ids of records do.
  Guess said_after(const Candidates& c) const;
  bool counted(const Candidates& c, int32_t* next) const;
  void emit(int32_t token);
  void go_on(Candidates& c, Copy::Place& place, const Ahead& ahead) const;

  DraftText text_;
  Candidates match_;  // of the text's end
  Copy copy_;
  Odds odds_;
  bool begun_ = false, silent_ = false;
};

}  // namespace er

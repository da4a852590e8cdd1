// draft_copy.h: follows a copy of earlier text through its edits.
#pragma once
#include <cstdint>

#include "draft_text.h"

namespace er {

// A pointer into the text that survives mismatches. What replaced what there is kept as an edit and proposed where the
// replaced tokens come up again: a rename is drafted right from its second place on.
class Copy {
 public:
  static constexpr int kSpan = 4;    // longest edit, on both sides
  static constexpr int kLost = 8;    // tokens after a mismatch until the copy is given up
  static constexpr int kEdits = 64;  // kept; the oldest goes

  // Where the copy is. A draft walks its own one on, which teaches nothing.
  struct Place {
    int32_t source = -1;         // next token's source, or what the edit under way replaces; -1: none
    int run = 0;                 // tokens copied so far
    int edit = -1, written = 0;  // an edit under way, and how much of it is written
    int gap = 0;                 // tokens since the source was left; 0: it was not
    int32_t left = 0;            // where it was left
    int32_t since[kLost];        // the tokens since
  };

  // The next token and the cell of its odds; cell -1: none.
  struct Guess {
    int32_t token = 0;
    int cell = -1;
  };
  Guess guess(const DraftText& text, const Place& place) const;

  // A token was drafted.
  void walk(const DraftText& text, Place& place, int32_t token) const { move(text, place, token); }
  // A token was emitted; it is not in the text yet.
  void emit(const DraftText& text, int32_t token);
  // The text's end matches the `len` tokens before `source`.
  void sync(const DraftText& text, int32_t source, int len);

  const Place& place() const { return place_; }

 private:
  struct Edit {
    int32_t from[kSpan], to[kSpan];
    int n_from, n_to, seen;  // seen: how often it held; 0: no longer believed
  };
  // What a move says about the edits: one held, one broke, or the source was found again after `gap` tokens.
  struct Lesson {
    int held = -1, broke = -1, gap = 0;
  };
  Lesson move(const DraftText& text, Place& place, int32_t token) const;
  Lesson move_edit(Place& place, int32_t token) const;
  void leave(Place& place, const int32_t* written, int n, int32_t token) const;
  int edit_at(const DraftText& text, int32_t source) const;
  void learn(const DraftText& text, int32_t from, int n_from, const int32_t* to, int n_to);
  void drop(int edit);

  Place place_;
  Edit edits_[kEdits];
  int n_edits_ = 0;
  uint64_t firsts_ = 0;  // a bit for each edit's first token: most positions have none
};

}  // namespace er

// draft_copy.cpp: the copy's place and its edits.
#include "draft_copy.h"

#include <cstring>

#include "draft_odds.h"

namespace er {
namespace {
constexpr int kMinRun = 3;   // a shorter copy is dropped at its first mismatch
constexpr int kReach = 16;   // a match so far past the place that was left tells what was replaced

int least(int a, int b) { return a < b ? a : b; }
uint64_t bit(int32_t token) { return uint64_t(1) << (uint32_t(token) & 63); }
}  // namespace

Copy::Guess Copy::guess(const DraftText& text, const Place& place) const {
  Guess g;
  if (place.edit >= 0) {
    const Edit& e = edits_[place.edit];
    if (e.seen > 0) g = {e.to[place.written], Odds::edit_cell(e.seen, place.written > 0)};
  } else if (place.gap) {
    const int32_t next = place.left + place.gap;  // as if token for token was replaced
    if (place.gap <= Odds::kMostGap && next < text.size()) g = {text[next], Odds::gap_cell(place.gap)};
  } else if (place.source >= 0 && place.source < text.size()) {
    const int edit = edit_at(text, place.source);
    if (edit >= 0) g = {edits_[edit].to[0], Odds::edit_cell(edits_[edit].seen, false)};
    else g = {text[place.source], Odds::copy_cell(place.run)};
  }
  return g;
}

void Copy::emit(const DraftText& text, int32_t token) {
  const Lesson l = move(text, place_, token);
  if (l.held >= 0) edits_[l.held].seen++;
  if (l.broke >= 0) edits_[l.broke].seen = 0;
  if (l.gap) learn(text, place_.left, l.gap, place_.since, l.gap);
}

void Copy::sync(const DraftText& text, int32_t source, int len) {
  Place& p = place_;
  if (p.edit >= 0 || (!p.gap && p.source >= 0 && (p.source == source || p.run >= len))) return;
  if (p.gap && source > p.left && source <= p.left + kReach) {
    const int same = least(len, least(p.gap, source - p.left));  // of both sides, not replaced
    learn(text, p.left, source - same - p.left, p.since, p.gap - same);
  }
  if (len < kMinRun) return;
  p.source = source;
  p.run = len;
  p.gap = 0;
}

Copy::Lesson Copy::move(const DraftText& text, Place& p, int32_t token) const {
  Lesson l;
  if (p.edit >= 0) return move_edit(p, token);
  if (p.gap) {
    const int32_t next = p.left + p.gap;
    if (next < text.size() && text[next] == token) {
      l.gap = p.gap;
      p.source = next + 1;
      p.run = 1;
      p.gap = 0;
    } else if (p.gap == kLost) {
      p.gap = 0;
    } else {
      p.since[p.gap++] = token;
    }
    return l;
  }
  if (p.source < 0) return l;
  if (p.source >= text.size()) {
    p.source = -1;
    return l;
  }
  const int edit = edit_at(text, p.source);
  if (edit >= 0) {
    if (edits_[edit].to[0] == token) {
      p.edit = edit;
      p.written = 0;
      return move_edit(p, token);
    }
    l.broke = edit;
  }
  if (text[p.source] == token) {
    p.source++;
    p.run++;
  } else if (p.run >= kMinRun) {
    leave(p, nullptr, 0, token);
  } else {
    p.source = -1;
  }
  return l;
}

Copy::Lesson Copy::move_edit(Place& p, int32_t token) const {
  Lesson l;
  const Edit& e = edits_[p.edit];
  if (e.to[p.written] != token) {
    l.broke = p.edit;
    leave(p, e.to, p.written, token);
    return l;
  }
  p.run++;
  if (++p.written == e.n_to) {
    l.held = p.edit;
    p.source += e.n_from;
    p.edit = -1;
  }
  return l;
}

// The copy went on at its source with `n` tokens and then one that is not there.
void Copy::leave(Place& p, const int32_t* written, int n, int32_t token) const {
  for (int i = 0; i < n; i++) p.since[i] = written[i];
  p.since[n] = token;
  p.gap = n + 1;
  p.left = p.source;
  p.source = p.edit = -1;
}

int Copy::edit_at(const DraftText& text, int32_t source) const {
  if (!(firsts_ & bit(text[source]))) return -1;
  for (int i = n_edits_ - 1; i >= 0; i--) {
    const Edit& e = edits_[i];
    if (e.seen < 1 || source + e.n_from > text.size()) continue;
    int same = 0;
    while (same < e.n_from && e.from[same] == text[source + same]) same++;
    if (same == e.n_from) return i;
  }
  return -1;
}

void Copy::learn(const DraftText& text, int32_t from, int n_from, const int32_t* to, int n_to) {
  if (n_from < 1 || n_to < 1 || n_from > kSpan || n_to > kSpan) return;
  Edit e = {};
  e.n_from = n_from;
  e.n_to = n_to;
  e.seen = 1;
  for (int i = 0; i < n_from; i++) e.from[i] = text[from + i];
  memcpy(e.to, to, size_t(n_to) * 4);
  for (int i = 0; i < n_edits_; i++) {  // one edit for a first token: the latest
    const Edit& old = edits_[i];
    if (old.from[0] != e.from[0]) continue;
    const bool again = old.n_from == n_from && old.n_to == n_to && !memcmp(old.from, e.from, sizeof e.from) &&
                       !memcmp(old.to, e.to, sizeof e.to);
    if (again) e.seen = old.seen + 1;
    drop(i);
    break;
  }
  if (n_edits_ == kEdits) drop(0);
  edits_[n_edits_++] = e;
  firsts_ |= bit(e.from[0]);
}

void Copy::drop(int edit) {
  n_edits_--;
  memmove(edits_ + edit, edits_ + edit + 1, size_t(n_edits_ - edit) * sizeof(Edit));
  firsts_ = 0;
  for (int i = 0; i < n_edits_; i++) firsts_ |= bit(edits_[i].from[0]);
}

}  // namespace er

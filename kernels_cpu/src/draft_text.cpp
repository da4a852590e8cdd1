// draft_text.cpp: the chains. A position is entered once its successor is known, so every match has a next token.
#include "draft_text.h"

#include <cstdlib>

namespace er {
namespace {
constexpr int32_t kFirstTokens = 1024, kFirstSlots = 2048, kMostTokens = 1 << 28;
// Tokens a slot on average, at most: chains then hold few strangers, for 4 to 8 bytes a token.
constexpr int32_t kLoad = 2;

int64_t slot_bytes(int32_t n_slots) { return int64_t(n_slots) * 8; }
}  // namespace

int64_t DraftText::bytes() const { return int64_t(capacity_) * 8 + slot_bytes(n_slots_); }

void DraftText::release() {
  free(tokens_);
  free(before_);
  free(slots_);
  tokens_ = before_ = slots_ = nullptr;
  n_ = capacity_ = n_slots_ = 0;
}

bool DraftText::append(int32_t token) {
  if (n_ == capacity_ && !grow_tokens()) return false;
  if (n_ >= n_slots_ * kLoad && !grow_slots()) return false;
  tokens_[n_] = token;
  before_[n_] = 0;
  if (token > highest_) highest_ = token;
  if (n_++) link(n_ - 2);
  return true;
}

bool DraftText::grow_tokens() {
  const int32_t capacity = capacity_ ? capacity_ + capacity_ / 2 : kFirstTokens;
  if (capacity > kMostTokens || !fits(int64_t(capacity - capacity_) * 8)) return false;
  int32_t* tokens = static_cast<int32_t*>(realloc(tokens_, size_t(capacity) * 4));
  if (!tokens) return false;
  tokens_ = tokens;
  int32_t* before = static_cast<int32_t*>(realloc(before_, size_t(capacity) * 4));
  if (!before) return false;
  before_ = before;
  capacity_ = capacity;
  return true;
}

bool DraftText::grow_slots() {
  const int32_t n_slots = n_slots_ ? n_slots_ * 2 : kFirstSlots;
  if (!fits(slot_bytes(n_slots) - slot_bytes(n_slots_))) return false;
  int32_t* slots = static_cast<int32_t*>(calloc(size_t(slot_bytes(n_slots)), 1));
  if (!slots) return false;
  free(slots_);
  slots_ = slots;
  n_slots_ = n_slots;
  for (int32_t i = 0; i + 1 < n_; i++) link(i);
  return true;
}

void DraftText::link(int32_t i) {
  slots_[n_slots_ + int32_t(token_slot(tokens_[i]))] = i + 1;
  if (!i) return;
  int32_t& newest = slots_[pair_slot(tokens_[i - 1], tokens_[i])];
  before_[i] = newest;
  newest = i + 1;
}

Candidates DraftText::match(const Ahead& ahead) const {
  Candidates c;
  const int32_t last = n_ + ahead.n_given + ahead.n - 1;
  if (n_ < 2) return c;
  const auto token = [&](int32_t i) { return i < n_ ? tokens_[i] : ahead[i - n_]; };
  const int32_t end = token(last);
  c.len = 1;
  int32_t i = slots_[pair_slot(token(last - 1), end)] - 1;
  for (int tried = 0; i >= 0 && tried < Candidates::kMost; tried++, i = before_[i] - 1) {
    int len = 0;
    while (len < kLongest && len <= i && tokens_[i - len] == token(last - len)) len++;
    if (len < 2) continue;  // another bigram of the same slot
    if (len > c.len) c.len = len;
    c.at[c.n] = i + 1;
    c.same[c.n++] = len;
  }
  if (c.n) return c;
  i = slots_[n_slots_ + int32_t(token_slot(end))] - 1;
  if (i >= 0 && tokens_[i] == end) {
    c.at[c.n] = i + 1;
    c.same[c.n++] = 1;
  } else {
    c.len = 0;
  }
  return c;
}

void DraftText::follow(Candidates& c, int32_t token) const {
  int kept = 0;
  c.len = 0;
  for (int i = 0; i < c.n; i++) {
    if (tokens_[c.at[i]] != token || c.at[i] + 1 == n_) continue;
    const int32_t same = c.same[i] < kLongest ? c.same[i] + 1 : kLongest;
    if (same > c.len) c.len = same;
    c.at[kept] = c.at[i] + 1;
    c.same[kept++] = same;
  }
  c.n = kept;
}

}  // namespace er

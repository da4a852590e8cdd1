// draft_text.h: a request's tokens with hash chains over their bigrams, as LZ77 coders keep them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace er {

// Where the text's end occurred before: positions of the tokens that followed, newest first. `same[i]` tokens before each
// equal the last ones of the text; the longest match has `len`.
struct Candidates {
  static constexpr int kMost = 8;
  int n = 0, len = 0;
  int32_t at[kMost], same[kMost];
};

// Tokens that may follow the text: given ones, then drafted ones.
struct Ahead {
  const int32_t* given = nullptr;
  int n_given = 0;
  const int32_t* drafted = nullptr;
  int n = 0;
  int32_t operator[](int i) const { return i < n_given ? given[i] : drafted[i - n_given]; }
};

class DraftText {
 public:
  static constexpr int kLongest = 64;  // longer matches count as this long

  explicit DraftText(int64_t max_bytes) : max_bytes_(max_bytes) {}
  ~DraftText() { release(); }
  DraftText(const DraftText&) = delete;
  DraftText& operator=(const DraftText&) = delete;

  // False: no memory, or max_bytes would be passed. The text is as before then.
  bool append(int32_t token);
  void release();
  int64_t bytes() const;

  int32_t size() const { return n_; }
  int32_t highest() const { return highest_; }  // token so far; -1: none
  int32_t operator[](int32_t i) const { return tokens_[i]; }

  // The matches of the text's end, with `ahead` behind it, among the last kMost positions after the same bigram; else one
  // after the same token.
  Candidates match(const Ahead& ahead = {}) const;
  // Keep the candidates that `token` continues, one position further on, where the text has one.
  void follow(Candidates& c, int32_t token) const;

 private:
  static uint32_t mix(uint64_t key) { return uint32_t(key * 0x9E3779B97F4A7C15ull >> 33); }
  uint32_t pair_slot(int32_t a, int32_t b) const { return mix(uint64_t(uint32_t(a)) << 32 | uint32_t(b)) & (n_slots_ - 1); }
  uint32_t token_slot(int32_t token) const { return mix(uint32_t(token)) & (n_slots_ - 1); }
  void link(int32_t i);
  bool grow_tokens();
  bool grow_slots();
  bool fits(int64_t more) const { return more <= max_bytes_ - bytes(); }

  int64_t max_bytes_;
  int32_t n_ = 0, capacity_ = 0, n_slots_ = 0, highest_ = -1;
  int32_t* tokens_ = nullptr;
  int32_t* before_ = nullptr;  // [i]: 1 + the previous position whose bigram has the same slot; 0: none
  int32_t* slots_ = nullptr;   // n_slots_ by bigram, then as many by token: 1 + the newest position
};

}  // namespace er

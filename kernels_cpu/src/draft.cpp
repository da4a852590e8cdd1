// draft.cpp: the drafter over its three parts: text with chains, copy, odds.
#include "draft.h"

namespace er {
namespace {
constexpr double kLeast = 0.01;  // a draft less likely to be right as a whole is not worth its walk
constexpr double kMargin = 0.03;  // tokens a draft must promise beyond those of the time it takes; widths.py has it, too
}

bool Draft::extend(const int32_t* ids, int64_t n) {
  for (int64_t i = 0; i < n && !silent_; i++) {
    if (begun_) emit(ids[i]);
    if (!text_.append(ids[i])) {
      silent_ = true;
      text_.release();
      break;
    }
    if (!begun_) continue;
    match_ = text_.match();
    if (match_.len >= 2) copy_.sync(text_, match_.at[0], match_.len);
  }
  if (!begun_ && !silent_) match_ = text_.match();
  begun_ = true;
  return !silent_;
}

void Draft::emit(int32_t token) {
  const Guess voted = vote(match_);
  if (voted.cell >= 0) odds_.learn(voted.cell, voted.token == token);
  const Copy::Guess copied = copy_.guess(text_, copy_.place());
  if (copied.cell >= 0) odds_.learn(copied.cell, copied.token == token);
  copy_.emit(text_, token);
}

// The token most candidates go on with; of equals the newest.
Draft::Guess Draft::vote(const Candidates& c) const {
  Guess g;
  int of = 0, most = 0;
  for (int i = 0; i < c.n; i++) {
    if (c.at[i] >= text_.size()) continue;
    of++;
    int votes = 0;
    for (int j = 0; j < c.n; j++) votes += c.at[j] < text_.size() && text_[c.at[j]] == text_[c.at[i]];
    if (votes > most) {
      most = votes;
      g.token = text_[c.at[i]];
    }
  }
  if (of) g.cell = Odds::match_cell(c.len, most, of);
  return g;
}

int Draft::propose(const int32_t* given, int n_given, int most, const Price* price, int32_t* tokens, double* odds) const {
  if (silent_) return 0;
  if (most > kMost) most = kMost;
  if (price && most > price->widest - 1) most = price->widest - 1;
  Candidates candidates = match_;
  Copy::Place place = copy_.place();
  for (int i = 0; i < n_given; i++) {
    text_.follow(candidates, given[i]);
    copy_.walk(text_, place, given[i]);
  }
  double all = 1, expected = 1, best = 1 + kMargin;  // best: expected tokens for the cost of a step of one
  int n = 0, worth = 0;
  for (; n < most; n++) {
    const Guess voted = vote(candidates);
    const Copy::Guess copied = copy_.guess(text_, place);
    double p = voted.cell >= 0 ? odds_.probability(voted.cell) : 0;
    int32_t token = voted.token;
    if (copied.cell >= 0) {
      const double q = odds_.probability(copied.cell);
      if (q > p) {
        p = q;
        token = copied.token;
      }
    }
    all *= p;
    if (all < kLeast) break;
    if (price) {
      const double spent = price->cost[n + 2] / price->cost[1];
      if (expected + (most - n) * all <= best * spent || spent - 1 > price->allowance) break;
      expected += all;
      if (expected > best * spent) {
        best = expected / spent;
        worth = n + 1;
      }
    }
    tokens[n] = token;
    odds[n] = p;
    text_.follow(candidates, token);
    copy_.walk(text_, place, token);
  }
  return price ? worth : n;
}

}  // namespace er

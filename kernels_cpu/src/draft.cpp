// draft.cpp: the drafter over its three parts: text with chains, copy, odds.
#include "draft.h"

namespace er {
namespace {
constexpr double kLeast = 0.01;  // a draft less likely to be right as a whole is not worth its walk
constexpr int kCounter = 4;  // tokens that contexts of a count have in common
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
    if (match_.len < 2) continue;
    int longest = 0;
    while (match_.same[longest] != match_.len) longest++;
    copy_.sync(text_, match_.at[longest], match_.len);
  }
  if (!begun_ && !silent_) match_ = text_.match();
  begun_ = true;
  return !silent_;
}

void Draft::emit(int32_t token) {
  const Guess said = said_after(match_);
  if (said.cell >= 0) odds_.learn(said.cell, said.token == token);
  const Copy::Guess copied = copy_.guess(text_, copy_.place());
  if (copied.cell >= 0) odds_.learn(copied.cell, copied.token == token);
  copy_.emit(text_, token);
}

// Whether the newest matches, long enough, were followed by tokens in equal steps; then the next one. No token beyond those
// of the text: whatever is drafted must be one.
bool Draft::counted(const Candidates& c, int32_t* next) const {
  int64_t said[3];
  int n = 0;
  for (int i = 0; i < c.n && n < 3; i++)
    if (c.same[i] >= kCounter) said[n++] = text_[c.at[i]];
  if (n < 3 || said[0] == said[1] || said[0] - said[1] != said[1] - said[2]) return false;
  const int64_t token = said[0] + (said[0] - said[1]);
  *next = int32_t(token);
  return token >= 0 && token <= text_.highest();
}

// A count's next token; else the one that most of the longest matches go on with, of equals the newest.
Draft::Guess Draft::said_after(const Candidates& c) const {
  Guess g;
  if (counted(c, &g.token)) {
    g.cell = Odds::count_cell();
    return g;
  }
  int of = 0, most = 0;
  const auto votes_for = [&](int32_t token) {
    int votes = 0;
    for (int i = 0; i < c.n; i++) votes += c.same[i] == c.len && text_[c.at[i]] == token;
    return votes;
  };
  for (int i = 0; i < c.n; i++) {
    if (c.same[i] != c.len) continue;
    of++;
    const int votes = votes_for(text_[c.at[i]]);
    if (votes > most) {
      most = votes;
      g.token = text_[c.at[i]];
    }
  }
  if (of) g.cell = Odds::match_cell(c.len, most, of);
  return g;
}

// Past the last token of `ahead`. Where no copy leads on, what was drafted is matched as if it had been said.
void Draft::go_on(Candidates& c, Copy::Place& place, const Ahead& ahead) const {
  const int32_t token = ahead[ahead.n_given + ahead.n - 1];
  text_.follow(c, token);
  copy_.walk(text_, place, token);
  if (copy_.guess(text_, place).cell >= 0) return;
  const Candidates again = text_.match(ahead);
  if (again.len >= c.len) c = again;
}

int Draft::propose(const int32_t* given, int n_given, int most, const Price* price, int32_t* tokens, double* odds) const {
  if (silent_) return 0;
  if (most > kMost) most = kMost;
  if (price && most > price->widest - 1) most = price->widest - 1;
  Candidates candidates = match_;
  Copy::Place place = copy_.place();
  for (int i = 0; i < n_given; i++) go_on(candidates, place, {given, i + 1, tokens, 0});
  double all = 1, expected = 1, best = 1 + kMargin;  // best: expected tokens for the cost of a step of one
  int n = 0, worth = 0;
  for (; n < most; n++) {
    const Guess said = said_after(candidates);
    const Copy::Guess copied = copy_.guess(text_, place);
    double p = said.cell >= 0 ? odds_.probability(said.cell) : 0;
    int32_t token = said.token;
    if (copied.cell >= 0 && said.cell != Odds::count_cell()) {  // a copy repeats where others count
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
    go_on(candidates, place, {given, n_given, tokens, n + 1});
  }
  return price ? worth : n;
}

}  // namespace er

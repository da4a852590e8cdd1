// draft_odds.h: how likely a predicted token is right, learned from the request's own tokens.
#pragma once
#include <cmath>

namespace er {

// Predictions fall into cells by what speaks for them. A cell's probability starts from a prior and moves with the hits and
// misses seen in it; a bias common to the match cells moves all priors with the request's luck.
class Odds {
 public:
  // A match: 9 lengths x how far the candidates agree.
  static int match_cell(int len, int votes, int of) {
    return length_class(len) * 4 + (of == 1 ? 0 : votes == of ? 1 : 2 * votes >= of ? 2 : 3);
  }
  // A copy followed for `run` tokens; an edit seen `seen` times, at its first token or inside; `gap` tokens after a mismatch.
  static int copy_cell(int run) { return kCopy + length_class(run); }
  static int edit_cell(int seen, bool inside) { return kEdit + 3 * inside + (seen < 3 ? seen : 3) - 1; }
  static int gap_cell(int gap) { return kGap + gap - 1; }
  // A count that goes on.
  static int count_cell() { return kCount; }
  static constexpr int kMostGap = 2;

  double probability(int cell) const {
    const double p = (hits_[cell] + kPriorWeight * base(cell)) / (tries_[cell] + kPriorWeight);
    return p < kMost ? p : kMost;
  }

  // A prediction from `cell` was right or wrong.
  void learn(int cell, bool right) {
    if (cell < kCopy) {
      bias_ += kBiasRate * (double(right) - base(cell));
      bias_ = bias_ > kBiasMost ? kBiasMost : bias_ < -kBiasMost ? -kBiasMost : bias_;
      odds_against_ = exp(-bias_);
    }
    hits_[cell] = hits_[cell] * kDecay + double(right);
    tries_[cell] = tries_[cell] * kDecay + 1;
  }

 private:
  enum { kCopy = 36, kEdit = kCopy + 9, kGap = kEdit + 6, kCount = kGap + kMostGap, kCells };
  static constexpr double kPriorWeight = 8, kDecay = 0.98, kMost = 0.995;
  // The bias starts low: a wrong draft costs more than a missed one, and most new texts repeat little.
  static constexpr double kBiasStart = -1.5, kBiasRate = 0.1, kBiasMost = 4;

  static int length_class(int n) {
    return n <= 1 ? 0 : n <= 4 ? n - 1 : n <= 6 ? 4 : n <= 9 ? 5 : n <= 15 ? 6 : n <= 31 ? 7 : 8;
  }
  double base(int cell) const {
    const double p = kPrior[cell];
    return p / (p + (1 - p) * odds_against_);
  }

  // Fitted on recorded texts of two small models and on edits of real code.
  static constexpr double kPrior[kCells] = {
      // one candidate; several that agree; a majority; a minority
      .36, .63, .28, .18,  // match of 1
      .53, .78, .28, .16,  // 2
      .68, .86, .35, .20,  // 3
      .78, .92, .38, .20,  // 4
      .82, .93, .38, .20,  // 5-6
      .90, .94, .38, .20,  // 7-9
      .90, .95, .38, .20,  // 10-15
      .92, .97, .38, .20,  // 16-31
      .96, .97, .40, .20,  // 32 or more
      // copied so far, in the same lengths
      .77, .80, .68, .79, .83, .91, .91, .93, .96,
      // an edit's first token, seen once, twice, more often; its other tokens
      .32, .78, .96, .55, .75, .90,
      // one and two tokens after a mismatch
      .39, .17,
      // a count
      .9};

  double hits_[kCells] = {}, tries_[kCells] = {};
  double bias_ = kBiasStart, odds_against_ = 4.4816890703380645;  // exp(-kBiasStart)
};

}  // namespace er

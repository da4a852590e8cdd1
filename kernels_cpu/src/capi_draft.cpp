// capi_draft.cpp: C entry points of the drafter. One object a request; calls on one object do not overlap.
#include <cstdlib>
#include <new>

#include "api.h"
#include "draft.h"

// A drafter that holds at most about max_bytes. Null: no memory.
ER_API void* er_draft_new(int64_t max_bytes) {
  void* p = malloc(sizeof(er::Draft));
  return p ? ::new (p) er::Draft(max_bytes) : nullptr;
}

ER_API void er_draft_free(void* d) {
  if (!d) return;
  static_cast<er::Draft*>(d)->~Draft();
  free(d);
}

// Committed tokens in order, prompt first. 0, or -1: out of memory, and the drafter is silent from now on.
ER_API int er_draft_extend(void* d, const int32_t* ids, int64_t n) { return static_cast<er::Draft*>(d)->extend(ids, n) ? 0 : -1; }

// Up to min(most, 31) tokens that may follow the text and the `given` ones, and each one's probability if all before it are
// right. With `cost`, what steps of widths 1 to `widest` take, only as many as pay, in a step that costs at most `allowance`
// more than one of width 1. Returns how many.
ER_API int er_draft_propose(const void* d, const int32_t* given, int n_given, int most, const double* cost, int widest,
                            double allowance, int32_t* tokens, double* odds) {
  const er::Draft::Price price = {cost, widest, allowance};
  return static_cast<const er::Draft*>(d)->propose(given, n_given, most, cost ? &price : nullptr, tokens, odds);
}

// Bytes held.
ER_API int64_t er_draft_bytes(const void* d) { return static_cast<const er::Draft*>(d)->bytes(); }

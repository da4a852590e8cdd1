// job.cpp
#include "job.h"
#include <cstring>

namespace er {

Job::~Job() {
  free(memory);
  free(items);
  free(cuts);
}

static size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

bool Job::take(const BatchView& v, const RopeTable* t, int n_tables) {
  const int32_t* BatchView::*const arrays[] = {&BatchView::tokens, &BatchView::positions, &BatchView::row_start,
                                               &BatchView::n_past, &BatchView::pages,     &BatchView::outputs};
  const size_t n = v.n_tokens, rows = v.n_rows;
  const size_t lengths[] = {n, n, rows + 1, rows, rows * v.max_pages, size_t(v.n_outputs)};
  size_t need = lines(n_tables * sizeof(float*)) + lines(n_tables * sizeof(RopeTable));
  for (size_t length : lengths) need += lines(length * sizeof(int32_t));
  for (int i = 0; i < n_tables; i++) need += lines(n * t[i].n_rot * sizeof(float));
  if (need > bytes) {
    free(memory);
    memory = malloc(need * 2);
    bytes = memory ? need * 2 : 0;
    if (!memory) return false;
  }
  uint8_t* at = static_cast<uint8_t*>(memory);
  const auto put = [&](const void* from, size_t size) {
    uint8_t* to = at;
    if (size && from) memcpy(to, from, size);
    at += lines(size);
    return static_cast<void*>(to);
  };
  batch = v;
  for (int i = 0; i < 6; i++) batch.*arrays[i] = static_cast<const int32_t*>(put(v.*arrays[i], lengths[i] * sizeof(int32_t)));
  tables = static_cast<const RopeTable*>(put(t, n_tables * sizeof(RopeTable)));
  ropes = static_cast<const float**>(put(nullptr, n_tables * sizeof(float*)));
  for (int i = 0; i < n_tables; i++) {
    float* to = static_cast<float*>(put(nullptr, n * t[i].n_rot * sizeof(float)));
    ropes[i] = to;
    for (size_t k = 0; k < n; k++, to += t[i].n_rot)
      memcpy(to, t[i].cs + int64_t(batch.positions[k]) * t[i].n_rot, t[i].n_rot * sizeof(float));
  }
  return true;
}

bool Job::plan_attention(int n_heads, int n_kv, int n_threads) {
  const int group = n_heads / n_kv;
  const int64_t queries = int64_t(batch.n_tokens) * group, want = int64_t(n_threads) * 4;
  int64_t per = (queries * n_kv + want - 1) / want;
  per = per > 32 ? 32 : per > 8 ? per / 8 * 8 : per < group && queries > group ? group : per < 1 ? 1 : per;
  n_items = 0;
  for (int r = 0; r < batch.n_rows; r++) {
    const int n = (batch.row_start[r + 1] - batch.row_start[r]) * group;
    const int cuts = int((n + per - 1) / per);
    if (n_items + cuts * n_kv > items_cap) {
      const int cap = (n_items + cuts * n_kv) * 2;
      Item* more = static_cast<Item*>(realloc(items, sizeof(Item) * cap));
      if (!more) return false;
      items = more;
      items_cap = cap;
    }
    for (int h = 0; h < n_kv; h++)
      for (int c = 0; c < cuts; c++) {
        const int q1 = int((c + 1) * per);
        items[n_items++] = {r, h, int(c * per), q1 < n ? q1 : n};
      }
  }
  return true;
}

int Job::row_of(int t) const {
  int lo = 0, hi = batch.n_rows - 1;
  while (lo < hi) {
    const int mid = (lo + hi + 1) / 2;
    if (batch.row_start[mid] <= t) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

}  // namespace er

// job.cpp
#include "job.h"
#include <cstring>
#include "float_ops.h"

namespace er {

Job::~Job() {
  free(memory);
  free(items);
  free(merges);
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

template <class T> static bool room(T** list, int* cap, int need) {
  if (need <= *cap) return true;
  T* more = static_cast<T*>(realloc(*list, sizeof(T) * need * 2));
  if (!more) return false;
  *list = more;
  *cap = need * 2;
  return true;
}

// Queries of an item. A KV head's queries share the reading of its pages, so they part only where threads lack work.
static int queries_of_item(int n, int chunks, int n_threads, bool split) {
  const int want = n_threads * (split ? 2 : 4);
  if (chunks >= want) return split ? n : TILE;
  const int cuts = (want + chunks - 1) / chunks, per = (n + cuts - 1) / cuts;
  if (per == 1 && n > 1 && chunks * ((n + 1) / 2) >= n_threads) return 2;
  return per >= TILE && !split ? TILE : per > 8 ? (per + 7) / 8 * 8 : per;
}

bool Job::plan_attention(int n_heads, int n_kv, int n_threads, bool split) {
  const int group = n_heads / n_kv;
  const auto splits_of = [&](int r) {
    return split ? (batch.n_past[r] + batch.row_start[r + 1] - batch.row_start[r] - 1) / (PAGE * SPLIT_PAGES) + 1 : 1;
  };
  int chunks = 0;
  for (int r = 0; r < batch.n_rows; r++) chunks += n_kv * splits_of(r);
  n_items = n_merges = n_parts = 0;
  for (int r = 0; r < batch.n_rows; r++) {
    const int n = (batch.row_start[r + 1] - batch.row_start[r]) * group, n_splits = splits_of(r);
    const int per = queries_of_item(n, chunks, n_threads, split), cuts = (n + per - 1) / per;
    if (!room(&items, &items_cap, n_items + cuts * n_kv * n_splits)) return false;
    if (n_splits > 1 && !room(&merges, &merges_cap, n_merges + cuts * n_kv)) return false;
    for (int h = 0; h < n_kv; h++)
      for (int c = 0; c < cuts; c++) {
        const int q0 = c * per, q1 = q0 + per < n ? q0 + per : n;
        if (n_splits == 1) {
          items[n_items++] = {r, h, q0, q1, -1, 0};
          continue;
        }
        merges[n_merges++] = {r, h, q0, q1, n_parts, n_splits};
        for (int s = 0; s < n_splits; s++, n_parts += q1 - q0) items[n_items++] = {r, h, q0, q1, s, n_parts};
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

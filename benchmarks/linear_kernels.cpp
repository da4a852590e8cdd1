// linear_kernels.cpp: speed of the CPU linear kernels on weights that lie in DRAM, and of prefill on a matrix in cache.
//
// Decode: one pass over ~600 MB of llama-1b shaped matrices with C columns, rows claimed in chunks of 64, against a pass that
// only reads the same bytes. Passes are interleaved, since shared hosts drift: trust the ratios. Prefill: GMAC/s, 512 columns.
// Build beside the library's objects (CMake leaves them under build/), e.g.
//   g++ -O3 -std=c++17 -pthread -mavx2 -I kernels_cpu/src benchmarks/linear_kernels.cpp OBJECTS -o linear_kernels
//   ./linear_kernels ISA [threads=2] [MB=600] [type ids...]
#include "kernels.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <sys/mman.h>

namespace {
struct TypeSize { int id; const char* name; int values, bytes, half[2]; };
const TypeSize TYPES[] = {
    {2, "Q4_0", 32, 18, {0, -1}},    {3, "Q4_1", 32, 20, {0, 2}},     {6, "Q5_0", 32, 22, {0, -1}},   {7, "Q5_1", 32, 24, {0, 2}},
    {8, "Q8_0", 32, 34, {0, -1}},    {20, "IQ4_NL", 32, 18, {0, -1}}, {39, "MXFP4", 32, 17, {-1, -1}}, {10, "Q2_K", 256, 84, {80, 82}},
    {11, "Q3_K", 256, 110, {108, -1}}, {12, "Q4_K", 256, 144, {0, 2}}, {13, "Q5_K", 256, 176, {0, 2}}, {14, "Q6_K", 256, 210, {208, -1}},
    {23, "IQ4_XS", 256, 136, {0, -1}}, {1, "F16", 1, 2, {0, -1}},     {30, "BF16", 1, 2, {0, -1}}};
struct Shape { int n, k; };
const Shape LAYER[] = {{2048, 2048}, {512, 2048}, {512, 2048}, {2048, 2048}, {8192, 2048}, {8192, 2048}, {2048, 8192}};

// CPU time of this thread: what other processes take from it does not count.
double cpu() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}
double median(std::vector<double> v) { std::sort(v.begin(), v.end()); return v[v.size() / 2]; }

uint8_t* arena(size_t bytes) {  // huge pages, as the engine's weights have
  const size_t two = size_t(2) << 20, n = (bytes + 3 * two) / two * two;
  void* p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint8_t* a = (uint8_t*)((uintptr_t(p) + two - 1) & ~uintptr_t(two - 1));
#if defined(MADV_HUGEPAGE)
  madvise(a, n - two, MADV_HUGEPAGE);
#endif
  return a;
}

struct Matrix { int k, tiles; size_t tile; const uint8_t* w; };

std::vector<Matrix> matrices(const er::Linear* l, const TypeSize& t, const Shape* shapes, int count, size_t target, size_t* total) {
  size_t layer = 0;
  for (int i = 0; i < count; i++) layer += l->tile_bytes(shapes[i].k) * size_t(shapes[i].n / l->tile_rows);
  const size_t layers = std::max<size_t>(1, target / layer);
  uint8_t* p = arena(layers * layer + 65536);
  *total = layers * layer;
  std::vector<Matrix> out;
  std::vector<uint8_t> file, tile;
  uint32_t seed = 12345;
  for (size_t y = 0; y < layers; y++)
    for (int i = 0; i < count; i++) {
      const size_t row = size_t(shapes[i].k / t.values) * size_t(t.bytes), size = l->tile_bytes(shapes[i].k);
      file.resize(row * size_t(l->tile_rows));
      for (auto& b : file) b = uint8_t((seed = seed * 1664525 + 1013904223) >> 24);
      const uint16_t h = 0x2000;
      for (size_t at = 0; at < file.size(); at += size_t(t.bytes))
        for (int f : t.half) if (f >= 0) memcpy(&file[at + size_t(f)], &h, 2);
      tile.resize(size);
      l->pack(file.data(), row, l->tile_rows, shapes[i].k, tile.data());
      out.push_back({shapes[i].k, shapes[i].n / l->tile_rows, size, p});
      for (int j = 0; j < out.back().tiles; j++, p += size) memcpy(p, tile.data(), size);
    }
  return out;
}

void read_only(const uint8_t* p, size_t n) {
#if defined(__AVX2__)
  __m256i s = _mm256_setzero_si256();
  for (size_t i = 0; i + 64 <= n; i += 64) {
    __builtin_prefetch(p + i + 4096, 0, 3);
    s = _mm256_add_epi32(s, _mm256_add_epi32(_mm256_loadu_si256((const __m256i*)(p + i)), _mm256_loadu_si256((const __m256i*)(p + i + 32))));
  }
  volatile int sink = _mm256_extract_epi32(s, 0);
#else
  uint64_t s = 0, x;
  for (size_t i = 0; i + 8 <= n; i += 8) { memcpy(&x, p + i, 8); s += x; }
  volatile uint64_t sink = s;
#endif
  (void)sink;
}

struct Inputs {
  std::vector<float> x, out;
  uint8_t* act;
  Inputs(const er::Linears& set, er::Act kind, int k, int m, int n) : x(size_t(k) * size_t(m)), out(size_t(n) * size_t(m)) {
    uint32_t seed = 99;
    for (auto& v : x) v = float(int32_t(seed = seed * 1664525 + 1013904223)) * 4e-10f;
    act = arena(set.act_bytes(kind, k, m));
    set.quantize(kind, x.data(), k, k, m, 0, m, act);
  }
};

// One pass over all matrices: f(matrix index, first tile, tiles) on `threads` threads, `chunk` tiles a claim. Returns the mean
// CPU time of the threads.
double pass(const std::vector<Matrix>& ms, int threads, int chunk, const std::function<void(size_t, int, int, int)>& f) {
  std::vector<std::atomic<int>> next(ms.size());
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<double> used(size_t(threads), 0);
  auto body = [&](int id) {
    ready++;
    while (!go) std::this_thread::yield();
    const double t0 = cpu();
    for (size_t i = 0; i < ms.size(); i++)
      for (int t; (t = next[i].fetch_add(chunk)) < ms[i].tiles;) f(i, t, std::min(chunk, ms[i].tiles - t), id);
    used[size_t(id)] = cpu() - t0;
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; i++) pool.emplace_back(body, i);
  while (ready < threads - 1) std::this_thread::yield();
  go = true;
  body(0);
  for (auto& t : pool) t.join();
  double sum = 0;
  for (double u : used) sum += u;
  return sum / threads;
}

void bench(const er::Isa* isa, const TypeSize& t, int threads, size_t target) {
  const er::Linears& set = isa->linear;
  const er::Linear* l = set.find(t.id);
  size_t bytes = 0;
  const auto ms = matrices(l, t, LAYER, 7, target, &bytes);
  const int chunk = 64 / l->tile_rows;
  const std::vector<int> columns = {1, 2, 4, 6, 8, 12, 16, 32};
  std::vector<std::vector<Inputs>> in(columns.size());
  for (size_t c = 0; c < columns.size(); c++)
    for (int k : {2048, 8192}) in[c].emplace_back(set, l->act, k, columns[c], 8192);
  std::vector<uint8_t*> scratch;
  for (int i = 0; i < threads; i++) scratch.push_back(arena(set.scratch_bytes(8192, 512)));
  std::vector<std::vector<double>> ratio(columns.size()), rate(columns.size() + 1);
  for (int rep = 0; rep < 6; rep++) {
    for (size_t c = 0; c < columns.size(); c++) {
      const double read = pass(ms, threads, chunk, [&](size_t i, int t0, int n, int) { read_only(ms[i].w + size_t(t0) * ms[i].tile, size_t(n) * ms[i].tile); });
      const double took = pass(ms, threads, chunk, [&](size_t i, int t0, int n, int id) {
        Inputs& x = in[c][ms[i].k == 8192];
        l->run(ms[i].w + size_t(t0) * ms[i].tile, n, x.act, ms[i].k, columns[c], x.out.data() + t0 * l->tile_rows, 8192, scratch[size_t(id)]);
      });
      if (!rep) continue;
      ratio[c].push_back(read / took);
      rate[c].push_back(double(bytes) / took * 1e-9);
      rate.back().push_back(double(bytes) / read * 1e-9);
    }
  }
  printf("%-7s %s x%d  read %5.1f GB/s |", t.name, isa->name, threads, median(rate.back()));
  for (size_t c = 0; c < columns.size(); c++) printf(" C%d %.1f (%.0f%%)", columns[c], median(rate[c]), 100 * median(ratio[c]));
  printf(" |");
  munmap((void*)ms[0].w, bytes);
  const Shape small[] = {{2048, 2048}};
  const auto one = matrices(l, t, small, 1, 1, &bytes);
  Inputs x(set, l->act, 2048, 512, 2048);
  std::vector<double> gmacs;
  for (int rep = 0; rep < 7; rep++)
    gmacs.push_back(2048.0 * 2048 * 512 * 1e-9 / pass(one, threads, chunk, [&](size_t i, int t0, int n, int id) {
      l->run(one[i].w + size_t(t0) * one[i].tile, n, x.act, 2048, 512, x.out.data() + t0 * l->tile_rows, 2048, scratch[size_t(id)]);
    }));
  double q = cpu();
  set.quantize(l->act, x.x.data(), 2048, 2048, 512, 0, 512, x.act);
  q = cpu() - q;
  std::vector<uint8_t> file(size_t(2048 / t.values) * size_t(t.bytes) * 2048, 0);
  std::vector<uint8_t> dst(l->tile_bytes(2048));
  double p = cpu();
  for (int r = 0; r < 2048; r += l->tile_rows) l->pack(&file[file.size() / 2048 * size_t(r)], file.size() / 2048, l->tile_rows, 2048, dst.data());
  p = cpu() - p;
  printf(" prefill %.0f GMAC/s (best %.0f), quantize %.2f GB/s of float, pack %.2f GB/s\n", median(gmacs), *std::max_element(gmacs.begin(), gmacs.end()),
         2048 * 512 * 4e-9 / q, double(file.size()) * 1e-9 / p);
  fflush(stdout);
}
}  // namespace

int main(int argc, char** argv) {
  const er::Isa* isa = argc > 1 ? er::find_isa(argv[1]) : er::isas()[0];
  if (!isa) return fprintf(stderr, "unknown instruction set %s\n", argv[1]), 1;
  const int threads = argc > 2 ? atoi(argv[2]) : 2;
  const size_t target = size_t(argc > 3 ? atoi(argv[3]) : 600) << 20;
  for (const TypeSize& t : TYPES) {
    bool wanted = argc <= 4;
    for (int i = 4; i < argc; i++) wanted |= atoi(argv[i]) == t.id;
    if (wanted) bench(isa, t, threads, target);
  }
}

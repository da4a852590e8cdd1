// os.cpp: Linux, macOS and Windows behind os.h.
#include "os.h"
#include <ctime>
#if defined(_WIN32)
#include <windows.h>
#else
#include <pthread.h>
#include <sys/mman.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace er {

#if defined(_WIN32)
void* alloc_pages(size_t bytes) { return VirtualAlloc(nullptr, bytes ? bytes : 1, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE); }
void free_pages(void* p, size_t) { if (p) VirtualFree(p, 0, MEM_RELEASE); }
#else
constexpr size_t HUGE_PAGE = size_t(2) << 20;

constexpr size_t UNIT = size_t(64) << 10;  // the largest page any of these systems has

static size_t rounded(size_t bytes) { return (bytes + UNIT) / UNIT * UNIT; }

// The end, which fills no huge page, stays on small ones: what nobody writes to takes no memory.
void* alloc_pages(size_t bytes) {
  const size_t n = rounded(bytes), extra = n >= HUGE_PAGE ? HUGE_PAGE : 0;
  void* p = mmap(nullptr, n + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (extra) {  // trim to alignment, so that free_pages can unmap exactly n
    const uintptr_t a = uintptr_t(p), b = (a + extra - 1) & ~uintptr_t(extra - 1);
    if (b > a) munmap(p, b - a);
    if (a + extra > b) munmap((void*)(b + n), a + extra - b);
    p = (void*)b;
#if defined(MADV_HUGEPAGE)
    madvise(p, n / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  }
  return p;
}
void free_pages(void* p, size_t bytes) { if (p) munmap(p, rounded(bytes)); }
#endif

int64_t now_ns() {
#if defined(_WIN32)
  LARGE_INTEGER f, t;
  QueryPerformanceFrequency(&f);
  QueryPerformanceCounter(&t);
  return int64_t(double(t.QuadPart) / double(f.QuadPart) * 1e9);
#else
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
#endif
}

void nap(int64_t ns) {
#if defined(_WIN32)
  Sleep(DWORD(ns / 1000000 + 1));
#else
  const timespec t = {time_t(ns / 1000000000), long(ns % 1000000000)};
  nanosleep(&t, nullptr);
#endif
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#if defined(__linux__)
int cpu_count() {
  cpu_set_t set;
  return sched_getaffinity(getpid(), sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}
void pin_thread(int cpu) {
  cpu_set_t set, one;
  if (sched_getaffinity(getpid(), sizeof set, &set) != 0) return;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set) && cpu-- == 0) CPU_SET(i, &one);
  if (CPU_COUNT(&one)) sched_setaffinity(0, sizeof one, &one);
}
#else
int cpu_count() { return 0; }
void pin_thread(int) {}
#endif

#if defined(__linux__)
void wait_on(std::atomic<uint32_t>* word, uint32_t value) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0); }
void wake_all(std::atomic<uint32_t>* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0); }
#elif defined(_WIN32)
void wait_on(std::atomic<uint32_t>* word, uint32_t value) { WaitOnAddress(word, &value, sizeof value, INFINITE); }
void wake_all(std::atomic<uint32_t>* word) { WakeByAddressAll(word); }
#else
// macOS has no public futex before 14.4: one mutex and condition for all words; sleeping is the rare path.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
void wait_on(std::atomic<uint32_t>* word, uint32_t value) {
  pthread_mutex_lock(&mutex);
  while (word->load() == value) pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
}
void wake_all(std::atomic<uint32_t>*) {
  pthread_mutex_lock(&mutex);
  pthread_cond_broadcast(&cond);
  pthread_mutex_unlock(&mutex);
}
#endif

}  // namespace er

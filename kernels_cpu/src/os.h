// os.h: the few things the operating system gives: pages, threads, a way to sleep until a number changes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace er {

// The library links no C++ runtime, so there is no operator new: objects are made in place. Null if there is no memory.
template <class T> T* make() {
  void* p = malloc(sizeof(T));
  return p ? ::new (p) T() : nullptr;
}
template <class T> void destroy(T* p) {
  if (!p) return;
  p->~T();
  free(p);
}

// Zeroed memory, 2 MiB aligned and on huge pages where it is big enough and the system has them. Null if there is none.
void* alloc_pages(size_t bytes);
void free_pages(void* p, size_t bytes);

int64_t now_ns();
void cpu_relax();
void nap(int64_t ns);  // sleep at least so long

// CPUs this process may run on; 0 if the system does not say. Tie the calling thread to one of them.
int cpu_count();
void pin_thread(int cpu);

// Sleep while *word == value; may return early. wake_all wakes every sleeper.
void wait_on(std::atomic<uint32_t>* word, uint32_t value);
void wake_all(std::atomic<uint32_t>* word);

}  // namespace er

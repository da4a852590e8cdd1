// simt.h: runs SIMT kernels on one CPU thread. Each thread of a block is a fiber; block barriers, warp operations and
// asynchronous copies have the meaning they have on a GPU, so a kernel that misuses them gives wrong numbers or an error here.
// A shim (cuda_shim.h) maps a kernel language onto this interface; simt.cpp is the engine. Needs C++20.
#pragma once
#include <stdint.h>
#include <string.h>

#include <bit>
#include <source_location>
#include <type_traits>

#if defined(__has_feature)
#define SIMT_HAS_FEATURE(x) __has_feature(x)
#else
#define SIMT_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || SIMT_HAS_FEATURE(address_sanitizer)
#define SIMT_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) || SIMT_HAS_FEATURE(thread_sanitizer)
#define SIMT_TSAN 1
#endif

namespace simt {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
using Where = std::source_location;

// The built-in variables, set whenever a thread goes on.
extern Dim thread_idx, block_idx, block_dim, grid_dim;
extern unsigned lane;                  // of the running thread in its warp of 32
extern unsigned char* dynamic_shared;  // of the running block

unsigned warp_mask();  // lanes that exist in the running warp: the last one may be short
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Waits for all threads of the block that have not ended. Threads that wait at different lines are an error.
void barrier(Where where);

// Called once all lanes of `mask` have come: args[i] is what lane i brought, null for lanes outside the mask.
using Resolve = void (*)(void** args, uint32_t mask);
// Waits for the lanes of `mask` at an operation of the same kind; the last to come resolves it for all.
void collective(uint32_t mask, int kind, void* arg, Resolve resolve, Where where);

// A copy lands when its thread waits for its group, so that a missing wait leaves what lay there before.
void copy_async(void* to, const void* from, unsigned bytes);
void copy_commit();
void copy_wait(int groups_left);

int add_kernel(const char* name, void (*body)(const void*), const unsigned* sizes, int n);

// 0 .. N - 1 as template arguments: <utility> and <cmath> take longer to read than a kernel does.
template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I>
struct Count<0, I...> {
  using Type = Indices<I...>;
};

// A kernel's entry in the table of a library: its name, and how it is called with an array of pointers to arguments.
template <auto F>
struct Entry;
template <class... A, void (*F)(A...)>
struct Entry<F> {
  template <size_t... I>
  static void call(void* const* args, Indices<I...>) {
    F(*static_cast<std::remove_reference_t<A>*>(args[I])...);
  }
  static void body(const void* args) { call(static_cast<void* const*>(args), typename Count<sizeof...(A)>::Type{}); }
  static int add(const char* name) {
    static const unsigned sizes[] = {unsigned(sizeof(A))..., 0};
    return add_kernel(name, &body, sizes, sizeof...(A));
  }
};

}  // namespace simt

#define SIMT_JOIN_(a, b) a##b
#define SIMT_JOIN(a, b) SIMT_JOIN_(a, b)
#define SIMT_KERNEL(name, ...) static int SIMT_JOIN(simt_entry_, __COUNTER__) = simt::Entry<(__VA_ARGS__)>::add(name);

// fiber.h: stacks and the switch between them, with what the sanitizers must be told.
#pragma once
#include <sys/mman.h>

#include <cstddef>

// The engine is never instrumented for threads itself; these say how the kernels were built.
#ifdef SIMT_KERNELS_ASAN
extern "C" void __sanitizer_start_switch_fiber(void**, const void*, size_t);
extern "C" void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
extern "C" void __asan_poison_memory_region(const volatile void*, size_t);
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
#endif
#ifdef SIMT_KERNELS_TSAN
extern "C" void* __tsan_create_fiber(unsigned);
extern "C" void* __tsan_get_current_fiber();
extern "C" void __tsan_switch_to_fiber(void*, unsigned);
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace simt {

#ifdef SIMT_KERNELS_TSAN
inline void acquire(void* p) { __tsan_acquire(p); }
inline void release(void* p) { __tsan_release(p); }
#else
inline void acquire(void*) {}
inline void release(void*) {}
#endif

#if defined(SIMT_KERNELS_ASAN) || defined(SIMT_KERNELS_TSAN)
constexpr size_t STACK = 256 << 10;
#else
constexpr size_t STACK = 64 << 10;
#endif
constexpr size_t GUARD = 16 << 10;  // never mapped: an overflow ends the process instead of spoiling a neighbour

}  // namespace simt

#if defined(__x86_64__)
extern "C" void simt_switch(void** save, void* to);
asm(R"(
.text
.p2align 4
.weak simt_switch
.hidden simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi); movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size simt_switch,.-simt_switch
)");
#elif defined(__aarch64__)
extern "C" void simt_switch(void** save, void* to);
#ifdef __APPLE__
#define SIMT_SYMBOL "_simt_switch"
#else
#define SIMT_SYMBOL "simt_switch"
#endif
asm(".text\n.p2align 2\n.globl " SIMT_SYMBOL "\n" SIMT_SYMBOL ":\n"
    "sub sp,sp,#160\nstp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\n"
    "ldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
#else
#include <ucontext.h>
#define SIMT_UCONTEXT 1
#endif

namespace simt {

struct Stack {
  void* sp = nullptr;  // where the fiber stopped
  char* low = nullptr;
#ifdef SIMT_UCONTEXT
  ucontext_t context;
#endif
#ifdef SIMT_KERNELS_TSAN
  void* tsan = nullptr;
#endif
#ifdef SIMT_KERNELS_ASAN
  void* fake = nullptr;
  const void* bottom = nullptr;  // the host's, learned at the first switch
  size_t size = 0;
#endif

  void start(void (*entry)()) {
    if (!low) {
      void* p = mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
      // A guard each would be two mappings each, of which a process has some 65 000 and every kernel's library keeps its fibers.
      // All run the same code, so the guard of one in sixteen finds a stack that is too small.
      static int made = 0;
      if (__atomic_fetch_add(&made, 1, __ATOMIC_RELAXED) % 16 == 0) mprotect(p, GUARD, PROT_NONE);
      low = static_cast<char*>(p) + GUARD;
#ifdef SIMT_KERNELS_TSAN
      tsan = __tsan_create_fiber(0);
#endif
    }
#ifdef SIMT_KERNELS_ASAN
    __asan_unpoison_memory_region(low, STACK);  // frames of a launch that was given up
    bottom = low, size = STACK, fake = nullptr;
#endif
#if defined(SIMT_UCONTEXT)
    getcontext(&context);
    context.uc_stack.ss_sp = low, context.uc_stack.ss_size = STACK, context.uc_link = nullptr;
    makecontext(&context, entry, 0);
#elif defined(__x86_64__)
    void** top = reinterpret_cast<void**>(low + STACK) - 3;  // rsp % 16 == 8 at entry
    *top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    sp = top;
#else
    void** top = reinterpret_cast<void**>(low + STACK) - 20;
    for (int i = 0; i < 20; ++i) top[i] = nullptr;
    top[11] = reinterpret_cast<void*>(entry);
    sp = top;
#endif
  }
};

// After a switch, and first thing in a new fiber. The first fiber of a launch learns the bounds of the host's stack.
inline void arrived(Stack* self, Stack* host) {
#ifdef SIMT_KERNELS_ASAN
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(self->fake, &bottom, &size);
  if (host && !host->bottom) host->bottom = bottom, host->size = size;
#else
  (void)self, (void)host;
#endif
}

inline void change(Stack* from, Stack* to) {
#ifdef SIMT_KERNELS_ASAN
  __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
#ifdef SIMT_KERNELS_TSAN
  __tsan_switch_to_fiber(to->tsan, 1);  // 1: a switch alone orders nothing
#endif
#ifdef SIMT_UCONTEXT
  swapcontext(&from->context, &to->context);
#else
  simt_switch(&from->sp, to->sp);
#endif
  arrived(from, nullptr);
}

}  // namespace simt

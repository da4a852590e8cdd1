// dispatch.cpp: which instruction sets this build holds and this machine can run.
#include "kernels.h"
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace er {
extern const Isa isa_generic;
#if defined(ER_HAVE_AMX)
extern const Isa isa_amx;
#endif
#if defined(ER_HAVE_AVX512VNNI)
extern const Isa isa_avx512vnni;
#endif
#if defined(ER_HAVE_AVXVNNI)
extern const Isa isa_avxvnni;
#endif
#if defined(ER_HAVE_AVX2)
extern const Isa isa_avx2;
#endif
#if defined(ER_HAVE_NEON)
extern const Isa isa_neon;
#endif

namespace {
struct Cpu { bool avx2 = false, avxvnni = false, avx512vnni = false, amx = false; };

#if defined(__x86_64__)
uint64_t enabled_state() {
  uint32_t lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (uint64_t(hi) << 32) | lo;
}

// Linux gives a process the tile registers on request only.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
#else
  return false;
#endif
}

Cpu detect() {
  Cpu cpu;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return cpu;
  const bool osxsave = c & (1u << 27), fma = c & (1u << 12), f16c = c & (1u << 29);
  if (!osxsave || !fma || !f16c) return cpu;
  const uint64_t state = enabled_state();
  if ((state & 0x6) != 0x6) return cpu;  // the OS saves ymm
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return cpu;
  cpu.avx2 = b & (1u << 5);
  const unsigned f_dq_bw_vl = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
  cpu.avx512vnni = cpu.avx2 && (state & 0xe6) == 0xe6 && (b & f_dq_bw_vl) == f_dq_bw_vl && (c & (1u << 11));
  const unsigned tile_int8 = (1u << 24) | (1u << 25);
  cpu.amx = cpu.avx512vnni && (c & (1u << 8)) /* GFNI */ && (d & tile_int8) == tile_int8 && (state & 0x60000) == 0x60000 && may_use_tiles();
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) cpu.avxvnni = cpu.avx2 && (a & (1u << 4));
  return cpu;
}
#else
Cpu detect() { return {}; }
#endif
}  // namespace

const Isa* const* isas() {
  static const Isa* list[7] = {};
  static const bool once = [] {
    const Cpu cpu = detect();
    int n = 0;
    (void)cpu;
#if defined(ER_HAVE_AMX)
    if (cpu.amx) list[n++] = &isa_amx;
#endif
#if defined(ER_HAVE_AVX512VNNI)
    if (cpu.avx512vnni) list[n++] = &isa_avx512vnni;
#endif
#if defined(ER_HAVE_AVXVNNI)
    if (cpu.avxvnni) list[n++] = &isa_avxvnni;
#endif
#if defined(ER_HAVE_AVX2)
    if (cpu.avx2) list[n++] = &isa_avx2;
#endif
#if defined(ER_HAVE_NEON)
    list[n++] = &isa_neon;
#endif
    list[n] = &isa_generic;
    return true;
  }();
  (void)once;
  return list;
}

const Isa* find_isa(const char* name) {
  for (const Isa* const* p = isas(); *p; p++)
    if (!strcmp((*p)->name, name)) return *p;
  return nullptr;
}
}  // namespace er

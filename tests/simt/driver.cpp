// driver.cpp: as much of the CUDA driver's interface as cuda.core needs, over host memory. Launches go to a function that a
// test registers; captured ones are kept and replayed, with arguments copied as the driver copies them. Built as libcuda.so.1.
//
// What is not here answers "not supported" and says its name on stderr. Memory starts as NaN.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

enum Result { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  void* attributes;
  unsigned n_attributes;
};
struct Kernel {
  std::string symbol;
  std::vector<unsigned> sizes;  // of its arguments
};
struct Recorded {
  LaunchConfig config;
  const Kernel* kernel;
  std::vector<std::vector<uint8_t>> args;
};
using Graph = std::vector<Recorded>;
struct Stream {
  Graph* capturing = nullptr;
};
// Grid, block, dynamic shared memory and the addresses of the arguments; 0 if it ran.
using Run = int (*)(const char* symbol, const unsigned* grid, const unsigned* block, unsigned shared, void** args);

std::vector<Kernel*> kernels;
Run run = nullptr;
size_t total = size_t(1) << 30, used = 0;
int n_events = 0;
int capability = 89, version = 13000, n_devices = 1;
thread_local void* current = nullptr;  // context
int context;

int launch(const LaunchConfig& c, const Kernel* k, void** args) {
  return run ? run(k->symbol.c_str(), c.grid, c.block, c.shared, args) : INVALID;
}

// Sizes lie before what is handed out, on a line of their own: addresses keep 256 bytes' alignment.
int take(void** out, size_t n, bool counted) {
  if (counted && n > total - used) return NO_MEMORY;
  auto* p = static_cast<uint8_t*>(aligned_alloc(256, (n + 511) / 256 * 256));
  if (!p) return NO_MEMORY;
  *reinterpret_cast<size_t*>(p) = counted ? n : 0;
  memset(p + 256, 0xff, n);
  if (counted) used += n;
  *out = p + 256;
  return OK;
}
int give(void* p) {
  auto* start = static_cast<uint8_t*>(p) - 256;
  used -= *reinterpret_cast<size_t*>(start);
  free(start);
  return OK;
}

// ---- the interface ----------------------------------------------------------------------------------------------------
int Init(unsigned) { return n_devices ? OK : NO_DEVICE; }
int DriverGetVersion(int* v) { return *v = version, OK; }
int GetErrorName(int e, const char** s) {
  *s = e == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : e == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
  return OK;
}
int GetErrorString(int, const char** s) { return *s = "an error of the emulated driver", OK; }
int DeviceGetCount(int* n) { return *n = n_devices, OK; }
int DeviceGet(int* d, int i) { return *d = i, i < n_devices ? OK : INVALID; }
int DeviceGetName(char* s, int n, int) { return snprintf(s, size_t(n), "Emulated GPU"), OK; }
int DeviceGetAttribute(int* v, int attribute, int) {
  // Compute capability, major and minor; a warp; limits that kernels keep far from.
  *v = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 10 ? 32 : 1024;
  return OK;
}
int DeviceGetUuid(void* u, int) { return memset(u, 1, 16), OK; }
int PrimaryCtxRetain(void** c, int) { return *c = &context, OK; }
int PrimaryCtxRelease(int) { return OK; }
int CtxGetCurrent(void** c) { return *c = current, OK; }
int CtxSetCurrent(void* c) { return current = c, OK; }
int CtxGetDevice(int* d) { return *d = 0, current ? OK : 201; }
int CtxGetDevice2(int* d, void*) { return *d = 0, OK; }
int StreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -1, OK; }
int StreamCreate(void** s, unsigned, int) { return *s = new Stream, current ? OK : 201; }
int StreamDestroy(void* s) { return delete static_cast<Stream*>(s), OK; }
int StreamSynchronize(void*) { return current ? OK : 201; }
int StreamGetCtx(void*, void** c) { return *c = &context, OK; }
int StreamGetCtx2(void*, void** c, void** green) { return *c = &context, *green = nullptr, OK; }
int StreamIsCapturing(void* s, int* status) {
  return *status = s && static_cast<Stream*>(s)->capturing ? 1 : 0, OK;
}
int StreamGetCaptureInfo(void* s, int* status, uint64_t* id, void** graph, const void*** nodes, const void**, size_t* n) {
  auto* stream = static_cast<Stream*>(s);
  *status = stream && stream->capturing ? 1 : 0;
  if (id) *id = 1;
  if (graph) *graph = stream ? stream->capturing : nullptr;
  if (nodes) *nodes = nullptr;
  if (n) *n = 0;
  return OK;
}
int StreamBeginCapture(void* s, int) { return static_cast<Stream*>(s)->capturing = new Graph, OK; }
int StreamEndCapture(void* s, void** graph) {
  *graph = static_cast<Stream*>(s)->capturing;
  static_cast<Stream*>(s)->capturing = nullptr;
  return OK;
}
int GraphInstantiate(void** exec, void* graph, void*) { return *exec = new Graph(*static_cast<Graph*>(graph)), OK; }
int GraphInstantiateFlags(void** exec, void* graph, uint64_t) { return GraphInstantiate(exec, graph, nullptr); }
int GraphDestroy(void* g) { return delete static_cast<Graph*>(g), OK; }
int GraphLaunch(void* exec, void*) {
  if (!current) return 201;
  for (auto& r : *static_cast<Graph*>(exec)) {
    std::vector<void*> args;
    for (auto& a : r.args) args.push_back(a.data());
    if (int e = launch(r.config, r.kernel, args.data())) return e;
  }
  return OK;
}
// Objects whose life follows a graph's: kept for good.
int UserObjectCreate(void** object, void*, void*, unsigned, unsigned) { return *object = &context, OK; }
int UserObjectRelease(void*, unsigned) { return OK; }
int GraphRetainUserObject(void*, void*, unsigned, unsigned) { return OK; }
int GraphReleaseUserObject(void*, void*, unsigned) { return OK; }
int LibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
  static const char elf[] = {0x7f, 'E', 'L', 'F'};
  return *library = &kernels, memcmp(code, elf, 4) ? INVALID : OK;
}
int LibraryUnload(void*) { return OK; }
int LibraryGetKernel(void** kernel, void*, const char* name) {
  for (auto* k : kernels)
    if (k->symbol == name) return *kernel = k, OK;
  return NOT_FOUND;
}
int KernelGetFunction(void** f, void* kernel) { return *f = kernel, OK; }
int KernelGetParamInfo(void* kernel, size_t i, size_t* at, size_t* size) {
  auto& sizes = static_cast<Kernel*>(kernel)->sizes;
  if (i >= sizes.size()) return INVALID;
  *at = 0;
  for (size_t j = 0; j < i; ++j) *at += sizes[j];
  if (size) *size = sizes[i];
  return OK;
}
int LaunchKernelEx(const LaunchConfig* c, void* f, void** args, void**) {
  if (!current) return 201;
  auto* stream = static_cast<Stream*>(c->stream);
  auto* k = static_cast<const Kernel*>(f);
  if (!stream->capturing) return launch(*c, k, args);
  Recorded r{*c, k, {}};
  for (size_t i = 0; i < k->sizes.size(); ++i) {
    auto* p = static_cast<uint8_t*>(args[i]);
    r.args.emplace_back(p, p + k->sizes[i]);
  }
  stream->capturing->push_back(std::move(r));
  return OK;
}
int LaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                 void* stream, void** args, void** extra) {
  LaunchConfig c{{gx, gy, gz}, {bx, by, bz}, shared, stream, nullptr, 0};
  return LaunchKernelEx(&c, f, args, extra);
}
int MemAlloc(uint64_t* p, size_t n) {
  void* out = nullptr;
  const int e = !current ? 201 : n ? take(&out, n, true) : INVALID;
  return *p = reinterpret_cast<uint64_t>(out), e;
}
int MemFree(uint64_t p) { return give(reinterpret_cast<void*>(p)); }
int MemAllocHost(void** p, size_t n) { return take(p, n, false); }
int MemFreeHost(void* p) { return give(p); }
int MemGetInfo(size_t* f, size_t* t) { return *f = total - used, *t = total, current ? OK : 201; }
int MemcpyHtoD(uint64_t dst, const void* src, size_t n, void*) {
  return memcpy(reinterpret_cast<void*>(dst), src, n), current ? OK : 201;
}
int MemcpyDtoH(void* dst, uint64_t src, size_t n, void*) {
  return memcpy(dst, reinterpret_cast<void*>(src), n), current ? OK : 201;
}
int MemcpyDtoD(uint64_t dst, uint64_t src, size_t n, void*) {
  return memcpy(reinterpret_cast<void*>(dst), reinterpret_cast<void*>(src), n), current ? OK : 201;
}
int MemsetD8(uint64_t dst, unsigned char v, size_t n, void*) {
  return memset(reinterpret_cast<void*>(dst), v, n), current ? OK : 201;
}

int EventCreate(void** event, unsigned) { return *event = new char, n_events++, current ? OK : 201; }
int EventRecord(void*, void*) { return current ? OK : 201; }
int EventSynchronize(void*) { return current ? OK : 201; }
int EventDestroy(void* event) { return delete static_cast<char*>(event), n_events--, OK; }

struct Entry {
  const char* name;
  void* function;
};
#define ENTRY(name, f) {"cu" name, reinterpret_cast<void*>(f)}
const Entry entries[] = {
    ENTRY("Init", Init), ENTRY("DriverGetVersion", DriverGetVersion), ENTRY("GetErrorName", GetErrorName),
    ENTRY("GetErrorString", GetErrorString), ENTRY("DeviceGetCount", DeviceGetCount), ENTRY("DeviceGet", DeviceGet),
    ENTRY("DeviceGetName", DeviceGetName), ENTRY("DeviceGetAttribute", DeviceGetAttribute),
    ENTRY("DeviceGetUuid", DeviceGetUuid), ENTRY("DevicePrimaryCtxRetain", PrimaryCtxRetain),
    ENTRY("DevicePrimaryCtxRelease", PrimaryCtxRelease), ENTRY("CtxGetCurrent", CtxGetCurrent),
    ENTRY("CtxSetCurrent", CtxSetCurrent), ENTRY("CtxGetDevice", CtxGetDevice), ENTRY("CtxGetDevice_v2", CtxGetDevice2),
    ENTRY("CtxGetStreamPriorityRange", StreamPriorityRange), ENTRY("StreamCreateWithPriority", StreamCreate),
    ENTRY("StreamDestroy", StreamDestroy), ENTRY("StreamSynchronize", StreamSynchronize),
    ENTRY("StreamGetCtx", StreamGetCtx), ENTRY("StreamGetCtx_v2", StreamGetCtx2),
    ENTRY("StreamIsCapturing", StreamIsCapturing), ENTRY("StreamGetCaptureInfo", StreamGetCaptureInfo),
    ENTRY("StreamBeginCapture", StreamBeginCapture), ENTRY("StreamEndCapture", StreamEndCapture),
    ENTRY("GraphInstantiateWithParams", GraphInstantiate), ENTRY("GraphInstantiate", GraphInstantiateFlags),
    ENTRY("GraphInstantiateWithFlags", GraphInstantiateFlags), ENTRY("GraphDestroy", GraphDestroy),
    ENTRY("GraphExecDestroy", GraphDestroy), ENTRY("GraphLaunch", GraphLaunch),
    ENTRY("UserObjectCreate", UserObjectCreate), ENTRY("UserObjectRelease", UserObjectRelease),
    ENTRY("GraphRetainUserObject", GraphRetainUserObject), ENTRY("GraphReleaseUserObject", GraphReleaseUserObject),
    ENTRY("LibraryLoadData", LibraryLoadData), ENTRY("LibraryUnload", LibraryUnload),
    ENTRY("LibraryGetKernel", LibraryGetKernel), ENTRY("KernelGetFunction", KernelGetFunction),
    ENTRY("KernelGetParamInfo", KernelGetParamInfo), ENTRY("LaunchKernelEx", LaunchKernelEx),
    ENTRY("LaunchKernel", LaunchKernel), ENTRY("MemAlloc", MemAlloc), ENTRY("MemFree", MemFree),
    ENTRY("MemAllocHost", MemAllocHost), ENTRY("MemFreeHost", MemFreeHost), ENTRY("MemGetInfo", MemGetInfo),
    ENTRY("MemcpyHtoDAsync", MemcpyHtoD), ENTRY("MemcpyDtoHAsync", MemcpyDtoH), ENTRY("MemcpyDtoDAsync", MemcpyDtoD),
    ENTRY("MemsetD8Async", MemsetD8), ENTRY("EventCreate", EventCreate), ENTRY("EventRecord", EventRecord),
    ENTRY("EventSynchronize", EventSynchronize), ENTRY("EventDestroy", EventDestroy),
};

// One function for each name that is not here, so that it can say which it is.
constexpr int MOST_MISSING = 1024;
std::string missing[MOST_MISSING];
int n_missing = 0;
template <int N>
int not_here() {
  fprintf(stderr, "driver.cpp lacks %s\n", missing[N].c_str());
  return NOT_SUPPORTED;
}
template <int... I>
void* nth(int i, std::integer_sequence<int, I...>) {
  static int (*const all[])() = {not_here<I>...};
  return reinterpret_cast<void*>(all[i]);
}

}  // namespace

extern "C" {
int cuGetProcAddress_v2(const char* name, void** out, int, uint64_t, int* status) {
  if (status) *status = 0;
  for (const auto& e : entries)
    if (!strcmp(e.name, name)) return *out = e.function, OK;
  if (n_missing == MOST_MISSING) return NOT_FOUND;
  missing[n_missing] = name;
  *out = nth(n_missing++, std::make_integer_sequence<int, MOST_MISSING>{});
  return OK;
}

// ---- what tests set -----------------------------------------------------------------------------------------------------
void emulate(int devices, int driver_version, int compute_capability, size_t memory) {
  n_devices = devices, version = driver_version, capability = compute_capability, total = memory;
}
void on_launch(Run f) { run = f; }
void add_kernel(const char* symbol, int n, const unsigned* sizes) {
  kernels.push_back(new Kernel{symbol, std::vector<unsigned>(sizes, sizes + n)});
}
size_t memory_used() { return used; }
int events() { return n_events; }
}

// What every exported function of the CPU library is marked with: C linkage, visible symbol.
#ifndef EDGERUN_API_H
#define EDGERUN_API_H

#if defined(_WIN32)
#define ER_API extern "C" __declspec(dllexport)
#else
#define ER_API extern "C" __attribute__((visibility("default")))
#endif

#endif

// isa_impl.h: included once by each isa_*.cpp, after ER_ISA is defined; everything below lives in that set's namespace.
#pragma once
#include "kernels.h"
#include "vec16.h"
#include "linear_impl.h"
#include "float_impl.h"

#define ER_STR2(x) #x
#define ER_STR(x) ER_STR2(x)
#define ER_CAT2(a, b) a##b
#define ER_CAT(a, b) ER_CAT2(a, b)

namespace er {
extern const Isa ER_CAT(isa_, ER_ISA);
const Isa ER_CAT(isa_, ER_ISA) = {ER_STR(ER_ISA), ER_ISA::linears, &ER_ISA::float_ops};
}  // namespace er

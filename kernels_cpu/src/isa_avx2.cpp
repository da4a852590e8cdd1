#define ER_ISA avx2
#include "isa_impl.h"

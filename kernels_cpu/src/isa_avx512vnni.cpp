#define ER_ISA avx512vnni
#include "isa_impl.h"

#define ER_ISA neon
#include "isa_impl.h"

#define ER_ISA generic
#include "isa_impl.h"

#define ER_ISA amx
#include "isa_impl.h"

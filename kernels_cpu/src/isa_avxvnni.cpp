#define ER_ISA avxvnni
#include "isa_impl.h"

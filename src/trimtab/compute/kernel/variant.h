// One variant of the kernels: REAL, EXP, LANES and NAME are defined by who includes it.
#include "classifier.h"
#include "program.h"
#undef LANES
#undef NAME

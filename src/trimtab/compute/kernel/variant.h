// One variant of the kernels. The including file defines REAL, EXP and the like, LANES and NAME.
#include "workspace.h"
#include "products.h"
#include "functions.h"
#include "network.h"
#include "program.h"
#undef WORKSPACE
#undef QUAD
#undef STRETCH
#undef PANEL
#undef DEPTH
#undef TILE
#undef PART
#undef LANES
#undef NAME

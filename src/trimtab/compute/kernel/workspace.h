// The memory of one thread; the sizes of all buffers are defined here only. Each buffer is a separate allocation, so
// that a sanitiser finds accesses beyond its end. Included once for each number type and vector width.

#define QUAD (LANES < 4 ? LANES : 4)
#define STRETCH (3 * LANES)
#define PANEL (2 * LANES)
#define DEPTH 392L  // inputs
#define TILE 512L   // samples
#define PART 2048L  // numbers of a vector

typedef struct {
  long tile;           // samples at a time
  REAL **output;       // (layers): outputs of each layer, (tile, outputs)
  REAL **slope;        // (layers): derivatives of the activations, like output; 0 if output determines them
  REAL **normed;       // (layers): rows before the weights of a LayerNorm, like output; 0 for none
  REAL *scale;         // (layers, tile): by which a LayerNorm multiplies each row
  REAL *targets;       // (tile, outputs)
  REAL *back[2];       // (tile, widest hidden layer): gradients with respect to layers' inputs, alternating
  REAL *packed;        // buffer of many_products and weights
  const REAL **rows;   // (tile): pointers to the rows of a layer's input
  REAL **registers;    // (registers): vectors of a program, (d)
  REAL *part;          // (PART): part of an output of a program
  void **allocations;  // all of the above
  long count;
  int failed;  // whether an allocation failed
} NAME(Workspace);
#define WORKSPACE NAME(Workspace)

static void *NAME(allocated)(WORKSPACE *w, size_t bytes) {
  void *memory = w->failed ? 0 : malloc(bytes ? bytes : 1);
  if (!memory) w->failed = 1;
  if (memory) w->allocations[w->count++] = memory;
  return memory;
}

static REAL *NAME(numbers)(WORKSPACE *w, long count) { return NAME(allocated)(w, count * sizeof(REAL)); }

// The size of `packed` for n samples and a layer of m outputs.
static long NAME(packing)(long n, long m) {
  const long panels = (m + PANEL - 1) / PANEL, groups = (m + 3) / 4;
  return MAX(PANEL * (DEPTH + n * panels), n * (4 * groups + STRETCH));
}

// Allocate the memory for n samples at a time and the registers of a program on vectors of length d.
static WORKSPACE NAME(workspace)(const Model *model, long n, long registers, long d) {
  WORKSPACE w = {.tile = n < TILE ? n : TILE};
  const long tile = w.tile, layers = model->layers;
  long most = 0, packing = 0;
  w.allocations = malloc((3 * layers + registers + 11) * sizeof(void *));
  w.failed = !w.allocations;
  w.output = NAME(allocated)(&w, layers * sizeof(REAL *));
  w.slope = NAME(allocated)(&w, layers * sizeof(REAL *));
  w.normed = NAME(allocated)(&w, layers * sizeof(REAL *));
  w.scale = NAME(numbers)(&w, layers * tile);
  for (long l = 0; l < layers; l++) {
    REAL *output = NAME(numbers)(&w, tile * model->sizes[l + 1]);
    REAL *slope = has_slope(model, l) ? NAME(numbers)(&w, tile * model->sizes[l + 1]) : 0;
    REAL *normed = model->eps[l] > 0 ? NAME(numbers)(&w, tile * model->sizes[l + 1]) : 0;
    if (!w.failed) w.output[l] = output, w.slope[l] = slope, w.normed[l] = normed;
    if (l + 1 < layers) most = MAX(most, model->sizes[l + 1]);
    packing = MAX(packing, NAME(packing)(tile, model->sizes[l + 1]));
  }
  w.targets = NAME(numbers)(&w, tile * model->sizes[layers]);
  for (int j = 0; j < 2; j++) w.back[j] = NAME(numbers)(&w, tile * most);
  w.packed = NAME(numbers)(&w, packing);
  w.rows = NAME(allocated)(&w, tile * sizeof(REAL *));
  w.registers = NAME(allocated)(&w, registers * sizeof(REAL *));
  for (long j = 0; j < registers; j++) {
    REAL *vector = NAME(numbers)(&w, d);
    if (!w.failed) w.registers[j] = vector;
  }
  w.part = NAME(numbers)(&w, PART);
  return w;
}

static void NAME(release)(WORKSPACE *w) {
  while (w->count > 0) free(w->allocations[--w->count]);
  free(w->allocations);
}

// Gradients and outputs of a network of linear layers, each with or without an activation, and a loss.
// The parameters are one vector in the order of nn.Sequential: the weight (out, in) of each layer, then its bias.
// Included after products.h and functions.h, once for each number type and vector width.

// Z (n, m) = activation(A W' + bias); slope, unless it is 0, receives the derivative. packed is a buffer for
// many_products.
static void NAME(forward)(const REAL *const *a, long n, const REAL *W, const REAL *bias, long d, long m, int activation,
                          REAL *Z, REAL *slope, REAL *packed) {
  if (m == 1)
    NAME(one_product)(a, n, W, d, Z);
  else if (n < 48)
    NAME(products)(a, n, W, d, m, Z);
  else
    NAME(many_products)(a, n, W, d, m, Z, packed);
  if (bias)
    for (long i = 0; i < n; i++)
      for (long c = 0; c < m; c++) Z[i * m + c] += bias[c];
  NAME(activate)(activation, n * m, Z, slope);
}

// Set pointers to n samples of a mini-batch, starting at `from`. rows = 0 means all `length` samples in order.
static int NAME(samples)(const REAL *X, const int64_t *rows, long from, long n, long length, long d,
                         const REAL **pointers, Trouble *trouble) {
  for (long i = 0; i < n; i++) {
    int64_t row = rows ? rows[from + i] : from + i;
    if (!is_below(row, length)) {
      trouble->value = row;
      return BAD_ROW;
    }
    pointers[i] = X + row * d;
  }
  return FINE;
}

// Compute all layers for the n samples at w->rows; slopes only for a gradient. `last` receives the outputs of the
// last layer.
static void NAME(forward_pass)(const Model *model, const REAL *x, const long *start, long n, WORKSPACE *w, REAL *last,
                               int slopes) {
  const long L = model->layers, *sizes = model->sizes;
  for (long l = 0; l < L; l++) {
    for (long i = 0; l && i < n; i++) w->rows[i] = w->output[l - 1] + i * sizes[l];
    const REAL *bias = model->biased[l] ? x + start[l + 1] - sizes[l + 1] : 0;
    NAME(forward)(w->rows, n, x + start[l], bias, sizes[l], sizes[l + 1], model->activation[l],
                  l + 1 < L ? w->output[l] : last, slopes ? w->slope[l] : 0, w->packed);
  }
}

// Multiply G, the gradient with respect to an activation, by the slope: the gradient with respect to its argument.
static void NAME(through)(const REAL *slope, long n, REAL *G) {
  if (slope) EACH(t, 0, n) G[t] *= slope[t];
}

// out = the gradient at x of the mean loss over n rows of X and y (rows = 0: all of them).
// Returns FINE or the kind of error.
static int NAME(gradient)(const Model *model, const REAL *x, const REAL *X, const void *y, const int64_t *rows, long n,
                          long length, REAL *out, WORKSPACE *w, Trouble *trouble) {
  if (n < 1) return BAD_ROW;
  const long L = model->layers, *sizes = model->sizes;
  long start[L + 1];
  starts(model, start);
  for (long from = 0; from < n; from += w->tile) {
    long tile = n - from < w->tile ? n - from : w->tile;
    int wrong = NAME(samples)(X, rows, from, tile, length, sizes[0], w->rows, trouble);
    if (wrong) return wrong;
    REAL *G = w->output[L - 1];
    NAME(forward_pass)(model, x, start, tile, w, G, 1);
    if (model->loss == CROSS_ENTROPY)
      wrong = NAME(cross_entropy)(G, y, rows, from, tile, length, sizes[L], n, trouble);
    else
      wrong = NAME(elementwise)(model, G, y, rows, from, tile, length, sizes[L], n, w->targets, trouble);
    if (wrong) return wrong;
    NAME(through)(w->slope[L - 1], tile * sizes[L], G);
    for (long l = L - 1; l >= 0; l--) {
      for (long i = 0; l && i < tile; i++) w->rows[i] = w->output[l - 1] + i * sizes[l];
      if (!l) wrong = NAME(samples)(X, rows, from, tile, length, sizes[0], w->rows, trouble);
      if (wrong) return wrong;
      const long m = sizes[l + 1];
      if (m == 1)
        NAME(one_weight)(G, w->rows, tile, sizes[l], from > 0, out + start[l]);
      else
        NAME(weights)(G, w->rows, tile, sizes[l], m, from > 0, out + start[l], w->packed);
      if (model->biased[l]) NAME(biases)(G, tile, m, from > 0, out + start[l + 1] - m);
      if (l) {
        REAL *next = w->back[l % 2];
        int relu = model->activation[l - 1] == RELU;
        NAME(backward)(G, x + start[l], w->output[l - 1], tile, sizes[l], m, relu, next);
        NAME(through)(w->slope[l - 1], tile * sizes[l], next);
        G = next;
      }
    }
  }
  if (model->l2)
    for (long t = 0; t < start[L]; t++) out[t] += (REAL)model->l2 * x[t];
  return FINE;
}

typedef struct {
  Pieces pieces;
  const Model *model;
  const REAL *x, *X;
  long n, size;
  REAL *out;
} NAME(Outputs);

static void *NAME(some_outputs)(void *job) {
  NAME(Outputs) *o = job;
  const long *sizes = o->model->sizes;
  long start[o->model->layers + 1];
  starts(o->model, start);
  WORKSPACE w = NAME(workspace)(o->model, o->size, 0, 0);
  if (w.failed) o->pieces.failed = 1;
  for (long p; !w.failed && (p = next_piece(&o->pieces)) >= 0;) {
    long from = p * o->size, n = o->n - from < o->size ? o->n - from : o->size;
    for (long i = 0; i < n; i++) w.rows[i] = o->X + (from + i) * sizes[0];
    NAME(forward_pass)(o->model, o->x, start, n, &w, o->out + from * sizes[o->model->layers], 0);
  }
  NAME(release)(&w);
  return 0;
}

// out (n, outputs) = the outputs of the network at x for all n rows of X. Returns 0, or 1 if memory ran out.
int NAME(outputs)(const Model *model, const REAL *x, const REAL *X, long n, REAL *out, int threads) {
  NAME(Outputs) job = {{(n + 255) / 256, 0, 0}, model, x, X, n, 256, out};
  on_threads(threads, NAME(some_outputs), &job, job.pieces.pieces);
  return job.pieces.failed;
}

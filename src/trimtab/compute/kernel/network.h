// Gradients and outputs of a network of linear layers, each with or without an activation, and a loss.
// The parameters are one vector in the order of nn.Sequential: the weight (out, in) of each layer, then its bias.
// Included after products.h and functions.h, once for each number type and vector width.

// Z (n, m) = the LayerNorm of its rows. weights (2, m) multiply and are added; normed (n, m) and scale (n) receive what
// norm_back needs.
static void NAME(norm)(long n, long m, double eps, const REAL *weights, REAL *Z, REAL *normed, REAL *scale) {
  for (long i = 0; i < n; i++) {
    REAL *z = Z + i * m, *h = normed + i * m, mean = 0, square = 0;
    for (long c = 0; c < m; c++) mean += z[c];
    mean /= m;
    EACH(c, 0, m) h[c] = z[c] - mean;
    for (long c = 0; c < m; c++) square += h[c] * h[c];
    const REAL s = scale[i] = 1 / SQRT(square / m + (REAL)eps);
    EACH(c, 0, m) h[c] *= s, z[c] = h[c] * weights[c] + weights[m + c];
  }
}

// G (n, m), the gradient with respect to the LayerNorm's output, becomes that with respect to its input.
// dweights (2, m) = the gradient with respect to its weights, or dweights += this if `add`.
static void NAME(norm_back)(long n, long m, const REAL *weights, const REAL *normed, const REAL *scale, int add,
                            REAL *G, REAL *dweights) {
  for (long c = 0; !add && c < 2 * m; c++) dweights[c] = 0;
  for (long i = 0; i < n; i++) {
    REAL *g = G + i * m, mean = 0, along = 0;  // along: the part of the gradient in the direction of the row
    const REAL *h = normed + i * m;
    EACH(c, 0, m) dweights[c] += g[c] * h[c], dweights[m + c] += g[c], g[c] *= weights[c];
    for (long c = 0; c < m; c++) mean += g[c], along += g[c] * h[c];
    mean /= m, along /= m;
    const REAL s = scale[i];
    EACH(c, 0, m) g[c] = s * (g[c] - mean - h[c] * along);
  }
}

// Z (n, m) = activation(A W' + bias), or activation(norm(A W' + bias)), where A is the input of layer l; slope, unless
// it is 0, receives the derivative.
static void NAME(forward)(const Model *model, const REAL *x, const long *start, long l, long n, WORKSPACE *w, REAL *Z,
                          REAL *slope) {
  const REAL *const *a = w->rows, *W = x + start[l], *bias = W + model->sizes[l] * model->sizes[l + 1];
  const long d = model->sizes[l], m = model->sizes[l + 1];
  if (m == 1)
    NAME(one_product)(a, n, W, d, Z);
  else if (n < 48)
    NAME(products)(a, n, W, d, m, Z);
  else
    NAME(many_products)(a, n, W, d, m, Z, w->packed);
  if (model->biased[l])
    for (long i = 0; i < n; i++)
      for (long c = 0; c < m; c++) Z[i * m + c] += bias[c];
  if (model->eps[l] > 0)
    NAME(norm)(n, m, model->eps[l], x + start[l + 1] - 2 * m, Z, w->normed[l], w->scale + l * w->tile);
  NAME(activate)(model->activation[l], n * m, Z, slope);
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
    NAME(forward)(model, x, start, l, n, w, l + 1 < L ? w->output[l] : last, slopes ? w->slope[l] : 0);
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
      const long m = sizes[l + 1], weights = start[l + 1] - 2 * m;
      if (model->eps[l] > 0)
        NAME(norm_back)(tile, m, x + weights, w->normed[l], w->scale + l * w->tile, from > 0, G, out + weights);
      if (m == 1)
        NAME(one_weight)(G, w->rows, tile, sizes[l], from > 0, out + start[l]);
      else
        NAME(weights)(G, w->rows, tile, sizes[l], m, from > 0, out + start[l], w->packed);
      if (model->biased[l]) NAME(biases)(G, tile, m, from > 0, out + start[l] + sizes[l] * m);
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

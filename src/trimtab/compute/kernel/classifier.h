// The gradient of a classifier made of linear layers, with ReLU between some of them, and cross-entropy.
// Its parameters are one vector in nn.Sequential's order: each layer's weight (out, in), then its bias.
// Included once for each number type and vector width: REAL, EXP, LANES (numbers in a vector) and NAME(f),
// which gives f their suffix, are defined there.

typedef REAL NAME(vec) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL))));

#define STRETCH (3 * LANES)
#define PANEL (2 * LANES)
#define DEPTH 392L  // inputs
#define TILE 512L   // samples

static inline NAME(vec) NAME(load)(const REAL *p) { return *(const NAME(vec) *)p; }

static inline REAL NAME(sum)(NAME(vec) v) {
  REAL s = 0;
  for (int j = 0; j < LANES; j++) s += v[j];
  return s;
}

// z[q][c] = a[q] . w[c] for 4 samples and up to 3 outputs: 12 accumulators fill the registers.
static inline void NAME(dots)(const REAL *const *a, const REAL *w, long d, int outputs, REAL z[4][3]) {
  NAME(vec) acc[4][3] = {0};
  const REAL *w0 = w, *w1 = outputs > 1 ? w + d : w, *w2 = outputs > 2 ? w + 2 * d : w;
  long k = 0;
  for (; k + LANES <= d; k += LANES) {
    NAME(vec) v0 = NAME(load)(w0 + k), v1 = NAME(load)(w1 + k), v2 = NAME(load)(w2 + k);
    for (int q = 0; q < 4; q++) {
      NAME(vec) v = NAME(load)(a[q] + k);
      acc[q][0] += v * v0;
      acc[q][1] += v * v1;
      acc[q][2] += v * v2;
    }
  }
  for (int q = 0; q < 4; q++) {
    for (int c = 0; c < 3; c++) z[q][c] = NAME(sum)(acc[q][c]);
    for (long t = k; t < d; t++) {
      z[q][0] += a[q][t] * w0[t];
      z[q][1] += a[q][t] * w1[t];
      z[q][2] += a[q][t] * w2[t];
    }
  }
}

// Z (n, m) = A W', the rows of A given by pointers; W is (m, d). For few samples.
static void NAME(products)(const REAL *const *a, long n, const REAL *W, long d, long m, REAL *Z) {
  for (long r = 0; r < n; r += 8) {  // 8 samples stay in the first-level cache
    const REAL *x[8];
    for (int q = 0; q < 8; q++) x[q] = a[r + q < n ? r + q : r];
    for (int q = 8; q < 16 && r + q < n; q++)  // the next 8 are on their way meanwhile
      for (long t = 0; t < d; t += 64 / (long)sizeof(REAL)) __builtin_prefetch(a[r + q] + t);
    for (long c = 0; c < m; c += 3) {
      int outputs = m - c < 3 ? (int)(m - c) : 3;
      for (int h = 0; h < 8 && r + h < n; h += 4) {
        REAL z[4][3];
        NAME(dots)(x + h, W + c * d, d, outputs, z);
        for (int q = 0; q < 4 && r + h + q < n; q++)
          for (int j = 0; j < outputs; j++) Z[(r + h + q) * m + c + j] = z[q][j];
      }
    }
  }
}

// The same for many samples: PANEL outputs and DEPTH inputs of W at a time, transposed.
// packed holds (m + PANEL) * n + PANEL * DEPTH numbers.
static void NAME(many_products)(const REAL *const *a, long n, const REAL *W, long d, long m, REAL *Z, REAL *packed) {
  const long panels = (m + PANEL - 1) / PANEL;
  REAL *P = packed, *T = packed + PANEL * DEPTH;  // W transposed (DEPTH, PANEL); Z as (panels, n, PANEL)
  for (long k = 0; k < d; k += DEPTH) {
    long depth = d - k < DEPTH ? d - k : DEPTH;
    for (long p = 0; p < panels; p++) {
      for (long c = 0; c < PANEL; c++) {
        const REAL *w = W + (p * PANEL + c) * d + k;
        for (long t = 0; t < depth; t++) P[t * PANEL + c] = p * PANEL + c < m ? w[t] : 0;
      }
      for (long r = 0; r < n; r += 6) {
        const REAL *x[6];
        for (int q = 0; q < 6; q++) x[q] = a[r + q < n ? r + q : r] + k;
        for (int q = 12; q < 18 && p == 0 && r + q < n; q++)  // samples after the next are on their way
          for (long t = 0; t < depth; t += 64 / (long)sizeof(REAL)) __builtin_prefetch(a[r + q] + k + t);
        NAME(vec) acc[6][2] = {0};
        for (long t = 0; t < depth; t++) {
          NAME(vec) w0 = NAME(load)(P + t * PANEL), w1 = NAME(load)(P + t * PANEL + LANES);
          for (int q = 0; q < 6; q++) {
            acc[q][0] += x[q][t] * w0;
            acc[q][1] += x[q][t] * w1;
          }
        }
        for (int q = 0; q < 6 && r + q < n; q++)
          for (int j = 0; j < 2; j++) {
            NAME(vec) *to = (NAME(vec) *)(T + (p * n + r + q) * PANEL + j * LANES);
            *to = k ? *to + acc[q][j] : acc[q][j];
          }
      }
    }
  }
  for (long p = 0; p < panels; p++)
    for (long i = 0; i < n; i++)
      for (long c = 0; c < PANEL && p * PANEL + c < m; c++) Z[i * m + p * PANEL + c] = T[(p * n + i) * PANEL + c];
}

// Z (n, m) = A W' + bias, and a ReLU of it. packed is room for many_products.
static void NAME(forward)(const REAL *const *a, long n, const REAL *W, const REAL *bias, long d, long m, int relu,
                          REAL *Z, REAL *packed) {
  if (n < 48)
    NAME(products)(a, n, W, d, m, Z);
  else
    NAME(many_products)(a, n, W, d, m, Z, packed);
  if (bias)
    for (long i = 0; i < n; i++)
      for (long c = 0; c < m; c++) Z[i * m + c] += bias[c];
  if (relu)
    for (long t = 0; t < n * m; t++) Z[t] = Z[t] < 0 ? 0 : Z[t];
}

// dW (m, d) = G' A, or added to it; dbias likewise. G is (n, m), the rows of A are given by pointers.
// packed holds n * (m rounded up to 4 + STRETCH) numbers.
static void NAME(weights)(const REAL *G, const REAL *const *a, long n, long d, long m, int add, REAL *dW, REAL *dbias,
                          REAL *packed) {
  const long groups = (m + 3) / 4;
  REAL *P = packed + groups * 4 * n;  // (n, STRETCH): a stretch of the inputs
  for (long g = 0; g < groups; g++)   // G as (groups of 4 outputs, n, 4)
    for (long i = 0; i < n; i++)
      for (int q = 0; q < 4; q++) packed[(g * n + i) * 4 + q] = 4 * g + q < m ? G[i * m + 4 * g + q] : 0;
  for (long k = 0; k < d; k += STRETCH) {
    long width = d - k < STRETCH ? d - k : STRETCH;
    for (long i = 0; i < n; i++) {
      if (width == STRETCH)
        memcpy(P + i * STRETCH, a[i] + k, STRETCH * sizeof(REAL));
      else
        for (long t = 0; t < STRETCH; t++) P[i * STRETCH + t] = t < width ? a[i][k + t] : 0;
    }
    for (long g = 0; g < groups; g++) {
      NAME(vec) acc[4][3] = {0};
      const REAL *p = P, *e = packed + g * 4 * n;
      for (long i = 0; i < n; i++, p += STRETCH, e += 4) {
        NAME(vec) p0 = NAME(load)(p), p1 = NAME(load)(p + LANES), p2 = NAME(load)(p + 2 * LANES);
        for (int q = 0; q < 4; q++) {
          acc[q][0] += e[q] * p0;
          acc[q][1] += e[q] * p1;
          acc[q][2] += e[q] * p2;
        }
      }
      for (int q = 0; q < 4 && 4 * g + q < m; q++) {
        REAL *to = dW + (4 * g + q) * d + k;
        if (width == STRETCH)
          for (int j = 0; j < 3; j++) {
            NAME(vec) *v = (NAME(vec) *)(to + j * LANES);
            *v = add ? *v + acc[q][j] : acc[q][j];
          }
        else
          for (long t = 0; t < width; t++) to[t] = (add ? to[t] : 0) + acc[q][t / LANES][t % LANES];
      }
    }
  }
  if (dbias)
    for (long c = 0; c < m; c++) {
      REAL s = add ? dbias[c] : 0;
      for (long i = 0; i < n; i++) s += G[i * m + c];
      dbias[c] = s;
    }
}

// H (n, d) = G W, zero where the layer's input A (n, d) is not positive, if a ReLU made it.
static void NAME(backward)(const REAL *G, const REAL *W, const REAL *A, long n, long d, long m, int relu, REAL *H) {
  for (long r = 0; r < n; r += 4) {
    const REAL *g[4];
    for (int q = 0; q < 4; q++) g[q] = G + (r + q < n ? r + q : r) * m;
    for (long k = 0; k < d; k += STRETCH) {
      long width = d - k < STRETCH ? d - k : STRETCH;
      NAME(vec) acc[4][3] = {0};
      if (width == STRETCH)
        for (long c = 0; c < m; c++) {
          const REAL *w = W + c * d + k;
          NAME(vec) w0 = NAME(load)(w), w1 = NAME(load)(w + LANES), w2 = NAME(load)(w + 2 * LANES);
          for (int q = 0; q < 4; q++) {
            acc[q][0] += g[q][c] * w0;
            acc[q][1] += g[q][c] * w1;
            acc[q][2] += g[q][c] * w2;
          }
        }
      else
        for (int q = 0; q < 4; q++)
          for (long c = 0; c < m; c++)
            for (long t = 0; t < width; t++) ((REAL *)acc[q])[t] += g[q][c] * W[c * d + k + t];
      for (int q = 0; q < 4 && r + q < n; q++)
        for (long t = 0; t < width; t++) {
          long at = (r + q) * d + k + t;
          H[at] = relu && !(A[at] > 0) ? 0 : ((REAL *)acc[q])[t];
        }
    }
  }
}

// The n samples from `from` on of those in a mini-batch (of all: rows = 0), out of `length`.
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

// Z (n, C) = (softmax(Z) - one hot) / total, for the same samples.
static int NAME(cross_entropy)(REAL *Z, const int64_t *y, const int64_t *rows, long from, long n, long length, long C,
                               long total, Trouble *trouble) {
  for (long i = 0; i < n; i++) {
    int64_t row = rows ? rows[from + i] : from + i, label = is_below(row, length) ? y[row] : 0;
    if (!is_below(row, length) || !is_below(label, C)) {
      trouble->sample = row, trouble->value = label;
      return is_below(row, length) ? BAD_LABEL : BAD_ROW;
    }
    REAL *z = Z + i * C, most = z[0], s = 0;
    for (long c = 1; c < C; c++) most = z[c] > most ? z[c] : most;
    for (long c = 0; c < C; c++) {
      z[c] = EXP(z[c] - most);
      s += z[c];
    }
    REAL scale = 1 / (s * total);
    for (long c = 0; c < C; c++) z[c] *= scale;
    z[label] -= (REAL)1 / total;
  }
  return FINE;
}

// How many numbers of work `gradient` and `outputs` need for n samples.
static long NAME(work)(const Model *model, long n) {
  long tile = n < TILE ? n : TILE, outputs = 0, most = 0;
  for (long l = 1; l <= model->layers; l++) {
    outputs += model->sizes[l];
    if (model->sizes[l] > most) most = model->sizes[l];
  }
  return tile * (outputs + 2 * most) + tile * (most + PANEL + STRETCH) + PANEL * DEPTH;
}

// out = the gradient at x of the mean cross-entropy over the n given rows of X (all of them: rows = 0).
// Returns FINE, or what is wrong.
static int NAME(gradient)(const Model *model, const REAL *x, const REAL *X, const int64_t *y, const int64_t *rows,
                          long n, long length, REAL *out, REAL *work, const REAL **pointers, Trouble *trouble) {
  if (n < 1) return BAD_ROW;
  const long L = model->layers, *sizes = model->sizes;
  const REAL *W[L], *bias[L], *input[L];  // parameters of each layer, and what it gets (the first: X itself)
  REAL *dW[L], *dbias[L];
  long most = 0, d = 0, room = 0;
  for (long l = 0; l < L; l++) {
    W[l] = x + d, dW[l] = out + d;
    d += sizes[l] * sizes[l + 1];
    bias[l] = model->biased[l] ? x + d : 0, dbias[l] = model->biased[l] ? out + d : 0;
    d += model->biased[l] ? sizes[l + 1] : 0;
    if (sizes[l + 1] > most) most = sizes[l + 1];
    room += sizes[l + 1];
  }
  room = (n < TILE ? n : TILE) * (room + 2 * most);
  for (long from = 0; from < n; from += TILE) {
    long tile = n - from < TILE ? n - from : TILE;
    int wrong = NAME(samples)(X, rows, from, tile, length, sizes[0], pointers, trouble);
    if (wrong) return wrong;
    REAL *packed = work + room, *Z = work, *G, *H;
    for (long l = 0; l < L; l++) {
      for (long i = 0; l && i < tile; i++) pointers[i] = input[l] + i * sizes[l];
      NAME(forward)(pointers, tile, W[l], bias[l], sizes[l], sizes[l + 1], model->relu[l], Z, packed);
      if (l + 1 < L) input[l + 1] = Z, Z += tile * sizes[l + 1];
    }
    wrong = NAME(cross_entropy)(Z, y, rows, from, tile, length, sizes[L], n, trouble);
    if (wrong) return wrong;
    G = Z;
    H = Z + tile * sizes[L];  // two buffers in turn
    for (long l = L - 1; l >= 0; l--) {
      for (long i = 0; l && i < tile; i++) pointers[i] = input[l] + i * sizes[l];
      if (!l) wrong = NAME(samples)(X, rows, from, tile, length, sizes[0], pointers, trouble);
      if (wrong) return wrong;
      NAME(weights)(G, pointers, tile, sizes[l], sizes[l + 1], from > 0, dW[l], dbias[l], packed);
      if (l) {
        REAL *next = H + (l % 2) * tile * most;
        NAME(backward)(G, W[l], input[l], tile, sizes[l], sizes[l + 1], model->relu[l - 1], next);
        G = next;
      }
    }
  }
  if (model->l2)
    for (long t = 0; t < d; t++) out[t] += (REAL)model->l2 * x[t];
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
  const long L = o->model->layers, *sizes = o->model->sizes;
  long hidden = 0;
  for (long l = 1; l < L; l++) hidden += sizes[l];
  REAL *work = malloc(NAME(work)(o->model, o->size) * sizeof(REAL));
  const REAL **pointers = malloc(o->size * sizeof(REAL *));
  if (!work || !pointers) o->pieces.failed = 1;
  for (long p; work && pointers && (p = next_piece(&o->pieces)) >= 0;) {
    long from = p * o->size, tile = o->n - from < o->size ? o->n - from : o->size;
    const REAL *W = o->x, *input = 0;
    REAL *Z = work, *packed = work + o->size * hidden;
    for (long l = 0; l < L; l++) {
      const REAL *bias = W + sizes[l] * sizes[l + 1];
      for (long i = 0; i < tile; i++) pointers[i] = l ? input + i * sizes[l] : o->X + (from + i) * sizes[0];
      NAME(forward)(pointers, tile, W, o->model->biased[l] ? bias : 0, sizes[l], sizes[l + 1], o->model->relu[l],
                    l + 1 < L ? Z : o->out + from * sizes[L], packed);
      input = Z, Z += l + 1 < L ? tile * sizes[l + 1] : 0;
      W = bias + (o->model->biased[l] ? sizes[l + 1] : 0);
    }
  }
  free(work), free(pointers);
  return 0;
}

// out (n, classes) = what the classifier says at x of all n rows of X. Returns 0, or 1 if there is no memory.
int NAME(outputs)(const Model *model, const REAL *x, const REAL *X, long n, REAL *out, int threads) {
  NAME(Outputs) job = {{(n + 255) / 256, 0, 0}, model, x, X, n, 256, out};
  on_threads(threads, NAME(some_outputs), &job, job.pieces.pieces);
  return job.pieces.failed;
}

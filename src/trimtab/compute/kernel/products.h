// Matrix products of a layer: inputs times weights, gradients times inputs, gradients times weights.
// Included once for each number type and vector width, which define REAL, LANES (numbers in a vector) and NAME(f),
// which appends the suffix of the variant to f.

typedef REAL NAME(vec) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL))));

static inline NAME(vec) NAME(load)(const REAL *p) { return *(const NAME(vec) *)p; }

static inline REAL NAME(sum)(NAME(vec) v) {
  REAL s = 0;
  for (int j = 0; j < LANES; j++) s += v[j];
  return s;
}

// A short vector for the remainder of a row.
typedef REAL NAME(quad) __attribute__((vector_size(QUAD * sizeof(REAL)), aligned(sizeof(REAL))));

static inline NAME(quad) NAME(load_quad)(const REAL *p) { return *(const NAME(quad) *)p; }

static inline REAL NAME(sum_quad)(NAME(quad) v) {
  REAL s = 0;
  for (int j = 0; j < QUAD; j++) s += v[j];
  return s;
}

// z[q][c] = a[q] . w[c] for 4 samples and up to 3 outputs: their 12 accumulators fill the registers.
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

// z (n) = A w for a layer of one output; a has pointers to the rows of A.
static void NAME(one_product)(const REAL *const *a, long n, const REAL *w, long d, REAL *z) {
  for (long r = 0; r < n; r += 4) {
    const REAL *x[4];
    for (int q = 0; q < 4; q++) x[q] = a[r + q < n ? r + q : r];
    NAME(vec) acc[4] = {0};
    NAME(quad) rest[4] = {0};
    REAL total[4];
    long k = 0;
    for (; k + LANES <= d; k += LANES)
      for (int q = 0; q < 4; q++) acc[q] += NAME(load)(x[q] + k) * NAME(load)(w + k);
    for (; k + QUAD <= d; k += QUAD)
      for (int q = 0; q < 4; q++) rest[q] += NAME(load_quad)(x[q] + k) * NAME(load_quad)(w + k);
    for (int q = 0; q < 4; q++) total[q] = NAME(sum)(acc[q]) + NAME(sum_quad)(rest[q]);
    for (; k < d; k++)
      for (int q = 0; q < 4; q++) total[q] += x[q][k] * w[k];
    for (int q = 0; q < 4 && r + q < n; q++) z[r + q] = total[q];
  }
}

// Z (n, m) = A W' for few samples; a has pointers to the rows of A, and W is (m, d).
static void NAME(products)(const REAL *const *a, long n, const REAL *W, long d, long m, REAL *Z) {
  for (long r = 0; r < n; r += 8) {  // 8 samples fit the first-level cache
    const REAL *x[8];
    for (int q = 0; q < 8; q++) x[q] = a[r + q < n ? r + q : r];
    for (int q = 8; q < 16 && r + q < n; q++)  // prefetch the next 8
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

// T[q] (vecs * LANES) = x[q] P for up to `rows` samples, or T[q] += x[q] P if k > 0; P is (depth, PANEL). Callers pass
// constants for rows and vecs, so that the compiler keeps the accumulators in registers.
static inline __attribute__((always_inline)) void NAME(tile)(const int rows, const int vecs, const REAL *const *a,
                                                             long count, long k, long depth, const REAL *P, REAL *T) {
  const REAL *x[12];
  for (int q = 0; q < rows; q++) x[q] = a[q < count ? q : 0] + k;
  NAME(vec) acc[12][2] = {0};
  for (long t = 0; t < depth; t++)
    for (int q = 0; q < rows; q++)
      for (int j = 0; j < vecs; j++) acc[q][j] += x[q][t] * NAME(load)(P + t * PANEL + j * LANES);
  for (int q = 0; q < rows && q < count; q++)
    for (int j = 0; j < vecs; j++) {
      NAME(vec) *to = (NAME(vec) *)(T + q * PANEL + j * LANES);
      *to = k ? *to + acc[q][j] : acc[q][j];
    }
}

// Z (n, m) = A W' for many samples. PANEL outputs and DEPTH inputs of W are transposed at a time, half a panel for a
// small remainder. packed is a buffer of (m + PANEL) * n + PANEL * DEPTH numbers.
static void NAME(many_products)(const REAL *const *a, long n, const REAL *W, long d, long m, REAL *Z, REAL *packed) {
  const long panels = (m + PANEL - 1) / PANEL;
  REAL *P = packed, *T = packed + PANEL * DEPTH;  // W transposed (DEPTH, PANEL); Z as (panels, n, PANEL)
  for (long k = 0; k < d; k += DEPTH) {
    const long depth = d - k < DEPTH ? d - k : DEPTH;
    for (long p = 0; p < panels; p++) {
      const long left = m - p * PANEL, vecs = left > LANES ? 2 : 1, rows = vecs == 2 ? 6 : 12;
      for (long c = 0; c < vecs * LANES; c++) {
        const REAL *w = W + (p * PANEL + c) * d + k;
        for (long t = 0; t < depth; t++) P[t * PANEL + c] = c < left ? w[t] : 0;
      }
      for (long r = 0; r < n; r += rows) {
        for (long q = 12; q < 12 + rows && p == 0 && r + q < n; q++)  // prefetch the samples after the next
          for (long t = 0; t < depth; t += 64 / (long)sizeof(REAL)) __builtin_prefetch(a[r + q] + k + t);
        REAL *to = T + (p * n + r) * PANEL;
        if (vecs == 2)
          NAME(tile)(6, 2, a + r, n - r, k, depth, P, to);
        else
          NAME(tile)(12, 1, a + r, n - r, k, depth, P, to);
      }
    }
  }
  for (long p = 0; p < panels; p++)
    for (long i = 0; i < n; i++)
      for (long c = 0; c < PANEL && p * PANEL + c < m; c++) Z[i * m + p * PANEL + c] = T[(p * n + i) * PANEL + c];
}

// dw (d) = g A, or dw += g A if `add`: `weights` for a layer of one output.
static void NAME(one_weight)(const REAL *g, const REAL *const *a, long n, long d, int add, REAL *dw) {
  long k = 0;
  for (; k + 2 * LANES <= d; k += 2 * LANES) {
    NAME(vec) acc[2] = {0};
    for (long i = 0; i < n; i++)
      for (int j = 0; j < 2; j++) acc[j] += g[i] * NAME(load)(a[i] + k + j * LANES);
    for (int j = 0; j < 2; j++) {
      NAME(vec) *to = (NAME(vec) *)(dw + k + j * LANES);
      *to = add ? *to + acc[j] : acc[j];
    }
  }
  for (; k + QUAD <= d; k += QUAD) {
    NAME(quad) acc = {0}, *to = (NAME(quad) *)(dw + k);
    for (long i = 0; i < n; i++) acc += g[i] * NAME(load_quad)(a[i] + k);
    *to = add ? *to + acc : acc;
  }
  for (; k < d; k++) {
    REAL s = add ? dw[k] : 0;
    for (long i = 0; i < n; i++) s += g[i] * a[i][k];
    dw[k] = s;
  }
}

// to (up to 4 rows, width) = E P, or to += E P if `add`, where E is (4, n) and P is (n, STRETCH), of which `vecs` vectors
// are used. Callers pass a constant for vecs; width is vecs * LANES, or less if vecs is 1.
static inline __attribute__((always_inline)) void NAME(some_weights)(const int vecs, const REAL *E, const REAL *P,
                                                                     long n, long rows, long d, long width, int add,
                                                                     REAL *to) {
  NAME(vec) acc[4][3] = {0};
  for (long i = 0; i < n; i++, P += STRETCH, E += 4)
    for (int j = 0; j < vecs; j++)
      for (int q = 0; q < 4; q++) acc[q][j] += E[q] * NAME(load)(P + j * LANES);
  for (int q = 0; q < 4 && q < rows; q++, to += d)
    if (width == vecs * LANES)
      for (int j = 0; j < vecs; j++) {
        NAME(vec) *v = (NAME(vec) *)(to + j * LANES);
        *v = add ? *v + acc[q][j] : acc[q][j];
      }
    else
      for (long t = 0; t < width; t++) to[t] = (add ? to[t] : 0) + acc[q][0][t];
}

// dW (m, d) = G' A, or dW += G' A if `add`. G is (n, m), and a has pointers to the rows of A.
// packed is a buffer of n * (m rounded up to a multiple of 4, plus STRETCH) numbers.
static void NAME(weights)(const REAL *G, const REAL *const *a, long n, long d, long m, int add, REAL *dW,
                          REAL *packed) {
  const long groups = (m + 3) / 4;
  REAL *P = packed + groups * 4 * n;  // (n, STRETCH): up to STRETCH columns of A
  for (long g = 0; g < groups; g++)   // G as (groups of 4 outputs, n, 4)
    for (long i = 0; i < n; i++)
      for (int q = 0; q < 4; q++) packed[(g * n + i) * 4 + q] = 4 * g + q < m ? G[i * m + 4 * g + q] : 0;
  for (long k = 0, width; k < d; k += width) {
    width = d - k < STRETCH ? d - k : STRETCH;
    if (width > LANES) width -= width % LANES;  // whole vectors first
    for (long i = 0; i < n; i++) {
      REAL *p = P + i * STRETCH;
      if (width >= LANES)
        for (long t = 0; t < width; t += LANES) *(NAME(vec) *)(p + t) = NAME(load)(a[i] + k + t);
      else
        for (long t = 0; t < LANES; t++) p[t] = t < width ? a[i][k + t] : 0;
    }
    for (long g = 0; g < groups; g++) {
      const REAL *e = packed + g * 4 * n;
      REAL *to = dW + 4 * g * d + k;
      if (width == 3 * LANES)
        NAME(some_weights)(3, e, P, n, m - 4 * g, d, width, add, to);
      else if (width == 2 * LANES)
        NAME(some_weights)(2, e, P, n, m - 4 * g, d, width, add, to);
      else
        NAME(some_weights)(1, e, P, n, m - 4 * g, d, width, add, to);
    }
  }
}

// dbias (m) = the column sums of G (n, m), or dbias += these if `add`.
static void NAME(biases)(const REAL *G, long n, long m, int add, REAL *dbias) {
  for (long c = 0; c < m; c++) {
    REAL s = add ? dbias[c] : 0;
    for (long i = 0; i < n; i++) s += G[i * m + c];
    dbias[c] = s;
  }
}

// H (up to 4 rows, vecs * LANES columns of d) = G W, masked by A as in `backward`. Callers pass a constant for vecs.
static inline __attribute__((always_inline)) void NAME(some_backward)(const int vecs, const REAL *const *g,
                                                                      const REAL *W, const REAL *A, long rows, long d,
                                                                      long m, int relu, REAL *H) {
  NAME(vec) acc[4][3] = {0};
  for (long c = 0; c < m; c++)
    for (int j = 0; j < vecs; j++)
      for (int q = 0; q < 4; q++) acc[q][j] += g[q][c] * NAME(load)(W + c * d + j * LANES);
  for (int q = 0; q < 4 && q < rows; q++)
    for (int t = 0; t < vecs * LANES; t++)
      H[q * d + t] = relu && !(A[q * d + t] > 0) ? 0 : acc[q][t / LANES][t % LANES];
}

// H (n, d) = G W. If `relu`, H is zero where A (n, d), the output of that ReLU, is not positive.
static void NAME(backward)(const REAL *G, const REAL *W, const REAL *A, long n, long d, long m, int relu, REAL *H) {
  for (long r = 0; r < n; r += 4) {
    const REAL *g[4];
    for (int q = 0; q < 4; q++) g[q] = G + (r + q < n ? r + q : r) * m;
    long k = 0;
    for (; k + 3 * LANES <= d; k += 3 * LANES)
      NAME(some_backward)(3, g, W + k, A + r * d + k, n - r, d, m, relu, H + r * d + k);
    for (; k + LANES <= d; k += LANES)
      NAME(some_backward)(1, g, W + k, A + r * d + k, n - r, d, m, relu, H + r * d + k);
    for (int q = 0; k < d && q < 4 && r + q < n; q++)
      for (long t = k; t < d; t++) {
        REAL s = 0;
        for (long c = 0; c < m; c++) s += g[q][c] * W[c * d + t];
        H[(r + q) * d + t] = relu && !(A[(r + q) * d + t] > 0) ? 0 : s;
      }
  }
}

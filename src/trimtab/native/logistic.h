// The gradient of multinomial logistic regression on rows gathered by pointer, in nn.Linear's layout:
// W is (C, d), the bias follows it. Included once for each number type and vector width:
// REAL, EXP, LANES (numbers in a vector) and NAME(f), which gives f their suffix, are defined there.

typedef REAL NAME(vec) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL))));

static inline NAME(vec) NAME(load)(const REAL *p) { return *(const NAME(vec) *)p; }

static inline REAL NAME(sum)(NAME(vec) v) {
  REAL s = 0;
  for (int j = 0; j < LANES; j++) s += v[j];
  return s;
}

// z[q][c] = x[q] . w[c] for 4 samples and up to 3 classes: 12 accumulators fill the registers.
static inline void NAME(dots)(const REAL *const *x, const REAL *w, long d, int classes, REAL z[4][3]) {
  NAME(vec) a[4][3] = {0};
  const REAL *w0 = w, *w1 = classes > 1 ? w + d : w, *w2 = classes > 2 ? w + 2 * d : w;
  long k = 0;
  for (; k + LANES <= d; k += LANES) {
    NAME(vec) v0 = NAME(load)(w0 + k), v1 = NAME(load)(w1 + k), v2 = NAME(load)(w2 + k);
    for (int q = 0; q < 4; q++) {
      NAME(vec) v = NAME(load)(x[q] + k);
      a[q][0] += v * v0;
      a[q][1] += v * v1;
      a[q][2] += v * v2;
    }
  }
  for (int q = 0; q < 4; q++) {
    for (int c = 0; c < 3; c++) z[q][c] = NAME(sum)(a[q][c]);
    for (long t = k; t < d; t++) {
      z[q][0] += x[q][t] * w0[t];
      z[q][1] += x[q][t] * w1[t];
      z[q][2] += x[q][t] * w2[t];
    }
  }
}

// out = gradient of the mean cross-entropy at W over the n given rows of X (all of them: rows = 0).
// work holds n * (C + 4 * ceil(C / 4) + 3 * 16) numbers.
void NAME(logistic)(const REAL *W, const REAL *X, const int64_t *y, const int64_t *rows, long n, long d, long C,
                    int biased, REAL *out, REAL *work) {
  const long groups = (C + 3) / 4, wide = 3 * LANES;
  REAL *E = work;                // (n, C): logits, then their gradient
  REAL *G = E + n * C;           // the same, as (groups of 4 classes, n, 4)
  REAL *P = G + groups * 4 * n;  // (n, wide): a stretch of the features
  const REAL *bias = W + C * d;

  for (long r = 0; r < n; r += 8) {  // E = X W'; 8 samples stay in the first-level cache
    const REAL *x[8];
    for (int q = 0; q < 8; q++) {
      long i = r + q < n ? r + q : r;
      x[q] = X + (rows ? rows[i] : i) * d;
    }
    for (int q = 8; q < 16 && r + q < n; q++) {  // the next 8 samples are on their way meanwhile
      const char *next = (const char *)(X + (rows ? rows[r + q] : r + q) * d);
      for (long t = 0; t < d * (long)sizeof(REAL); t += 64) __builtin_prefetch(next + t);
    }
    for (long c = 0; c < C; c += 3) {
      int classes = C - c < 3 ? (int)(C - c) : 3;
      for (int h = 0; h < 8 && r + h < n; h += 4) {
        REAL z[4][3];
        NAME(dots)(x + h, W + c * d, d, classes, z);
        for (int q = 0; q < 4 && r + h + q < n; q++)
          for (int j = 0; j < classes; j++) E[(r + h + q) * C + c + j] = z[q][j];
      }
    }
  }

  for (long i = 0; i < n; i++) {  // E = (softmax - one hot) / n
    REAL *e = E + i * C, total = 0;
    if (biased)
      for (long c = 0; c < C; c++) e[c] += bias[c];
    REAL most = e[0];
    for (long c = 1; c < C; c++) most = e[c] > most ? e[c] : most;
    for (long c = 0; c < C; c++) {
      e[c] = EXP(e[c] - most);
      total += e[c];
    }
    REAL scale = 1 / (total * n);
    for (long c = 0; c < C; c++) e[c] *= scale;
    e[y[rows ? rows[i] : i]] -= (REAL)1 / n;
    for (long c = 0; c < 4 * groups; c++) G[((c / 4) * n + i) * 4 + c % 4] = c < C ? e[c] : 0;
  }

  for (long k = 0; k < d; k += wide) {  // out = E' X, a stretch of features at a time
    long width = d - k < wide ? d - k : wide;
    for (long i = 0; i < n; i++) {
      const REAL *x = X + (rows ? rows[i] : i) * d + k;
      if (width == wide)
        memcpy(P + i * wide, x, wide * sizeof(REAL));
      else
        for (long t = 0; t < wide; t++) P[i * wide + t] = t < width ? x[t] : 0;
    }
    for (long g = 0; g < groups; g++) {
      NAME(vec) a[4][3] = {0};
      const REAL *x = P, *e = G + g * 4 * n;
      for (long i = 0; i < n; i++, x += wide, e += 4) {
        NAME(vec) x0 = NAME(load)(x), x1 = NAME(load)(x + LANES), x2 = NAME(load)(x + 2 * LANES);
        for (int q = 0; q < 4; q++) {
          a[q][0] += e[q] * x0;
          a[q][1] += e[q] * x1;
          a[q][2] += e[q] * x2;
        }
      }
      for (int q = 0; q < 4 && 4 * g + q < C; q++)
        memcpy(out + (4 * g + q) * d + k, a[q], width * sizeof(REAL));
    }
  }

  if (biased)
    for (long c = 0; c < C; c++) {
      REAL s = 0;
      for (long i = 0; i < n; i++) s += E[i * C + c];
      out[C * d + c] = s;
    }
}

// out = numbers k to k + width of row i of the sum over m of a[j] v[j]; v[j] has rows `stride[j]` apart.
static inline void NAME(stretch)(const double *a, const REAL *const *v, const long *stride, long m, long i, long k,
                                 long width, REAL *out) {
  REAL a0 = (REAL)a[0];
  const REAL *v0 = v[0] + i * stride[0] + k;
  for (long t = 0; t < width; t++) out[t] = a0 * v0[t];
  for (long j = 1; j < m; j++) {
    REAL aj = (REAL)a[j];
    const REAL *vj = v[j] + i * stride[j] + k;
    for (long t = 0; t < width; t++) out[t] += aj * vj[t];
  }
}

#define PART 2048L

// out, s rows of length d, = the sum of a[j] v[j]; v[j] has rows `stride[j]` apart (0: one row for all).
void NAME(combine)(const double *a, const REAL *const *v, const long *stride, long m, long s, long d, REAL *out,
                   int threads) {
  const long parts = (d + PART - 1) / PART;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && s * d > 65536)
  for (long b = 0; b < s * parts; b++) {
    long i = b / parts, k = (b % parts) * PART;
    NAME(stretch)(a, v, stride, m, i, k, d - k < PART ? d - k : PART, out + i * d + k);
  }
}

// The gradients of s clients, on several threads. The point of client i is row i of the sum of a[j] v[j],
// written to `point` unless that is 0 (then m = 1, and v[0] is the point). Each thread has `room` numbers of work.
void NAME(logistic_many)(const double *a, const REAL *const *v, const long *stride, long m, REAL *point,
                         const REAL *const *X, const int64_t *const *y, const int64_t *const *rows, const long *n,
                         long s, long d, long C, int biased, REAL *out, REAL *work, long room, int threads) {
  const long length = C * d + (biased ? C : 0);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && s > 1)
  for (long i = 0; i < s; i++) {
    const REAL *W = v[0] + i * stride[0];
    if (point) {
      for (long k = 0; k < length; k += PART)
        NAME(stretch)(a, v, stride, m, i, k, length - k < PART ? length - k : PART, point + i * length + k);
      W = point + i * length;
    }
    NAME(logistic)(W, X[i], y[i], rows[i], n[i], d, C, biased, out + i * length, work + THREAD * room);
  }
}
#undef PART

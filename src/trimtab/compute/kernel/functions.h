// Activations and losses. Included after workspace.h, once for each number type and vector width, with EXP,
// HYPERBOLIC_TANGENT, ERF and FABS of that type. -ffast-math assumes that no value is infinite or NaN. Exponents here
// are therefore never positive, so that nothing overflows, and a NaN is multiplied, never removed by a comparison.

static inline REAL NAME(sigmoid)(REAL z) {
  const REAL e = EXP(-FABS(z)), share = 1 / (1 + e);
  return z < 0 ? e * share : share;
}

// Z = activation(Z) for n numbers; slope, unless it is 0, receives the derivative.
static void NAME(activate)(int kind, long n, REAL *Z, REAL *slope) {
  const REAL half = (REAL)0.5, root = (REAL)0.79788456080286535588, cubic = (REAL)0.044715;  // root: sqrt(2 / pi)
  switch (kind) {
    case RELU:
      for (long t = 0; slope && t < n; t++) slope[t] = Z[t] > 0;
      for (long t = 0; t < n; t++) Z[t] = Z[t] < 0 ? 0 : Z[t];
      break;
    case TANH:
      EACH(t, 0, n) Z[t] = HYPERBOLIC_TANGENT(Z[t]);
      if (slope) EACH(t, 0, n) slope[t] = 1 - Z[t] * Z[t];
      break;
    case SIGMOID:
      EACH(t, 0, n) Z[t] = NAME(sigmoid)(Z[t]);
      if (slope) EACH(t, 0, n) slope[t] = Z[t] * (1 - Z[t]);
      break;
    case SILU:
      EACH(t, 0, n) {
        const REAL z = Z[t], s = NAME(sigmoid)(z);
        if (slope) slope[t] = s * (1 + z * (1 - s));
        Z[t] = z * s;
      }
      break;
    case GELU:
      EACH(t, 0, n) {
        const REAL z = Z[t], p = half * (1 + ERF(z * (REAL)0.70710678118654752440));
        if (slope) slope[t] = p + half * root * z * EXP(-half * z * z);
        Z[t] = z * p;
      }
      break;
    case GELU_TANH:
      EACH(t, 0, n) {
        const REAL z = Z[t], h = HYPERBOLIC_TANGENT(root * z * (1 + cubic * z * z));
        if (slope) slope[t] = half * (1 + h) + half * z * (1 - h * h) * root * (1 + 3 * cubic * z * z);
        Z[t] = half * z * (1 + h);
      }
      break;
  }
}

// Z (n, C) = (softmax(Z) - one_hot(y)) / total for n samples: the gradient of the mean cross entropy.
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

// Z (n, C) = the gradient of the mean over all elements of an elementwise loss; y is (length, C).
// targets is a buffer of (n, C) numbers.
static int NAME(elementwise)(const Model *model, REAL *Z, const REAL *y, const int64_t *rows, long from, long n,
                             long length, long C, long total, REAL *targets, Trouble *trouble) {
  for (long i = 0; i < n; i++) {
    int64_t row = rows ? rows[from + i] : from + i;
    if (!is_below(row, length)) {
      trouble->value = row;
      return BAD_ROW;
    }
    for (long c = 0; c < C; c++) targets[i * C + c] = y[row * C + c];
  }
  const REAL mean = (REAL)(1 / ((double)total * C)), delta = (REAL)model->delta;
  const REAL scale = model->loss == MSE_LOSS ? 2 * mean : model->loss == SMOOTH_L1_LOSS ? mean / delta : mean;
  switch (model->loss) {
    case BINARY_CROSS_ENTROPY_WITH_LOGITS:
      EACH(t, 0, n * C) Z[t] = scale * (NAME(sigmoid)(Z[t]) - targets[t]);
      break;
    case MSE_LOSS:
      EACH(t, 0, n * C) Z[t] = scale * (Z[t] - targets[t]);
      break;
    default:  // HUBER_LOSS, SMOOTH_L1_LOSS: residuals are clipped to delta
      EACH(t, 0, n * C) {
        const REAL e = Z[t] - targets[t], size = FABS(e);
        Z[t] = scale * e * (delta / (size > delta ? size : delta));
      }
  }
  return FINE;
}

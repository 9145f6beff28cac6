// Programs: linear combinations of vectors, and gradients at them, run for one client after the other.
// Included after classifier.h, once for each number type and vector width.

// out = the sum over m of a[j] v[j], numbers from k on, `width` of them. Only v[0] may be out itself.
static inline void NAME(stretch)(const double *a, const REAL *const *v, long m, long k, long width, REAL *out) {
  REAL a0 = (REAL)a[0];
  for (long t = k; t < k + width; t++) out[t] = a0 * v[0][t];
  for (long j = 1; j < m; j++) {
    REAL aj = (REAL)a[j];
    const REAL *vj = v[j];
    for (long t = k; t < k + width; t++) out[t] += aj * vj[t];
  }
}

#define PART 2048L

void NAME(combine)(const double *a, const REAL *const *v, long m, long d, REAL *out) {
  for (long k = 0; k < d; k += PART) NAME(stretch)(a, v, m, k, d - k < PART ? d - k : PART, out);
}

// Run a program for the clients of one block; `sums` (outputs, d) gets the sum of weight times output.
static void NAME(run_block)(const Model *model, const Program *program, const Clients *clients, long d, long from,
                            long to, REAL *sums, double *squares, REAL *own, REAL *work, const REAL **pointers) {
  const long inputs = program->inputs, registers = program->registers, outputs = program->outputs;
  REAL *place[inputs + outputs + registers];
  for (long j = 0; j < registers; j++) place[inputs + outputs + j] = own + (outputs + j) * d;
  for (long i = from; i < to; i++) {
    for (long j = 0; j < inputs; j++) place[j] = (REAL *)clients->inputs[i * inputs + j];
    for (long j = 0; j < outputs; j++) {
      REAL *kept = (REAL *)clients->outputs[i * outputs + j];
      place[inputs + j] = kept ? kept : own + j * d;
    }
    const long *code = program->code, *end = code + program->length;
    const double *numbers = program->numbers;
    while (code < end) {
      long dest = code[1];
      if (code[0] == GRADIENT) {  // point, batch
        long at = i * clients->batches + code[3];
        NAME(gradient)(model, place[code[2]], (const REAL *)clients->X[i], clients->y[i], clients->rows[at],
                       clients->sizes[at], place[dest], work, pointers);
        code += 4;
      } else {  // how many terms, which
        long m = code[2];
        const REAL *v[m];
        for (long j = 0; j < m; j++) v[j] = place[code[3 + j]];
        NAME(combine)(numbers, v, m, d, place[dest]);
        numbers += m, code += 3 + m;
      }
    }
    for (long j = 0; sums && j < outputs; j++) {
      const REAL *value = place[inputs + j];
      REAL *sum = sums + j * d, weight = (REAL)clients->weights[i];
      double square = 0;
      for (long k = 0; k < d; k += PART) {
        long stop = k + PART < d ? k + PART : d;
        REAL s = 0;
        for (long t = k; t < stop; t++) s += value[t] * value[t];
        square += s;
        if (i == from)
          for (long t = k; t < stop; t++) sum[t] = weight * value[t];
        else
          for (long t = k; t < stop; t++) sum[t] += weight * value[t];
      }
      squares[i * outputs + j] = square;
    }
  }
}

// Run a program for all clients, block by block, on several threads; which thread runs what changes no bit.
// sums is (blocks, outputs, d), and its first block gets the total; squares is (clients, outputs): |output|^2.
// Both may be 0. Returns 0, or 1 if there is no memory.
int NAME(run)(const Model *model, const Program *program, const Clients *clients, long d, long block, REAL *sums,
              double *squares, int threads) {
  const long s = clients->count, blocks = (s + block - 1) / block, outputs = program->outputs;
  int failed = 0;
  long n = 0;
  for (long j = 0; j < s * clients->batches; j++)
    if (clients->sizes[j] > n) n = clients->sizes[j];
#pragma omp parallel num_threads(threads) if (threads > 1 && blocks > 1)
  {
    REAL *own = malloc((program->registers + outputs) * d * sizeof(REAL) + 64);
    REAL *work = malloc(NAME(work)(model, n) * sizeof(REAL) + 64);
    const REAL **pointers = malloc((n < TILE ? n : TILE) * sizeof(REAL *) + 64);
    if (!own || !work || !pointers) failed = 1;
#pragma omp for schedule(dynamic)
    for (long b = 0; b < blocks; b++) {
      long to = (b + 1) * block < s ? (b + 1) * block : s;
      if (own && work && pointers)
        NAME(run_block)(model, program, clients, d, b * block, to, sums ? sums + b * outputs * d : 0, squares, own,
                        work, pointers);
    }
    if (sums) {
#pragma omp for schedule(static)
      for (long k = 0; k < outputs * d; k += PART) {
        long stop = k + PART < outputs * d ? k + PART : outputs * d;
        for (long b = 1; b < blocks; b++)
          for (long t = k; t < stop; t++) sums[t] += sums[b * outputs * d + t];
      }
    }
    free(own), free(work), free(pointers);
  }
  return failed;
}
#undef PART
#undef STRETCH
#undef TILE

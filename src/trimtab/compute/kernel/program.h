// Programs: linear combinations of vectors, and gradients at them, for one client after the other.
// Included after network.h, once for each number type and vector width.

// out[k : k + width] = the sum over j < m of a[j] v[j]. Only v[0] may be out itself.
static inline void NAME(stretch)(const double *a, const REAL *const *v, long m, long k, long width, REAL *out) {
  const REAL *p = v[0];
  REAL first = (REAL)a[0];
  for (long j = 1; j < m || j == 1; j += 3) {  // up to three more terms in each pass
    const long more = m - j < 3 ? m - j : 3;
    const REAL *q[3] = {p, p, p};
    REAL b[3] = {0};
    for (long l = 0; l < more; l++) q[l] = v[j + l], b[l] = (REAL)a[j + l];
    const REAL *q0 = q[0], *q1 = q[1], *q2 = q[2], b0 = b[0], b1 = b[1], b2 = b[2];
    if (more == 3)
      EACH(t, k, width) out[t] = first * p[t] + b0 * q0[t] + b1 * q1[t] + b2 * q2[t];
    else if (more == 2)
      EACH(t, k, width) out[t] = first * p[t] + b0 * q0[t] + b1 * q1[t];
    else if (more == 1)
      EACH(t, k, width) out[t] = first * p[t] + b0 * q0[t];
    else
      EACH(t, k, width) out[t] = first * p[t];
    p = out, first = 1;
  }
}

#define LONG_PART (64 * PART)  // numbers that a thread takes at a time

static void NAME(combine)(const double *a, const REAL *const *v, long m, long d, REAL *out) {
  for (long k = 0; k < d; k += PART) NAME(stretch)(a, v, m, k, d - k < PART ? d - k : PART, out);
}

typedef struct {
  Pieces parts;
  const double *a;
  const REAL *const *v;
  long m, d;
  REAL *out;
} NAME(Sum);

static void *NAME(some_stretches)(void *job) {
  NAME(Sum) *s = job;
  for (long p; (p = next_piece(&s->parts)) >= 0;) {
    long stop = (p + 1) * LONG_PART < s->d ? (p + 1) * LONG_PART : s->d;
    for (long k = p * LONG_PART; k < stop; k += PART)
      NAME(stretch)(s->a, s->v, s->m, k, stop - k < PART ? stop - k : PART, s->out);
  }
  return 0;
}

// `combine` on several threads; the bits do not depend on their number.
void NAME(combination)(const double *a, const REAL *const *v, long m, long d, REAL *out, int threads) {
  NAME(Sum) job = {.a = a, .v = v, .m = m, .d = d, .out = out};
  job.parts.pieces = (d + LONG_PART - 1) / LONG_PART;
  on_threads(threads, NAME(some_stretches), &job, job.parts.pieces);
}

// Compute the outputs of client i part by part, so that each part of the registers enters the cache once.
// sums (outputs, d) = weight * output for the first client of a block; for the others this is added.
static void NAME(results)(const Program *program, const Clients *clients, long d, long i, int first, REAL *const *place,
                          REAL *sums, double *squares, REAL *scratch) {
  void *const *kept = clients->outputs + i * program->outputs;
  for (long j = 0; sums && j < program->outputs; j++) squares[j] = 0;
  for (long k = 0; k < d; k += PART) {
    const long width = d - k < PART ? d - k : PART;
    const long *code = program->code + program->length;
    const double *numbers = program->numbers + program->used;
    for (long j = 0; j < program->outputs; j++) {  // how many terms, which
      const long m = *code;
      const REAL *v[m];
      for (long l = 0; l < m; l++) v[l] = place[code[1 + l]] + k;
      REAL *value = kept[j] ? (REAL *)kept[j] + k : scratch;
      NAME(stretch)(numbers, v, m, 0, width, value);
      numbers += m, code += 1 + m;
      if (!sums) continue;
      REAL *sum = sums + j * d + k, weight = (REAL)clients->weights[i], square = 0;
      if (first)
        EACH(t, 0, width) square += value[t] * value[t], sum[t] = weight * value[t];
      else
        EACH(t, 0, width) square += value[t] * value[t], sum[t] += weight * value[t];
      squares[j] += square;
    }
  }
}

// Run a program for the clients of one block. Returns FINE or the kind of error.
static int NAME(run_block)(const Model *model, const Program *program, const Clients *clients, long d, long from,
                           long to, REAL *sums, double *squares, WORKSPACE *w, Trouble *trouble) {
  const long inputs = program->inputs, registers = program->registers;
  REAL *place[inputs + registers];
  for (long j = 0; j < registers; j++) place[inputs + j] = w->registers[j];
  for (long i = from; i < to; i++) {
    for (long j = 0; j < inputs; j++) place[j] = (REAL *)clients->inputs[i * inputs + j];
    const long *code = program->code, *end = code + program->length;
    const double *numbers = program->numbers;
    while (code < end) {
      long dest = code[1];
      if (code[0] == GRADIENT) {  // point, batch
        long at = i * clients->batches + code[3];
        int wrong = NAME(gradient)(model, place[code[2]], (const REAL *)clients->X[i], clients->y[i], clients->rows[at],
                                   clients->sizes[at], clients->lengths[i], place[dest], w, trouble);
        trouble->client = i;
        if (wrong) return wrong;
        code += 4;
      } else {  // how many terms, which
        long m = code[2];
        const REAL *v[m];
        for (long j = 0; j < m; j++) v[j] = place[code[3 + j]];
        NAME(combine)(numbers, v, m, d, place[dest]);
        numbers += m, code += 3 + m;
      }
    }
    NAME(results)(program, clients, d, i, i == from, place, sums, squares + i * program->outputs, w->part);
  }
  return FINE;
}

// A run processes as many blocks at a time as there are slots for their sums. Slot 0 keeps the total so far, and the
// sums of the blocks are added to it in order, so the bits do not depend on the number of slots.
typedef struct {
  Pieces blocks, parts;
  const Model *model;
  const Program *program;
  const Clients *clients;
  long d, most;       // most: samples of the largest batch
  WORKSPACE *spaces;  // one for each thread
  long taken;         // how many of them have an owner in this turn
  long before, slot;  // how many blocks ran in earlier turns, and the slot of the first one of this turn
  REAL *sums;         // (slots, outputs, d)
  double *squares;
  Trouble *trouble;
} NAME(Run);

static void *NAME(some_blocks)(void *job) {
  NAME(Run) *r = job;
  const long s = r->clients->count, outputs = r->program->outputs;
  WORKSPACE *w = &r->spaces[__atomic_fetch_add(&r->taken, 1, __ATOMIC_RELAXED)];
  Trouble trouble = {0};
  for (long p; (p = next_piece(&r->blocks)) >= 0;) {
    const long from = (r->before + p) * r->clients->block, to = from + r->clients->block;
    REAL *sums = r->sums ? r->sums + (r->slot + p) * outputs * r->d : 0;
    trouble.what =
        NAME(run_block)(r->model, r->program, r->clients, r->d, from, to < s ? to : s, sums, r->squares, w, &trouble);
    if (trouble.what) fail(&r->blocks, r->trouble, trouble);
  }
  return 0;
}

static void *NAME(some_sums)(void *job) {
  NAME(Run) *r = job;
  const long all = r->program->outputs * r->d;
  for (long p; (p = next_piece(&r->parts)) >= 0;) {
    long stop = (p + 1) * PART < all ? (p + 1) * PART : all;
    for (long j = 1; j < r->slot + r->blocks.pieces; j++)
      for (long t = p * PART; t < stop; t++) r->sums[t] += r->sums[j * all + t];
  }
  return 0;
}

// Run a program for all clients, block by block, on several threads; the bits do not depend on their number.
// sums is (slots, outputs, d), and slot 0 receives the total; squares is (clients, outputs): |output|^2.
// Both may be 0. `trouble` receives an error, after which all results are invalid.
void NAME(run)(const Model *model, const Program *program, const Clients *clients, long d, REAL *sums, double *squares,
               int threads, Trouble *trouble) {
  NAME(Run) job = {.model = model, .program = program, .clients = clients, .d = d, .trouble = trouble};
  const long blocks = (clients->count + clients->block - 1) / clients->block, slots = clients->slots;
  *trouble = (Trouble){.what = is_program(program, clients->batches) ? FINE : BAD_CODE};
  if (slots < 1 || (slots < 2 && blocks > 1)) trouble->what = NO_MEMORY;  // the loop below would not end
  if (trouble->what) return;
  job.sums = sums, job.squares = squares;
  for (long j = 0; j < clients->count * clients->batches; j++)
    if (clients->sizes[j] > job.most) job.most = clients->sizes[j];
  // This thread allocates the memory of all threads: memory that a thread allocates is in its own arena of the heap,
  // which remains large after the thread ends, and every call starts new threads.
  const int wanted = threads_for(threads, blocks);
  job.spaces = calloc(wanted, sizeof(WORKSPACE));
  if (!job.spaces) trouble->what = NO_MEMORY;
  for (int j = 0; j < wanted && !trouble->what; j++) {
    job.spaces[j] = NAME(workspace)(model, job.most, program->registers, d);
    if (job.spaces[j].failed) trouble->what = NO_MEMORY;
  }
  while (job.before < blocks && !trouble->what) {
    job.taken = 0;
    const long left = blocks - job.before, room = slots - job.slot;
    job.blocks = (Pieces){.pieces = left < room ? left : room};
    job.parts = (Pieces){.pieces = sums ? (program->outputs * d + PART - 1) / PART : 0};
    on_threads(threads, NAME(some_blocks), &job, job.blocks.pieces);
    if (!trouble->what) on_threads(threads, NAME(some_sums), &job, job.parts.pieces / 8);
    job.before += job.blocks.pieces;
    job.slot = 1;
  }
  for (int j = 0; job.spaces && j < wanted; j++) NAME(release)(&job.spaces[j]);
  free(job.spaces);
}
#undef LONG_PART

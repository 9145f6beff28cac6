// Gradients and programs in float and double, for any machine, and wider ones for x86-64, chosen by level().
#include <math.h>
#ifdef __linux__
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX(a, b) ((a) > (b) ? (a) : (b))

// The losses and activations that kernels know, in the order of program.py.
#define LOSSES(X) X(CROSS_ENTROPY) X(BINARY_CROSS_ENTROPY_WITH_LOGITS) X(MSE_LOSS) X(HUBER_LOSS) X(SMOOTH_L1_LOSS)
#define ACTIVATIONS(X) X(NONE) X(RELU) X(TANH) X(SIGMOID) X(SILU) X(GELU) X(GELU_TANH)
#define NUMBER(name) name,
#define WORD(name) #name " "
enum { LOSSES(NUMBER) };
enum { ACTIVATIONS(NUMBER) };
const char *const names_of_losses = LOSSES(WORD), *const names_of_activations = ACTIVATIONS(WORD);

typedef struct {
  long layers;
  const long *sizes;      // of the input, and of each layer's output
  const int *biased;      // whether a layer has a bias
  const int *activation;  // what follows it
  long loss;
  double delta;  // of a loss that is linear beyond
  double l2;
} Model;

// What is wrong, and where. No index is trusted: whoever gave the data may have changed them since they were checked.
enum { FINE, NO_MEMORY, BAD_LABEL, BAD_ROW, BAD_CODE };
typedef struct {
  long what, client, sample, value;
} Trouble;

// A program's values are numbered: its inputs, then registers. After its steps come its outputs.
enum { COMBINE, GRADIENT };
typedef struct {
  long inputs, registers, outputs;
  long length, used;      // of the steps: how long their code is, and how many numbers they take
  long whole, count;      // the same of all, outputs included
  const long *code;       // COMBINE dest m value...   or   GRADIENT dest point batch;   for an output m value...
  const double *numbers;  // one for each value of a combination
} Program;

typedef struct {
  long count, batches;
  long block, slots;  // how they are added up: in blocks of so many, so many blocks at a time
  const void *const *X;
  const void *const *y;        // labels, or REAL (length, outputs)
  const long *lengths;         // (count): how many samples X and y have
  const int64_t *const *rows;  // (count, batches): which samples; 0 for all of them
  const long *sizes;           // (count, batches): how many
  const void *const *inputs;   // (count, inputs)
  void *const *outputs;        // (count, outputs): where to write; 0 for nowhere
  const double *weights;
} Clients;

// Work of several threads: each takes the next piece until none is left. They are made anew for each call, of
// which a round has few: threads that wait for work by spinning would take the cores from others.
#define MOST_THREADS 256

typedef struct {
  long pieces, next;
  int failed;
} Pieces;

static long next_piece(Pieces *pieces) {
  if (__atomic_load_n(&pieces->failed, __ATOMIC_RELAXED)) return -1;
  long piece = __atomic_fetch_add(&pieces->next, 1, __ATOMIC_RELAXED);
  return piece < pieces->pieces ? piece : -1;
}

// Tell all threads that something failed; the first one to do so says what.
static void fail(Pieces *pieces, Trouble *told, Trouble own) {
  if (!__atomic_exchange_n(&pieces->failed, 1, __ATOMIC_RELAXED)) *told = own;
}

// Whether the slope of a layer's activation is kept: not a ReLU's, which its output tells, unless that is overwritten.
static int has_slope(const Model *model, long l) {
  const int kind = model->activation[l];
  return kind != NONE && (kind != RELU || l == model->layers - 1);
}

// Where the parameters of each layer start in a vector; at last, how long it is.
static void starts(const Model *model, long *start) {
  start[0] = 0;
  for (long l = 0; l < model->layers; l++)
    start[l + 1] = start[l] + (model->sizes[l] + (model->biased[l] ? 1 : 0)) * model->sizes[l + 1];
}

static int is_below(int64_t index, long end) { return index >= 0 && index < end; }

// Whether the m values of a combination are there; `dest` may be the first of them alone.
static int are_values(const long *code, long m, const long *end, long values, long dest) {
  if (m < 1 || m > values || m > end - code) return 0;
  for (long j = 0; j < m; j++)
    if (!is_below(code[j], values) || (j > 0 && code[j] == dest)) return 0;
  return 1;
}

// Whether a program reads and writes only what is there.
#define MOST_VALUES 4096
static int is_program(const Program *program, long batches) {
  const long inputs = program->inputs, values = inputs + program->registers;
  const long *code = program->code, *steps = code + program->length, *end = code + program->whole;
  long numbers = 0;
  if (inputs < 0 || program->registers < 0 || values > MOST_VALUES || steps > end) return 0;
  while (code < steps) {
    if (steps - code < 4 || code[1] < inputs || code[1] >= values) return 0;
    if (code[0] == GRADIENT) {
      if (!is_below(code[2], values) || code[2] == code[1] || !is_below(code[3], batches)) return 0;
      code += 4;
    } else {
      if (code[0] != COMBINE || !are_values(code + 3, code[2], steps, values, code[1])) return 0;
      numbers += code[2], code += 3 + code[2];
    }
  }
  if (numbers != program->used) return 0;
  for (long j = 0; j < program->outputs; j++) {
    if (code >= end || !are_values(code + 1, *code, end, values, -1)) return 0;
    numbers += *code, code += 1 + *code;
  }
  return code == end && numbers == program->count;
}

// How many threads so many pieces are worth; at least one, which is the caller.
static int threads_for(int threads, long pieces) {
  const long most = threads < MOST_THREADS ? threads : MOST_THREADS, wanted = pieces < most ? pieces : most;
  return wanted < 1 ? 1 : (int)wanted;
}

static void on_threads(int threads, void *(*work)(void *), void *job, long pieces) {
  pthread_t others[MOST_THREADS];
  int started = 0;
  const int wanted = threads_for(threads, pieces);
  while (started < wanted - 1 && pthread_create(&others[started], 0, work, job) == 0) started++;
  work(job);
  while (started > 0) pthread_join(others[--started], 0);
}

// For each t from k on, in any order: vectors that are written are the one read at the same t, or another.
#ifdef __GNUC__
#define EACH(t, k, width) _Pragma("GCC ivdep") for (long t = k; t < (k) + (width); t++)
#else
#define EACH(t, k, width) for (long t = k; t < (k) + (width); t++)
#endif

#include "draws.h"

#define VARIANT "variant.h"

#define REAL float
#define EXP expf
#define HYPERBOLIC_TANGENT tanhf
#define ERF erff
#define FABS fabsf
#define LANES 4
#define NAME(f) f##_f32_0
#include VARIANT

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LANES 8
#define NAME(f) f##_f32_1
#include VARIANT
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
#define LANES 16
#define NAME(f) f##_f32_2
#include VARIANT
#pragma GCC pop_options
#endif

#undef REAL
#undef EXP
#undef HYPERBOLIC_TANGENT
#undef ERF
#undef FABS
#define REAL double
#define EXP exp
#define HYPERBOLIC_TANGENT tanh
#define ERF erf
#define FABS fabs
#define LANES 2
#define NAME(f) f##_f64_0
#include VARIANT

#ifdef WIDE
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LANES 4
#define NAME(f) f##_f64_1
#include VARIANT
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
#define LANES 8
#define NAME(f) f##_f64_2
#include VARIANT
#pragma GCC pop_options
#endif

// Let the heap keep some memory, instead of giving every large vector back and faulting it in again.
void keep_memory(void) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

// The sizes of what is passed, by name: a library that was built from other sources is known by them.
const long size_of_Model = sizeof(Model), size_of_Program = sizeof(Program), size_of_Clients = sizeof(Clients),
           size_of_Draws = sizeof(Draws), size_of_Trouble = sizeof(Trouble);

// 0: any machine, 1: AVX2, 2: AVX-512
int level(void) {
#ifdef WIDE
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

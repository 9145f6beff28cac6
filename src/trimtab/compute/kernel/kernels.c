// Gradients and programs in float and double, for any processor and for AVX2 and AVX-512; see level().
#include <math.h>
#ifdef __linux__
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX(a, b) ((a) > (b) ? (a) : (b))

// The losses and activations, in the order of program.py.
#define LOSSES(X) X(CROSS_ENTROPY) X(BINARY_CROSS_ENTROPY_WITH_LOGITS) X(MSE_LOSS) X(HUBER_LOSS) X(SMOOTH_L1_LOSS)
#define ACTIVATIONS(X) X(NONE) X(RELU) X(TANH) X(SIGMOID) X(SILU) X(GELU) X(GELU_TANH)
#define NUMBER(name) name,
#define WORD(name) #name " "
enum { LOSSES(NUMBER) };
enum { ACTIVATIONS(NUMBER) };
const char *const names_of_losses = LOSSES(WORD), *const names_of_activations = ACTIVATIONS(WORD);

typedef struct {
  long layers;
  const long *sizes;      // of the input and of each layer's output
  const int *biased;      // whether each layer has a bias
  const int *activation;  // of each layer
  const double *eps;      // of the LayerNorm before each activation; 0 for none
  long loss;
  double delta;  // where a Huber or smooth L1 loss becomes linear
  double l2;
} Model;

// The kind of an error and where it is. No index is trusted: a user may have changed data after they were checked.
enum { FINE, NO_MEMORY, BAD_LABEL, BAD_ROW, BAD_CODE };
typedef struct {
  long what, client, sample, value;
} Trouble;

// The values of a program are numbered: inputs, then registers. In the code, outputs follow the steps.
enum { COMBINE, GRADIENT };
typedef struct {
  long inputs, registers, outputs;
  long length, used;      // of the steps: length of the code and count of numbers
  long whole, count;      // the same with the outputs
  const long *code;       // COMBINE dest m value...   or   GRADIENT dest point batch;   for an output m value...
  const double *numbers;  // a factor for each value of a combination
} Program;

typedef struct {
  long count, batches;
  long block, slots;  // clients per block of a sum, and blocks at a time
  const void *const *X;
  const void *const *y;        // labels, or REAL (length, outputs)
  const long *lengths;         // (count): samples of X and y
  const int64_t *const *rows;  // (count, batches): row numbers; 0 for all samples
  const long *sizes;           // (count, batches): samples of each mini-batch
  const void *const *inputs;   // (count, inputs)
  void *const *outputs;        // (count, outputs): destinations; 0 for none
  const double *weights;
} Clients;

// Work for several threads: each takes the next piece until none is left. Each call starts new threads: a round has few
// calls, and threads that spin between calls would take cores from other processes.
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

// Stop all threads after an error; the first error is reported.
static void fail(Pieces *pieces, Trouble *told, Trouble own) {
  if (!__atomic_exchange_n(&pieces->failed, 1, __ATOMIC_RELAXED)) *told = own;
}

// Whether the slope of a layer's activation is stored. The output of a ReLU determines its slope, but the gradient
// overwrites the output of the last layer.
static int has_slope(const Model *model, long l) {
  const int kind = model->activation[l];
  return kind != NONE && (kind != RELU || l == model->layers - 1);
}

// The offsets of the layers' parameters in a vector, then its length.
static void starts(const Model *model, long *start) {
  start[0] = 0;
  for (long l = 0; l < model->layers; l++) {
    const long rows = model->sizes[l] + (model->biased[l] ? 1 : 0) + (model->eps[l] > 0 ? 2 : 0);
    start[l + 1] = start[l] + rows * model->sizes[l + 1];
  }
}

static int is_below(int64_t index, long end) { return index >= 0 && index < end; }

// Whether the m values of a combination exist; only the first of them may be `dest`.
static int are_values(const long *code, long m, const long *end, long values, long dest) {
  if (m < 1 || m > values || m > end - code) return 0;
  for (long j = 0; j < m; j++)
    if (!is_below(code[j], values) || (j > 0 && code[j] == dest)) return 0;
  return 1;
}

// Whether a program reads and writes only existing values. The limit bounds the arrays on the stack.
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

// The number of threads for so many pieces, including the caller.
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

// For each t in [k, k + width), in any order: a vector that is written is read at the same t only, or not at all.
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
#define SQRT sqrtf
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
#undef SQRT
#define REAL double
#define EXP exp
#define HYPERBOLIC_TANGENT tanh
#define ERF erf
#define FABS fabs
#define SQRT sqrt
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

// Make the heap retain freed memory: returning every large vector to the system causes page faults at its next use.
void keep_memory(void) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

// The sizes of the structures, by which library.py recognises a library that was built from other sources.
const long size_of_Model = sizeof(Model), size_of_Program = sizeof(Program), size_of_Clients = sizeof(Clients),
           size_of_Draws = sizeof(Draws), size_of_Trouble = sizeof(Trouble);

// The widest instruction set of this processor. 0: any, 1: AVX2, 2: AVX-512.
int level(void) {
#ifdef WIDE
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

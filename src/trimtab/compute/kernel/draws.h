// Draw mini-batches bit for bit as PyTorch does on the CPU: torch.randperm(n) and torch.randint(n, (m,)) with a
// Mersenne twister, whose seed is a hash of several numbers (`mix` in core/streams.py).

#define WORDS 624
#define GROUP 8  // generators seeded together: each word depends on the previous one, so a single generator would stall

// A generator of a group, whose words are interleaved.
typedef struct {
  uint32_t *state;  // (WORDS, GROUP), starting at its own column
  int next;
} Generator;

static uint64_t mixed(const uint64_t *numbers, long count) {
  uint64_t h = 0;
  for (long j = 0; j < count; j++) {
    h += numbers[j] + 0x9E3779B97F4A7C15u;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    h ^= h >> 31;
  }
  return h;
}

static uint32_t twisted(uint32_t far, uint32_t high, uint32_t low) {
  return far ^ (((high & 0x80000000u) | (low & 0x7fffffffu)) >> 1) ^ (low & 1u ? 0x9908b0dfu : 0u);
}

// The state is updated word by word as numbers are drawn: most orders need only a small part of it.
static uint32_t next_number(Generator *g) {
  uint32_t *s = g->state;
  const int j = g->next, following = j + 1 < WORDS ? j + 1 : 0, far = j + 397 < WORDS ? j + 397 : j + 397 - WORDS;
  uint32_t y = s[j * GROUP] = twisted(s[far * GROUP], s[j * GROUP], s[following * GROUP]);
  g->next = following;
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

// A pending draw: `size` independent draws of n samples, or, with size = n, their order.
typedef struct {
  uint64_t seed;
  long n, size;
  int64_t *out;
} Waiting;

typedef struct {
  long independent;
  int count;
  Waiting each[GROUP];
} Group;

static void draw_order(Generator *g, long n, int64_t *out) {
  for (long j = 0; j < n; j++) out[j] = j;
  for (long j = 0; j < n - 1; j++) {
    const long other = j + next_number(g) % (uint32_t)(n - j);
    const int64_t kept = out[j];
    out[j] = out[other], out[other] = kept;
  }
}

static void draw_group(Group *group) {
  uint32_t state[WORDS][GROUP];
  memset(state[0], 0, sizeof state[0]);
  for (int q = 0; q < group->count; q++) state[0][q] = (uint32_t)group->each[q].seed;
  for (uint32_t j = 1; j < WORDS; j++)
    for (int q = 0; q < GROUP; q++) state[j][q] = 1812433253u * (state[j - 1][q] ^ (state[j - 1][q] >> 30)) + j;
  for (int q = 0; q < group->count; q++) {
    const Waiting *w = &group->each[q];
    Generator g = {&state[0][q], 0};
    if (group->independent)
      for (long t = 0; t < w->size; t++) w->out[t] = next_number(&g) % (uint32_t)w->n;
    else
      draw_order(&g, w->n, w->out);
  }
  group->count = 0;
}

// Add a draw to the group; a full group is drawn.
static void wait_for_group(Group *group, Waiting one) {
  group->each[group->count++] = one;
  if (group->count == GROUP) draw_group(group);
}

// Mini-batches k >= 0 of several clients; k < 0 means all samples.
typedef struct {
  uint64_t seed, use, round;  // hashed with the client's number and the pass or k
  long independent;           // whether samples are drawn independently; else each pass has an order
  long count, batches;
  const int64_t *clients;  // (count)
  const long *lengths;     // (count): samples of each client
  const long *sizes;       // (count): samples per mini-batch
  const long *numbers;     // (batches): k
} Draws;

static uint64_t seed_of(const Draws *draws, long i, long number) {
  const uint64_t key[] = {draws->seed, draws->use, (uint64_t)draws->clients[i], draws->round, (uint64_t)number};
  return mixed(key, 5);
}

// The maximal count of numbers that `draw` writes.
long numbers_to_draw(const Draws *draws) {
  long most = 0, total = 0;
  for (long j = 0; j < draws->batches; j++) most = MAX(most, draws->numbers[j]);
  for (long i = 0; i < draws->count; i++) {
    const long n = draws->lengths[i], b = draws->sizes[i], passes = most / ((n + b - 1) / b) + 1;
    if (draws->independent)
      total += b * draws->batches;
    else
      total += n * (passes < draws->batches ? passes : draws->batches);
  }
  return total;
}

// Fill rows and sizes, (count, batches): the address of each mini-batch in `memory` and its number of samples. Each
// order of a client is drawn once. For all samples in order, rows is 0.
void draw(const Draws *draws, int64_t *memory, const int64_t **rows, long *sizes) {
  Group group = {.independent = draws->independent};
  for (long i = 0; i < draws->count; i++) {
    const long n = draws->lengths[i], b = draws->sizes[i], steps = (n + b - 1) / b, at = i * draws->batches;
    long latest = -1;  // the last pass that was drawn
    for (long j = 0; j < draws->batches; j++) {
      const long k = draws->numbers[j], pass = k / steps, from = (k % steps) * b;
      rows[at + j] = 0, sizes[at + j] = n;
      if (k < 0 || (!draws->independent && b == n)) continue;
      if (draws->independent) {
        wait_for_group(&group, (Waiting){seed_of(draws, i, k), n, b, memory});
        rows[at + j] = memory, sizes[at + j] = b, memory += b;
        continue;
      }
      const int64_t *order = 0;
      for (long l = j - 1; pass <= latest && !order && l >= 0; l--)
        if (rows[at + l] && draws->numbers[l] / steps == pass) order = rows[at + l] - (draws->numbers[l] % steps) * b;
      if (!order) {
        wait_for_group(&group, (Waiting){seed_of(draws, i, pass), n, n, memory});
        order = memory, memory += n;
        latest = MAX(latest, pass);
      }
      rows[at + j] = order + from, sizes[at + j] = n - from < b ? n - from : b;
    }
  }
  if (group.count) draw_group(&group);
}

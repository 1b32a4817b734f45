/* loop.c - one rank of the comparison: the same loop and the same clock for every side.
 *
 *   loop SOCKET CPUS BYTES KIND
 *
 * It binds itself to the rank'th of CPUS ("0,1", or "-" to stay unbound), joins its group, makes two buffers of BYTES and
 * connects to SOCKET, where it says "RANK RANKS\n". Each line "BYTES ITERATIONS\n" it answers with
 * "LOOP_START LOOP_END COST_START COST_END WRONG CHECKSUM\n": when the loop of all-reduces, and the same loop without them,
 * began and ended (CLOCK_MONOTONIC, ns), and how many elements of the first and the last result were wrong. Between
 * commands it sleeps in read, so that it disturbs no other side. The end of the input ends it. */
#define _GNU_SOURCE
#include "rank.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "side.h"

/* Element i of the input is (i + shift) mod PERIOD, shift depending on rank and iteration. Sums of 64 ranks are exact in f32,
 * so that every order of addition gives the same result. */
enum { PERIOD = 1024 };

struct rank {
  int rank, ranks;
  float *send, *recv;
};

struct span {
  int64_t start, end;
};

static uint32_t shift_of(int rank, uint32_t iteration) { return 7 * iteration + 13 * (uint32_t)rank; }

/* Not inlined, so that no compiler merges the iterations. */
static __attribute__((noinline)) void rewrite(float *send, uint32_t count, uint32_t shift) {
  for (uint32_t i = 0; i < count; i++) send[i] = (float)(int32_t)((i + shift) % PERIOD);
}

static __attribute__((noinline)) uint32_t read_all(const float *recv, uint32_t count) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &recv[i], sizeof bits);
    sum += bits;
  }
  return sum;
}

/* iterations times: rewrite, all-reduce (or not, to know the cost of the rest), read. */
static struct span loop(const struct rank *r, uint32_t count, uint32_t iterations, int with_reduce, uint32_t *checksum) {
  struct span s;
  s.start = now();
  for (uint32_t i = 0; i < iterations; i++) {
    rewrite(r->send, count, shift_of(r->rank, i));
    if (with_reduce) side_reduce(r->send, r->recv, count);
    *checksum += read_all(r->recv, count);
  }
  s.end = now();
  return s;
}

/* The elements of recv that are not the sum of the inputs of that iteration. */
static uint32_t wrong(const struct rank *r, uint32_t count, uint32_t iteration) {
  float expected[PERIOD];
  for (uint32_t i = 0; i < PERIOD; i++) {
    uint32_t sum = 0;
    for (int rank = 0; rank < r->ranks; rank++) sum += (i + shift_of(rank, iteration)) % PERIOD;
    expected[i] = (float)sum;
  }
  uint32_t n = 0;
  for (uint32_t i = 0; i < count; i++) n += r->recv[i] != expected[i % PERIOD];
  return n;
}

/* Makes the ranks begin together what follows: a sum of one element, which needs them all. */
static void meet(void) {
  static float one = 1, sum;
  side_reduce(&one, &sum, 1);
}

static void measure(const struct rank *r, uint32_t count, uint32_t iterations, FILE *answers) {
  uint32_t checksum = 0;
  loop(r, count, 1, 1, &checksum); /* warms up */
  uint32_t wrong_elements = wrong(r, count, 0);
  meet();
  struct span reduced = loop(r, count, iterations, 1, &checksum);
  wrong_elements += wrong(r, count, iterations - 1);
  meet();
  struct span cost = loop(r, count, iterations, 0, &checksum);
  fprintf(answers, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRIu32 " %" PRIu32 "\n", reduced.start, reduced.end,
          cost.start, cost.end, wrong_elements, checksum);
  if (fflush(answers) != 0) fail("answer");
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s SOCKET CPUS BYTES KIND\n", argv[0]);
    return 2;
  }
  bind_to_cpu(argv[2], side_rank_variables);
  struct rank r;
  side_start(&argc, &argv, &r.rank, &r.ranks);
  size_t most = strtoull(argv[3], NULL, 10);
  side_buffers(argv[4], most, &r.send, &r.recv);
  memset(r.recv, 0, most); /* touched before any measurement */
  memset(r.send, 0, most);
  FILE *commands, *answers;
  connect_to(argv[1], r.rank, r.ranks, &commands, &answers);
  size_t bytes;
  uint32_t iterations;
  while (fscanf(commands, "%zu %" SCNu32, &bytes, &iterations) == 2) {
    if (bytes > most || bytes % sizeof(float) != 0 || iterations == 0) {
      fprintf(stderr, "rank %d: %zu bytes, %" PRIu32 " times: not possible\n", r.rank, bytes, iterations);
      return 1;
    }
    measure(&r, (uint32_t)(bytes / sizeof(float)), iterations, answers);
  }
  side_end();
  return 0;
}

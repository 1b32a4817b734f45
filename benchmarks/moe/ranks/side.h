/* side.h - what the loop needs of each side of the comparison. loop.c is linked once with each of the sides. */
#ifndef SIDE_H_
#define SIDE_H_

#include <stddef.h>
#include <stdint.h>

#include "problem.h"

/* The environment variables that may hold this process's rank before side_start, ended by NULL. */
extern const char *const side_rank_variables[];

/* 0: the side only moves bytes, for their time. Rows of other ranks' tokens may hold anything, and so may the sums. */
extern const int side_has_results;

/* Whether the rank of some experts adds their weighted outputs and rounds the sum to bf16, as Railhead does, before it sends it
 * back. If not, the token's rank adds all of them in the order of topk_idx, and rounds once. */
extern const int side_sends_sums;

/* Joins the group; sets its number of ranks and this one's. An error ends the process with a message on stderr, here and in all
 * that follow. */
void side_start(int *argc, char ***argv, int *rank, int *ranks);

/* Takes and touches all memory that p->tokens tokens a rank need. p stays. */
void side_prepare(const struct problem *p);

/* Returns when all ranks have called it. */
void side_barrier(void);

/* Sends the first tokens of the rank's, x [tokens, hidden] bf16, to the ranks of their experts. Returns what this rank has
 * received, [*rows, hidden]: by expert, then by rank, then by token. x stays until side_combine has returned. */
const uint16_t *side_dispatch(const uint16_t *x, int tokens, size_t *rows);

/* Brings back y, the experts' outputs in the same order as the rows: out [tokens, hidden] is the weighted sum of each token's. */
void side_combine(const uint16_t *y, uint16_t *out);

void side_end(void);

#endif

/* expected.h - what tokens hold, and what has to come of them. */
#ifndef EXPECTED_H_
#define EXPECTED_H_

#include <stddef.h>
#include <stdint.h>

#include "problem.h"

/* Once, before the others. */
void make_pattern(const struct problem *p);

/* x [tokens, hidden]: this rank's tokens; another x for each turn. */
void write_tokens(const struct problem *p, int tokens, uint32_t turn, uint16_t *x);

/* How many elements of what a dispatch gave this rank are not those of the tokens' ranks. own_only: looks at the number of rows, and at
 * the rows of this rank's tokens. */
size_t wrong_rows(const struct problem *p, int tokens, uint32_t turn, const uint16_t *rows, size_t count, int own_only);

/* How many elements of combined tokens are wrong, where every expert gives back what it was given. */
size_t wrong_sums(const struct problem *p, int tokens, uint32_t turn, int sends_sums, const uint16_t *out);

#endif

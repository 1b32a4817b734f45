/* side.h - what the loop needs of each side of the comparison. loop.c is linked once with each of the sides. */
#ifndef SIDE_H_
#define SIDE_H_

#include <stddef.h>

/* The environment variables that may hold this process's rank before side_start, ended by NULL. */
extern const char *const side_rank_variables[];

/* Joins the group; sets its number of ranks and this one's. */
void side_start(int *argc, char ***argv, int *rank, int *ranks);

/* Two buffers of bytes each: "malloc", or "windows" where the side has them. */
void side_buffers(const char *kind, size_t bytes, float **send, float **recv);

/* recv = sum over ranks of send. An error ends the process, with a message on stderr. */
void side_reduce(const float *send, float *recv, size_t count);

void side_end(void);

#endif

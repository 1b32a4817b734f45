/* side_mpi.c - the side of an MPI, whichever mpicc compiles it. MPI's default is to end the job on an error. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "side.h"

const char *const side_rank_variables[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL};

void side_start(int *argc, char ***argv, int *rank, int *ranks) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, ranks);
}

void side_buffers(const char *kind, size_t bytes, float **send, float **recv) {
  *send = malloc(bytes);
  *recv = malloc(bytes);
  if (strcmp(kind, "malloc") != 0 || *send == NULL || *recv == NULL) {
    fprintf(stderr, "no %s buffers of %zu bytes\n", kind, bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

void side_reduce(const float *send, float *recv, size_t count) {
  MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void side_end(void) { MPI_Finalize(); }

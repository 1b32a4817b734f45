/* side_mpi.c - the part of the MPI sides that is the same, with whichever MPI compiles it. MPI ends the job on an error. */
#include "side_mpi.h"

#include "side.h"

const char *const side_rank_variables[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL};

MPI_Datatype side_mpi_unit;

void side_mpi_make_unit(int bytes) {
  MPI_Type_contiguous(bytes, MPI_BYTE, &side_mpi_unit);
  MPI_Type_commit(&side_mpi_unit);
}

void side_start(int *argc, char ***argv, int *rank, int *ranks) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, ranks);
}

void side_barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

void side_end(void) {
  MPI_Type_free(&side_mpi_unit);
  MPI_Finalize();
}

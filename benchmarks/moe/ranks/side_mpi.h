/* side_mpi.h - what both MPI sides have in common. */
#ifndef SIDE_MPI_H_
#define SIDE_MPI_H_

#include <mpi.h>

/* What the sides count in, since the bytes that they move may be more than an int holds. */
extern MPI_Datatype side_mpi_unit;

void side_mpi_make_unit(int bytes);

#endif

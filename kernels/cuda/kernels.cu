// Every GPU kernel, in one module: the client loads one image.
#include "cuda/all_reduce.cu"
#include "cuda/collectives.cu"
#include "cuda/pipes.cu"

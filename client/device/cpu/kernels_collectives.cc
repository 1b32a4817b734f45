#include "host/kernels.cc"

#include "host/isa_avx2.cc"

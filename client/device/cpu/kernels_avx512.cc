#include "host/isa_avx512.cc"

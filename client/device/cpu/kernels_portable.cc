#include "host/isa_portable.cc"

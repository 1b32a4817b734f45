// The protocol of dispatch and combine, as part of the library.
#include "host/ep.cc"

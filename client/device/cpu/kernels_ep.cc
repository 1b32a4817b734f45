#include "host/ep.cc"

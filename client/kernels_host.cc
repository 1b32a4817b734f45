// The kernels of the CPU target, compiled into the library (cgo compiles this folder's files only).
#include "host/entry.cc"
#include "host/target.cc"

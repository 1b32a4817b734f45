// The CPU target, compiled into the library (cgo compiles only the files of this folder): the selection of the instruction set. Each
// instruction set has its own file beside this one, because the file sets the compiler's target.
#include "host/dispatch.cc"

// The CPU target, compiled into the library (cgo compiles this folder's files only): what chooses among the instruction
// sets. Each set has a file of its own beside this one, because it sets the compiler's target.
#include "host/dispatch.cc"

// cgo compiles only the files of this folder, so each kernel source has an including file here. This one selects the instruction set.
// Each instruction set has its own file, because the file sets the compiler's target.
#include "host/dispatch.cc"

// Package gpuhost compiles the GPU's kernels as functions of a host, for tests. It is a Go package so that the go command compiles the
// sources and keeps the objects in its build cache: internal/librarybuild links them.
package gpuhost

import _ "railhead/kernels" // so that a change of a header compiles the sources again

// #cgo CXXFLAGS: -std=c++17 -O1 -g1 -Wall -Wextra -I${SRCDIR}/.. -I${SRCDIR}/../include
import "C"

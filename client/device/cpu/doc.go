// Package cpu compiles the kernels of the CPU into the library: one file for each of their sources, because each is compiled for
// processors of its own.
//
// It must never hold code of its own.
package cpu

import (
	"embed"

	_ "railhead/kernels"
)

// #cgo CXXFLAGS: -std=c++17 -O3 -fno-exceptions -fno-rtti -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/../../../kernels -I${SRCDIR}/../../../kernels/include
import "C"

// Sources are embedded, and the packages above imported, so that the go command compiles again what includes a header that
// has changed: it looks at no header outside a package's folder.
//
//go:embed *.cc
var Sources embed.FS

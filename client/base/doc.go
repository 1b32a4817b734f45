// Package base holds what every other folder of the library uses: the thread's error message, tables of handles, memory
// without the C++ run-time library, settings from the environment, which rank of which job the process is, element
// types, committing pages, callers' structs of any version, sets of ranks.
//
// It knows no session and no comm. It must never wait, except for pages, and then with a deadline. It trusts the caller's
// pointers, and nothing that it reads from the environment.
package base

import (
	"embed"

	_ "railhead/client/include"
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CXXFLAGS: -std=c++17 -O3 -g0 -fno-exceptions -fno-rtti -fvisibility=hidden -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/.. -I${SRCDIR}/../include -I${SRCDIR}/../../kernels -I${SRCDIR}/../../kernels/include -I${SRCDIR}/../../internal/wire
import "C"

// Sources are embedded, and the packages above imported, so that the go command compiles again what includes a header that
// has changed: it looks at no header outside a package's folder.
//
//go:embed *.h *.cc
var Sources embed.FS

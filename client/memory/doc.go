// Package memory holds windows: memory in the heap, and registered memory of the caller.
//
// It must never run a collective of the data path. It maps a descriptor from the daemon only if the file is sealed and has the
// promised size.
package memory

import (
	"embed"

	_ "railhead/client/base"
	_ "railhead/client/comm"
	_ "railhead/client/device"
	_ "railhead/client/include"
	_ "railhead/client/session"
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

// Package threads is a device for tests: streams, events and graphs, as a GPU has them, run by ordinary threads. It shows the errors of
// calls that run after they have returned, and that run any number of times.
//
// It must never be part of the library: only tests import it.
package threads

import (
	"embed"

	_ "railhead/client/base"
	_ "railhead/client/comm"
	_ "railhead/client/device"
	_ "railhead/client/device/cpu"
	_ "railhead/client/ep"
	_ "railhead/client/include"
	_ "railhead/client/session"
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CFLAGS: -I${SRCDIR}/../../include
// #cgo CXXFLAGS: -std=c++17 -O3 -g0 -fno-exceptions -fno-rtti -fvisibility=hidden -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/../.. -I${SRCDIR}/../../include -I${SRCDIR}/../../../kernels -I${SRCDIR}/../../../kernels/include
// #cgo CXXFLAGS: -I${SRCDIR}/../../../internal/wire
import "C"

// Sources are embedded, and the packages above imported, so that the go command compiles again what includes a header that
// has changed: it looks at no header outside a package's folder.
//
//go:embed *.h *.cc
var Sources embed.FS

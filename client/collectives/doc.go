// Package collectives holds the calls of the data path: checks of arguments, groups of calls, signatures, and running the chosen
// algorithm.
//
// It must never choose an algorithm by a rule of its own, because the daemon's tables do that. It must never wait beyond the comm's
// deadline. It trusts the caller's buffers to have the size that the call states.
package collectives

import (
	"embed"

	_ "railhead/client/base"
	_ "railhead/client/comm"
	_ "railhead/client/device"
	_ "railhead/client/include"
	_ "railhead/client/memory"
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

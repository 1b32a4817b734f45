// Package comm holds one rank of a group: joining and leaving, the control segment, the flight record, the cause of a broken group, and
// the lookup of algorithms in the daemon's tables.
//
// It must never touch a caller's buffers. It trusts the ranks of its own group, which share memory with it. It checks the bytes of
// the daemon and of the ledger.
package comm

import (
	"embed"

	_ "railhead/client/base"
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

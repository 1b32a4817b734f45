// Package device holds the boundary between what all devices share and what each device does itself: when and where a call runs, how it
// is waited for, and its memory. Folder cpu is the CPU. Folder threads is a device for tests, with streams, events and graphs in
// ordinary threads.
//
// It must never know how a comm is joined, nor what an algorithm does.
package device

import (
	"embed"

	_ "railhead/client/base"
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

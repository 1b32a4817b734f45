// Package cpu is the CPU as a device: a call runs on the calling thread, before it returns. It also compiles the kernels, with one file
// for each kernel source, because each instruction set needs its own compiler target.
//
// It must never check arguments or choose an algorithm: that is done before the call reaches the device.
package cpu

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
// #cgo CXXFLAGS: -I${SRCDIR}/../.. -I${SRCDIR}/../../include -I${SRCDIR}/../../../kernels -I${SRCDIR}/../../../kernels/include
// #cgo CXXFLAGS: -I${SRCDIR}/../../../internal/wire
import "C"

// Sources are embedded, and the packages above imported, so that the go command compiles again what includes a header that
// has changed: it looks at no header outside a package's folder.
//
//go:embed *.h *.cc
var Sources embed.FS

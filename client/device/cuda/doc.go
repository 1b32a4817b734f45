// Package cuda is CUDA as a device: the driver's library, opened at run time, the memory of the GPUs, and calls as kernels on the caller's
// streams. Everything here loads and runs without CUDA, and then says why there is none.
//
// It must never use CUDA's headers or its runtime library, check a call's arguments, or choose an algorithm. It trusts the driver. It
// checks what the environment names, and every descriptor and handle that another rank sent.
package cuda

import (
	"embed"

	_ "railhead/client/base"
	_ "railhead/client/comm"
	_ "railhead/client/device"
	_ "railhead/client/device/cpu"
	_ "railhead/client/ep"
	_ "railhead/client/include"
	_ "railhead/client/memory"
	_ "railhead/client/session"
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CXXFLAGS: -std=c++17 -O3 -g0 -fno-exceptions -fno-rtti -fvisibility=hidden -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/../.. -I${SRCDIR}/../../include -I${SRCDIR}/../../../kernels -I${SRCDIR}/../../../kernels/include
// #cgo CXXFLAGS: -I${SRCDIR}/../../../internal/wire -DRH_ROOT=../../..
import "C"

// Sources are embedded, and the packages above imported, so that the go command compiles again what includes a header that
// has changed: it looks at no header outside a package's folder.
//
//go:embed *.h *.cc
var Sources embed.FS

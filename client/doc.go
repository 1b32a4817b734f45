// Package client is Railhead's client library for Go programs: a thin wrapper of the C ABI. `railhead demo`, `railhead bench` and the
// tests use it. The library itself is C++, in the folders base, session, comm, memory, collectives, ep and device; cgo builds
// each into the Go binary as a package of its own. The ABI is include/railhead.h.
//
// The library owns a rank's side of the control protocol, the mappings and the calls on the data path. It must never contain policy
// (the daemon's tables choose the algorithms), exit the process, throw, or wait without a deadline. It trusts the daemon's user (the
// same one, or root) but not the daemon's bytes. It trusts the ranks of its own group, which share memory with it.
package client

import (
	// The packages of the library. The linker needs all of them. The go command needs them too, because it does not track headers
	// outside a package's folder.
	_ "railhead/client/base"
	_ "railhead/client/collectives"
	_ "railhead/client/comm"
	_ "railhead/client/device"
	_ "railhead/client/device/cpu"
	_ "railhead/client/device/cuda"
	_ "railhead/client/ep"
	_ "railhead/client/include"
	_ "railhead/client/kv"
	_ "railhead/client/memory"
	_ "railhead/client/session"
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CFLAGS: -I${SRCDIR}/include
// #cgo CXXFLAGS: -std=c++17 -O3 -g0 -fno-exceptions -fno-rtti -fvisibility=hidden -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR} -I${SRCDIR}/include -I${SRCDIR}/../kernels -I${SRCDIR}/../kernels/include -I${SRCDIR}/../internal/wire
// #cgo LDFLAGS: -lpthread
import "C"

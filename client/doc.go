// Package client is Railhead's client library: the C ABI of railhead.h, its C++ source (which cgo builds into the Go
// binary), and a thin Go wrapper that `railhead demo`, `bench` and the tests use.
//
// It owns a rank's side of the control protocol, the mappings and the calls on the data path. It must never hold policy
// (the daemon's tables say what to run), exit the process, throw, or wait without a deadline. It trusts the daemon's
// user (the same one, or root) but not the daemon's bytes, and it trusts the ranks of its own group, with which it
// shares memory.
package client

// The C++ sources include headers of these packages; the go command rebuilds this package when they change only because
// it imports (and they embed) them.
import (
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CXXFLAGS: -std=c++17 -O3 -fno-exceptions -fno-rtti -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/../kernels -I${SRCDIR}/../kernels/include -I${SRCDIR}/../internal/wire
// #cgo LDFLAGS: -lpthread
import "C"

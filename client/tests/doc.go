// Package tests holds the tests of the client library in Go. They call the Go wrapper or simulate a hostile daemon. Folder programs has
// tests in C and C++.
//
// It must never be imported. Expected results are computed here or in internal/oracle, never by the library.
package tests

import (
	// For parse_hook.cc: client/doc.go says why these imports are needed.
	_ "railhead/client/base"
	_ "railhead/client/include"
	_ "railhead/client/session"
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CXXFLAGS: -std=c++17 -O3 -g0 -fno-exceptions -fno-rtti -fvisibility=hidden -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/.. -I${SRCDIR}/../include -I${SRCDIR}/../../kernels -I${SRCDIR}/../../kernels/include -I${SRCDIR}/../../internal/wire
import "C"

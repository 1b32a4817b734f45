// Package tests holds the tests of the client library: those in Go, which go through the wrapper or play a hostile daemon, and
// programs in C and C++ (folder c), which link the library without Go.
//
// It must never be imported. It trusts nothing of the library: what it compares with is computed here or in internal/oracle.
package tests

import (
	// Of the hook into the parser: see client/base.
	_ "railhead/client/base"
	_ "railhead/client/include"
	_ "railhead/client/session"
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CXXFLAGS: -std=c++17 -O3 -fno-exceptions -fno-rtti -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/.. -I${SRCDIR}/../include -I${SRCDIR}/../../kernels -I${SRCDIR}/../../kernels/include -I${SRCDIR}/../../internal/wire
import "C"

// Package kv holds the calls of KV transfer: an agent's socket to the proxy, its rings, its memory.
//
// It moves no KV bytes and has no thread. It must never wait beyond a deadline. It trusts the proxy, which is the daemon's, but not its bytes.
package kv

import (
	"embed"

	_ "railhead/client/base"
	_ "railhead/client/include"
	_ "railhead/client/memory"
	_ "railhead/client/session"
	_ "railhead/internal/kvwire"
	_ "railhead/internal/wire"
	_ "railhead/kernels"
)

// #cgo CXXFLAGS: -std=c++17 -O3 -g0 -fno-exceptions -fno-rtti -fvisibility=hidden -Wall -Wextra
// #cgo CXXFLAGS: -I${SRCDIR}/.. -I${SRCDIR}/../include -I${SRCDIR}/../../kernels -I${SRCDIR}/../../kernels/include -I${SRCDIR}/../../internal/wire
// #cgo CXXFLAGS: -I${SRCDIR}/../../internal/kvwire
import "C"

// Sources are embedded, and the packages above imported, so that the go command compiles again what includes a header that
// has changed: it looks at no header outside a package's folder.
//
//go:embed *.h *.cc
var Sources embed.FS

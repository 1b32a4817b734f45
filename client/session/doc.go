// Package session holds the connection to the daemon: the protocol's messages, sockets, requests and their answers.
//
// It knows no comm. It trusts the daemon's user (the same one, or root), and checks every byte that the daemon sends.
package session

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

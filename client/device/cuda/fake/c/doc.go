// Package c compiles the driver of package fake. It is a Go package so that the go command compiles the sources and keeps the objects in its
// build cache: internal/librarybuild links them. No Go program may import it, as its functions have the names of the driver's.
package c

import _ "railhead/client/device/cuda" // so that a change of a header compiles the sources again

// #cgo CXXFLAGS: -std=c++17 -O1 -g1 -fvisibility=hidden -Wall -Wextra -I${SRCDIR}/../../../..
import "C"

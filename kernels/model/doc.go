// Package model compiles the memory model (README.md). It is a Go package so that the go command compiles the program and keeps the object in
// its build cache: the tests link it. There main is named modelMain, because cgo has a main of its own.
package model

import _ "railhead/kernels" // so that a change of a header compiles the program again

// #cgo CXXFLAGS: -std=c++17 -O2 -Wall -Wextra -DRH_MODEL -Dmain=modelMain -I${SRCDIR}/.. -I${SRCDIR}/../include
import "C"

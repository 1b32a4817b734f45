// Package wire defines the bytes that daemon and clients exchange: the messages of the unix socket and the control segment that a
// group shares.
//
// It owns layouts, versions and bounds, and refuses every message with an invalid layout or value, whichever side sent it. It has no
// state, no policy and no goroutine.
//
// The C++ client reads the same layouts from wire.h and segment.h. testdata/layout.golden lists every size, offset and constant;
// TestGoLayoutsEqualTheGoldenFile holds the Go structs to it and layout_assert.h (generated) the C++ structs. algorithms.txt
// is the table of algorithms; algorithms.go and algorithms.h are generated from it.
package wire

import "embed"

// Sources are the C headers of this package. They are embedded for one reason: the go command then sees that they
// changed and rebuilds the cgo package that includes them (it does not look at headers outside a package's folder).
//
//go:embed wire.h segment.h algorithms.h layout_assert.h
var Sources embed.FS

//go:generate go test -run TestGeneratedAlgorithmsMatchTheTable -update .
//go:generate go test -run TestGoLayoutsEqualTheGoldenFile -update .

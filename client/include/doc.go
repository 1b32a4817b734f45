// Package include holds railhead.h, the C ABI: all that a program in C sees of the library.
//
// It must never include another header of ours.
package include

import "embed"

// Sources are embedded so that the go command compiles again the packages that include them when they change.
//
//go:embed railhead.h
var Sources embed.FS

// Package include holds the C ABI, all that a program in C sees of the library: railhead.h, and railhead_ep.h and
// railhead_kv.h, which it includes.
//
// Neither may include another header of ours.
package include

import "embed"

// Sources are embedded so that the go command compiles again the packages that include them when they change.
//
//go:embed railhead.h railhead_ep.h railhead_kv.h
var Sources embed.FS

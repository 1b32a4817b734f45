// Package kvwire defines the bytes that agents of KV transfer and the proxy of their node exchange: messages of a socket, and the segment
// with the rings of submissions and completions. kv.h describes them for both sides.
//
// It owns layouts, versions and bounds, and refuses every message with an invalid layout or value. What a client writes into the segment is
// read once and bounded before use. It knows no rights and moves no KV bytes.
package kvwire

import "embed"

// Sources is the C header of this package. It is embedded so that the go command rebuilds the cgo packages that include it when it changes.
//
//go:embed kv.h
var Sources embed.FS

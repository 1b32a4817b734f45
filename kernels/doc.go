// Package kernels holds the sources of the collectives: protocols written once on a small vocabulary (include), and the
// targets that implement it (host: the CPU; cuda: a GPU; model: a memory model for tests).
//
// It owns how bytes move and in which memory order. It must never hold policy (which algorithm, which block size), and
// knows nothing of the rest of the module. It trusts that a Team describes memory that is mapped.
package kernels

import "embed"

// Sources are embedded for one reason: the go command rebuilds the cgo package that includes them when they change (it
// does not look at headers outside a package's folder).
//
//go:embed include host cuda model allreduce.cu
var Sources embed.FS

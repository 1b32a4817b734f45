// Package kernels holds the sources of the collectives: protocols written once on a small vocabulary (include), and the
// targets that implement it (host: the CPU; cuda: a GPU; gpuhost: a GPU's kernels on a CPU, and model: a memory model, both for tests).
//
// It decides how bytes move and in which memory order. It must never hold policy (which algorithm, which block size), and
// knows nothing of the rest of the module. It trusts that a Team describes mapped memory.
package kernels

import "embed"

// Sources embeds the files so that the go command rebuilds the cgo package that includes them when they change: it does not
// look at headers, or at images of GPU kernels, outside a package's folder.
//
//go:embed include host cuda gpuhost model ptx cubin
var Sources embed.FS

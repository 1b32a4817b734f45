// Package ncclstyle makes `railhead bench` speak as NVIDIA's nccl-tests do: the same meaning of sizes and flags, the
// same columns, the same footer, so that results can be laid side by side and existing scripts read both.
//
// It owns formats and arithmetic only. It must never measure, start anything, parse a command line or decide whether a
// result is right. It trusts its caller with the figures, and not with the text of flags, which a person typed.
//
// Formats, defaults and meanings were read off nccl-tests 2.19.6 (commit a0b82b2, src/common.cu, src/util.cu,
// src/*.cu for the bandwidths); the code here is written anew.
package ncclstyle

// nccl-tests' defaults of the flags that `bench` shares with it.
const (
	DefaultMinBytes    = 32 << 20 // -b
	DefaultMaxBytes    = 32 << 20 // -e
	DefaultStepBytes   = 1 << 20  // -i
	DefaultStepFactor  = 1        // -f: 1 means steps of -i bytes
	DefaultIters       = 20       // -n
	DefaultWarmupIters = 1        // -w
	DefaultCheckIters  = 1        // -c
)

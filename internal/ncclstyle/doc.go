// Package ncclstyle gives `railhead bench` the interface of NVIDIA's nccl-tests: the same meaning of sizes and flags, the same
// columns and footer, so that results can be compared and existing scripts read both.
//
// It owns formats and arithmetic only. It must never measure, start anything, parse a command line or decide whether a result is
// right. It trusts the caller's figures, but not the text of flags.
//
// Formats, defaults and meanings are those of nccl-tests 2.19.6 (commit a0b82b2; src/common.cu, src/util.cu, and src/*.cu for the
// bandwidths). The code is our own.
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

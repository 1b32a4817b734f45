package plan

import (
	"math"

	"railhead/internal/wire"
)

// unreachable is a threshold that no buffer reaches.
const unreachable = math.MaxUint64

// twoshotFrom is the size in bytes from which on an all-reduce that copies is two-shot. One-shot has one exchange and reads
// everybody's whole buffer; two-shot has two, and reads each element twice however many ranks there are. Two ranks would save
// nothing but a second read of a half.
func twoshotFrom(world int) uint64 {
	if world == 2 {
		return unreachable
	}
	return 16 << 10
}

// pullFrom is the size from which on a second exchange costs less than copying into a buffer that all can see.
func pullFrom(index, world int) uint64 {
	const part = 32 << 10
	switch index {
	case wire.PlanAllGather:
		return part * uint64(world) // the size is that of all parts
	case wire.PlanBroadcast:
		return unreachable // has no zero-copy form
	}
	return part
}

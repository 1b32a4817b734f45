package group

import (
	"runtime"
	"time"

	"railhead/engine/plan"
	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// Bounds of what the daemon holds and remembers.
const (
	Max        = 1024 // groups at a time
	maxHistory = 64   // ended groups that reports remember

	MaxTraces    = 8               // ended groups whose flight record is remembered,
	EndedRecords = 64              // and how many operations of each rank
	StallAfter   = 5 * time.Second // in one operation, and a group counts as stalled
)

const defaultHeapBytes = 16 << 30 // address space of a rank's windows; pages come with windows only

// groupsPerMS is how many groups a daemon could form in a millisecond, and more. So their numbers go on above those of the
// daemons before, which the ranks of their groups bring along, and which are in the names of split groups.
const groupsPerMS = 64

func machineConfig(start time.Time) membership.Config {
	return membership.Config{
		MaxGroups:  Max,
		MaxHistory: maxHistory,
		FirstGroup: membership.GroupID(start.UnixMilli() * groupsPerMS),
		HeapBytes:  defaultHeapBytes,
		BlockBytes: plan.BlockBytes,
		SpinNS:     func(world int) uint32 { return plan.SpinNS(world, runtime.NumCPU()) },
		YieldNS:    func(world int) uint32 { return plan.YieldNS(world, runtime.NumCPU()) },

		CheckForcing: checkForcing,

		PipeSlotBytes:      plan.PipeSlotBytes,
		BroadcastSlotBytes: plan.BroadcastSlotBytes,

		ScratchBytes: ScratchBytes(),
		Memory:       wire.Memory{Kind: wire.MemoryCPU, Granularity: symm.WindowGranule},
	}
}

// ScratchBytes is the part of a heap that holds no windows.
func ScratchBytes() (scratch uint64) {
	for world := 1; world <= rank.MaxPerNode; world++ {
		scratch = max(scratch, wire.ScratchNeed(world, plan.BlockBytes, plan.BroadcastSlotBytes, plan.PipeSlotBytes(world)))
	}
	return (scratch + symm.WindowGranule - 1) / symm.WindowGranule * symm.WindowGranule
}

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

// Bounds of the daemon's groups and its history.
const (
	Max        = 1024 // groups at a time
	maxHistory = 64   // ended groups kept for reports

	MaxTraces    = 8                      // ended groups whose flight record is kept,
	EndedRecords = 64                     // and how many operations of each rank
	StallAfter   = 5 * time.Second        // a group counts as stalled once a rank has been in one operation for this long
	LateAfter    = 100 * time.Millisecond // a rank counts as late once another one has waited for this long
)

const defaultHeapBytes = 16 << 30 // address space of a rank's windows; pages come with windows only

// groupsPerMS is more groups than a daemon can form in a millisecond. The first number of a daemon's groups is derived from the time,
// so that its numbers are above those of earlier daemons, which ranks that come back still use and which are in the names of split
// groups.
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

		CUDA: membership.DeviceConfig{
			Memory:    wire.Memory{Kind: wire.MemoryCUDA, Granularity: symm.CUDAGranule},
			SlotBytes: plan.GPUSlotBytes, ScratchBytes: plan.GPUScratchBytes,
		},
	}
}

// ScratchBytes is the size of the part of a heap that holds no windows.
func ScratchBytes() (scratch uint64) {
	for world := 1; world <= rank.MaxPerNode; world++ {
		scratch = max(scratch, wire.ScratchNeed(world, plan.BlockBytes, plan.BroadcastSlotBytes, plan.PipeSlotBytes(world)))
	}
	return (scratch + symm.WindowGranule - 1) / symm.WindowGranule * symm.WindowGranule
}

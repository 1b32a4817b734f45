package group

import (
	"runtime"
	"time"

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

// What the daemon decides for its groups.
const (
	defaultHeapBytes = 16 << 30 // address space of a rank's windows; pages come with windows only
	// blockBytes is what the one-shot algorithm publishes at a time: two of a rank's blocks and a reader's share of them
	// fit in a second-level cache.
	blockBytes = 64 << 10
	// A broadcast is read by all ranks; its four slots stay in a second-level cache.
	broadcastSlotBytes = 32 << 10
)

// groupsPerMS is how many groups a daemon could form in a millisecond, and more. So their numbers go on above those of the
// daemons before, which the ranks of their groups bring along, and which are in the names of split groups.
const groupsPerMS = 64

func machineConfig(start time.Time) membership.Config {
	return membership.Config{
		MaxGroups:  Max,
		MaxHistory: maxHistory,
		FirstGroup: membership.GroupID(start.UnixMilli() * groupsPerMS),
		HeapBytes:  defaultHeapBytes,
		BlockBytes: blockBytes,
		SpinNS:     spinNS,
		YieldNS:    yieldNS,

		CheckForcing: checkForcing,

		PipeSlotBytes:      pipeSlotBytes,
		BroadcastSlotBytes: broadcastSlotBytes,

		ScratchBytes: ScratchBytes(),
		Memory:       wire.Memory{Kind: wire.MemoryCPU, Granularity: symm.WindowGranule},
	}
}

// ScratchBytes is the part of a heap that holds no windows.
func ScratchBytes() (scratch uint64) {
	for world := 1; world <= rank.MaxPerNode; world++ {
		scratch = max(scratch, wire.ScratchNeed(world, blockBytes, broadcastSlotBytes, pipeSlotBytes(world)))
	}
	return (scratch + symm.WindowGranule - 1) / symm.WindowGranule * symm.WindowGranule
}

// spinNS is how long a wait polls before it sleeps. With a core for every rank a wait is short and waking up is the
// expensive part. With more ranks than cores a rank that spins keeps the one it waits for from running, but not one that
// yields: passing the core on costs a fraction of a sleep and a wake-up, and a turn of all ranks takes longer.
func spinNS(world int) uint32 {
	if world <= runtime.NumCPU() {
		return 50_000
	}
	return 500_000
}

// yieldNS is from when on a spinning wait yields: at once with more ranks than cores, else when it takes longer than a rank
// that runs would keep it waiting.
func yieldNS(world int) uint32 {
	if world <= runtime.NumCPU() {
		return 4_000
	}
	return 0
}

// pipeSlotBytes is the size of a slot of the pipe between two ranks. All pipes of a rank together are at most 1 MiB.
func pipeSlotBytes(world int) uint32 {
	const all, most = 1 << 20, 32 << 10
	return uint32(min(all/wire.PipeSlots/wire.PipeSets/world/1024*1024, most))
}

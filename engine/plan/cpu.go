package plan

import "railhead/internal/wire"

// What the ranks of a group on CPUs have alike, besides the algorithms. It reaches them in Joined and in the plans.
const (
	// BlockBytes is what the one-shot algorithm publishes at a time: two of a rank's blocks and a reader's share of them fit in a
	// second-level cache.
	BlockBytes = 64 << 10
	// BroadcastSlotBytes: a broadcast is read by all ranks; its four slots stay in a second-level cache.
	BroadcastSlotBytes = 32 << 10

	// RingChannels is how many rings a payload is spread over. On a CPU one thread drives all of a rank's: a second one gains nothing.
	RingChannels = 1
	// RingLLBelowBytes: words with a flag of their own save the fetching of a tail and a header, and cost half of every line.
	// Measured (docs/kernels.md): no gain above, and from 1 KiB on a loss.
	RingLLBelowBytes = 256

	// RecheckNS is after how long a sleeping wait reads the ranks' signatures again: nobody wakes it because another rank has
	// called something else. So it bounds how late a mismatch is found, and costs a reading of all ranks' lines ten times a second.
	RecheckNS = 100_000_000

	// EPDeathCheckNS is after how long a dispatch or combine that survives deaths looks for them: all ranks' lease words.
	EPDeathCheckNS = 5_000_000
	// EPWaiterDeadlines: a rank that is late because it waits itself may meet several late ones in turn.
	EPWaiterDeadlines = 4
	// EPStreamAboveBytes: more rows than these do not stay in the caches until the experts read them.
	EPStreamAboveBytes = 32 << 20
)

// SpinNS is how long a wait polls before it sleeps. With a core for every rank a wait is short and waking up is the
// expensive part. With more ranks than cores a rank that spins keeps the one it waits for from running, but not one that
// yields: passing the core on costs a fraction of a sleep and a wake-up, and a turn of all ranks takes longer.
func SpinNS(world, cpus int) uint32 {
	if world <= cpus {
		return 50_000
	}
	return 500_000
}

// YieldNS is from when on a spinning wait yields: at once with more ranks than cores, else when it takes longer than a rank
// that runs would keep it waiting.
func YieldNS(world, cpus int) uint32 {
	if world <= cpus {
		return 4_000
	}
	return 0
}

// PollsPerTurn is how often a spinning wait polls its flag before it looks at the clock and the abort word, and yields: seldom
// where the rank that it waits for runs, often where that rank may be waiting for this processor.
func PollsPerTurn(world, cpus int) uint32 {
	if world <= cpus {
		return 64
	}
	return 8
}

// PipeSlotBytes is the size of a slot of the pipe between two ranks. All pipes of a rank together are at most 1 MiB.
func PipeSlotBytes(world int) uint32 {
	const all, most = 1 << 20, 32 << 10
	return uint32(min(all/wire.PipeSlots/wire.PipeSets/world/1024*1024, most))
}

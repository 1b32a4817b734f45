package plan

import "railhead/internal/wire"

// Parameters of a group on CPUs, the same on all ranks. The daemon sends them in Joined and in the plans.
const (
	// BlockBytes is the size of a block of one-shot. Two blocks of a rank, and a reader's share of them, fit in an L2
	// cache. So do the two blocks of each of two ranks, which swap them.
	BlockBytes = 64 << 10
	// BroadcastSlotBytes is the size of a slot of a broadcast. Its four slots stay in an L2 cache until all ranks have read them.
	BroadcastSlotBytes = 32 << 10

	// RingChannels is how many rings a payload is spread over. On a CPU one thread drives all rings of a rank: a second ring gains nothing.
	RingChannels = 1
	// RingLLBelowBytes is the size below which rings use LL. LL saves the reads of a tail and a header, but flags are half of its bytes.
	// Measured (docs/kernels.md): no gain above this size, and a loss from 1 KiB on.
	RingLLBelowBytes = 256

	// RecheckNS is the interval at which a sleeping wait reads the ranks' signatures, since a rank that calls something else does not wake
	// it. It bounds how late a mismatch is found, and costs a read of all rank lines ten times a second.
	RecheckNS = 100_000_000

	// BusyNS is for how long a rank's waits do not yield once a turn of polls has shown that its processor is busy. Then they yield again, and
	// if it is still busy the time doubles, up to BusyMostNS. A pause of the whole machine looks the same, so the first time is short. A yield
	// on a busy processor takes tens of ms, so the last one is long.
	BusyNS     = 10_000_000
	BusyMostNS = 1_000_000_000

	// EPDeathCheckNS is the interval at which a dispatch or combine that survives deaths reads all ranks' lease words.
	EPDeathCheckNS = 5_000_000
	// EPWaiterDeadlines is after how many deadlines a late rank is given up that itself waits: it may wait for several late ranks in turn.
	EPWaiterDeadlines = 4
	// EPStreamAboveBytes is the size of all ranks' received rows above which they bypass the caches: more would not stay there until the
	// experts read them. The ranks of a node share its last cache.
	EPStreamAboveBytes = 32 << 20
)

// SpinNS is how long a wait polls before it sleeps. With a processor for every rank waits are short, and a wake-up costs more. With more
// ranks than processors a spinning rank yields to the rank that it waits for. A yield costs a fraction of a sleep and a wake-up, so it
// spins longer: until all ranks have had a turn.
func SpinNS(world, cpus int) uint32 {
	if world <= cpus {
		return 50_000
	}
	return 500_000
}

// YieldNS is after how long a spinning wait yields: at once with more ranks than processors, else when a rank that runs would have
// arrived.
func YieldNS(world, cpus int) uint32 {
	if world <= cpus {
		return 4_000
	}
	return 0
}

// PollsPerTurn is how many times a spinning wait polls its flag before it reads the clock and the abort word, and yields: many times with
// a processor for every rank, few where the rank that it waits for may need this one.
func PollsPerTurn(world, cpus int) uint32 {
	if world <= cpus {
		return 64
	}
	return 8
}

// LongTurnNS is the time above which a turn of polls, with its yield, shows that the processor is busy: that other processes than the ranks
// use it. A process that does not yield runs for a time slice, 1.5 ms or more. Ranks that share the processor wait, and so yield, more
// often: even 32 of them have all had a turn after 4 ms.
func LongTurnNS(world, cpus int) uint32 {
	sharing := (world + cpus - 1) / max(1, cpus) // ranks of a processor
	return 1_000_000 * uint32(min(max(1, sharing), 4))
}

// BusySpinNS is how long a wait spins on a busy processor before it sleeps: as long as else with a processor for every rank. With more ranks
// than processors the rank that it waits for may need this one.
func BusySpinNS(world, cpus int) uint32 {
	if world <= cpus {
		return SpinNS(world, cpus)
	}
	return 0
}

// PipeSlotBytes is the size of a slot of the pipe between two ranks. All pipes of a rank together are at most 1 MiB.
func PipeSlotBytes(world int) uint32 {
	const all, most = 1 << 20, 32 << 10
	return uint32(min(all/wire.PipeSlots/wire.PipeSets/world/1024*1024, most))
}

package wire

import (
	"fmt"

	"railhead/internal/rank"
)

// Bounds of plans.
const (
	MaxChoices  = 24 // ranges of sizes of a plan
	MaxPlans    = 16 // collectives that the plans of a device have room for
	MaxChannels = 4  // rings that a payload is spread over
	cpuWords    = 16
)

// Why says why an algorithm was chosen (rhw_why).
type Why uint16

// Reasons for a choice.
const (
	WhyNone        Why = 0
	WhyDefault     Why = 1 // by the daemon's own thresholds
	WhyTuned       Why = 2 // by the table that `railhead tune` has measured
	WhyForced      Why = 3 // by RAILHEAD_ALGO
	WhyOnly        Why = 4 // the operation has no other
	WhyNotZeroCopy Why = 5 // RAILHEAD_ALGO allows only pull, which this call cannot be
)

var whyNames = []string{"none", "default", "tuned", "forced", "only", "not_zero_copy"}

// String is the name that JSON and the C ABI use.
func (w Why) String() string {
	if int(w) < len(whyNames) {
		return whyNames[w]
	}
	return fmt.Sprintf("why_%d", uint16(w))
}

// Collectives that have a choice of algorithms, in the order of Plans (rhw_planned).
const (
	PlanAllReduce = iota
	PlanReduceScatter
	PlanAllGather
	PlanAllToAll
	PlanBroadcast
	PlanCount
)

// CPUMask is a set of processors, 64 a word.
type CPUMask [cpuWords]uint64

// Choice is the algorithm for sizes below BelowBytes, and not below that of the choice before. What is 0 from Protocol on is the
// group's, or has no meaning for the device.
type Choice struct {
	BelowBytes uint64 // of the last choice all ones
	Algo       uint16 // an Algo
	Why        Why
	Protocol   uint16
	Channels   uint16
	Blocks     uint16 // of a GPU's kernel
	Threads    uint16 // of each of these
	ChunkBytes uint32
	Reserved0  uint64
}

// Plan is what a collective runs, by the larger of a rank's two buffers.
type Plan struct {
	Count     uint32
	Reserved0 uint32
	Choice    [MaxChoices]Choice
}

// Plans lie in the control segment, one for each device that the group has ranks on. The daemon writes them before it hands the
// segment out.
type Plans struct {
	Device       Device
	Collectives  uint32 // plans in use
	Channels     uint32
	LlBelowBytes uint32                 // below this size rings use LL
	Order        [rank.MaxPerNode]uint8 // the local rank at each place of a ring; 0 beyond their number
	// How ranks wait, and when they write past the caches; wire.h says what each is.
	PollsPerTurn       uint32
	EPWaiterDeadlines  uint32
	RecheckNS          uint64
	EPDeathCheckNS     uint64
	EPStreamAboveBytes uint64
	Reserved0          [2]uint64
	ZeroCopy           [MaxPlans]Plan // AlgoPull where it is chosen, AlgoAuto = as Copied
	Copied             [MaxPlans]Plan
}

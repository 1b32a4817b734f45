package wire

import (
	"fmt"

	"railhead/internal/rank"
)

// Bounds of plans.
const (
	MaxChoices  = 24 // of a plan
	MaxPlans    = 16 // of a device, one for each collective
	MaxDevices  = 2  // kinds of devices among a group's plans
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
	WhyNotZeroCopy Why = 5 // RAILHEAD_ALGO allows only algorithms between windows, which this call cannot use
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
	// On a CUDA device, of types that travel in packets.
	PlanAllReducePackets     = PlanCount
	PlanReduceScatterPackets = PlanCount + 1
	PlanTransfers            = PlanCount + 2 // sends and receives, also those of a gather, scatter or reduce; the size is that of one
	PlanCountCUDA            = PlanCount + 3
)

// CPUMask is a set of processors, 64 a word.
type CPUMask [cpuWords]uint64

// Choice is the algorithm for sizes from the previous choice's BelowBytes up to its own, exclusive. 0 in a field from Protocol on is
// the group's value, or has no meaning for the device.
type Choice struct {
	BelowBytes uint64 // the last choice's is all ones
	Algo       uint16 // an Algo
	Why        Why
	Protocol   uint16
	Channels   uint16
	Blocks     uint16 // thread blocks of a GPU kernel; of AlgoCopy those of pull, which runs where it cannot; 0: pull is not allowed
	Threads    uint16 // threads of a block
	ChunkBytes uint32
	Reserved0  uint64
}

// Plan is a collective's choices by size; the size is that of a rank's larger buffer.
type Plan struct {
	Count        uint32
	StageFromKib uint32 // of a zero-copy plan on a CUDA device: from this size on, buffers in no window are copied to windows of the library; 0 = never
	Choice       [MaxChoices]Choice
}

// Plans lie in the control segment, one for each kind of device: the CPU first, on which set-up calls run, then CUDA if the ranks have it. The
// daemon writes them before any rank gets the segment.
type Plans struct {
	Device       Device
	Collectives  uint32 // plans in use; 0 = the element is not in use
	Channels     uint32
	LlBelowBytes uint32                 // below this size rings use LL
	Order        [rank.MaxPerNode]uint8 // local ranks in ring order; 0 from LocalSize on
	// How ranks wait, and when stores bypass the caches; see segment.h.
	PollsPerTurn       uint32
	EPWaiterDeadlines  uint32
	RecheckNS          uint64
	EPDeathCheckNS     uint64
	EPStreamAboveBytes uint64
	LongTurnNS         uint32
	BusyNS             uint32
	BusyMostNS         uint32
	BusySpinNS         uint32
	ZeroCopy           [MaxPlans]Plan // AlgoPull or AlgoCopy; AlgoAuto = as Copied
	Copied             [MaxPlans]Plan
}

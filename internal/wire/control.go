package wire

import "fmt"

// The control segment: one memfd a group, mapped by the daemon and by every rank (wire.h has the same structs).
const (
	ControlMagic    = 0x4c52544e4f434852 // "RHCONTRL"
	ControlVersion  = 1
	PlansOffset     = 1024
	RankLinesOffset = 4096
	rankLineBytes   = 128
	FlightOffset    = RankLinesOffset + MaxWorld*rankLineBytes // of the ranks' flight records
	FlightRecords   = 1024                                     // of a rank
	FlightWords     = 8                                        // of a record, 64 bits each
	flightRingBytes = FlightRecords * FlightWords * 8

	// WatchOffset and AbortOffset are where those words of the header lie.
	WatchOffset = 32
	AbortOffset = 64

	// ScratchHeaderBytes is the front of a heap's scratch: the epoch and all flags of its rank.
	ScratchHeaderBytes = 24576
	// PipeSlots is how many chunks a pipe holds; PipeSets how many pipes a rank has to each other.
	PipeSlots = 4
	PipeSets  = 2
	// LLSlotBytes is the size of a slot of an LL pipe, which has the slots of a pipe and two lines of flags; LLPipes how many of
	// them there are.
	LLSlotBytes  = 1024
	LLPipes      = MaxChannels
	llFlagsBytes = 128
)

// ScratchNeed is how many bytes of a heap the collectives of a group use: the header, two blocks, the slots of the rank's
// broadcasts, those of its pipes to every rank and its LL pipes.
func ScratchNeed(world int, block, broadcastSlot, pipeSlot uint32) uint64 {
	const ll = LLPipes * (llFlagsBytes + PipeSlots*LLSlotBytes)
	return ScratchHeaderBytes + 2*uint64(block) + PipeSlots*(uint64(broadcastSlot)+PipeSets*uint64(world)*uint64(pipeSlot)) + ll
}

// ControlHeader begins the control segment.
type ControlHeader struct {
	Magic       uint64
	Version     uint32
	World       uint32
	Group       uint64
	Incarnation uint64
	Watch       uint32
	Reserved2   uint32
	Reserved0   [3]uint64
	Abort       uint64
	Reserved1   [7]uint64
}

// RankLine is one rank's part of the control segment.
type RankLine struct {
	LeaseNext  uint64
	Lease      uint32
	Reserved0  uint32
	Reserved1  [6]uint64
	Seq        uint64
	Op         Op
	Chosen     uint32 // the Algo that ran last, its Why in the upper half
	Bytes      uint64
	WaitingFor uint64
	Call       uint64
	CallCount  uint64
	OtherCall  uint64
	OtherCount uint64
}

// FlightRecord is one operation of a rank.
type FlightRecord struct {
	Number       uint64
	Call         uint64
	Bytes        uint64
	Collective   uint64
	Enqueued     uint64
	FirstArrival uint64
	LastArrival  uint64
	Done         uint64
}

// Offsets in a RankLine of the words that the daemon reads atomically.
const (
	LeaseOffset      = 8
	SeqOffset        = 64
	OpOffset         = 72
	ChosenOffset     = 76
	BytesOffset      = 80
	WaitingForOffset = 88
)

// ControlBytes is the size of the control segment of a group.
func ControlBytes(world int) uint64 { return EPCountersOffset(world, world) }

// RankLineOffset is where a rank's line begins.
func RankLineOffset(rank int) uint64 { return uint64(RankLinesOffset + rank*rankLineBytes) }

// FlightRingOffset is where a rank's flight record begins.
func FlightRingOffset(rank int) uint64 { return uint64(FlightOffset + rank*flightRingBytes) }

// The lease word is the kernel's robust futex word (linux/futex.h): the holder's tid and two flags.
const (
	LeaseWaiters   = 0x80000000 // set by the daemon before it sleeps, so that the kernel wakes it
	LeaseOwnerDied = 0x40000000 // set by the kernel when the holder dies
	LeaseTIDMask   = 0x3fffffff
)

// Op is what a rank is doing (rhw_op).
type Op uint32

// Operations.
const (
	OpNone        Op = 0
	OpCommInit    Op = 1
	OpAllReduce   Op = 2
	OpBarrier     Op = 3
	OpWindowAlloc Op = 4
	OpWindowFree  Op = 5
	OpFinalize    Op = 6

	OpAllGather      Op = 7
	OpReduceScatter  Op = 8
	OpAllToAll       Op = 9
	OpBroadcast      Op = 10
	OpReduce         Op = 11
	OpGather         Op = 12
	OpScatter        Op = 13
	OpSend           Op = 14
	OpRecv           Op = 15
	OpGroup          Op = 16
	OpSplit          Op = 17
	OpWindowRegister Op = 18

	OpEPCreate       Op = 19
	OpEPDestroy      Op = 20
	OpEPDispatch     Op = 21
	OpEPDispatchSend Op = 22
	OpEPDispatchRecv Op = 23
	OpEPCombine      Op = 24
	OpEPCombineSend  Op = 25
	OpEPCombineRecv  Op = 26
)

var opNames = []string{
	"none", "comm_init", "all_reduce", "barrier", "window_alloc", "window_free", "finalize", "all_gather", "reduce_scatter",
	"all_to_all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "group", "split", "window_register",
	"ep_create", "ep_destroy", "ep_dispatch", "ep_dispatch_send", "ep_dispatch_recv", "ep_combine", "ep_combine_send", "ep_combine_recv",
}

// String is the name that JSON and error texts use.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op_%d", uint32(o))
}

// NoRank stands for "not known" (culprit) or "the daemon" (reporter) in the abort word.
const NoRank = 0xffff

// Abort is the abort word taken apart; wire.h says where each part lies. The zero word means: the group works.
type Abort struct {
	Code     Result
	Op       Op
	Culprit  int // -1 = not known
	Reporter int // -1 = the daemon
}

// Word puts the abort word together.
func (a Abort) Word() uint64 {
	return uint64(a.Code)&0xff | uint64(a.Op)&0xff<<8 | rank16(a.Culprit)<<16 | rank16(a.Reporter)<<32
}

// ParseAbort takes the word apart; ok is false while the group works.
func ParseAbort(w uint64) (a Abort, ok bool) {
	if w == 0 {
		return Abort{}, false
	}
	return Abort{
		Code:     Result(w & 0xff),
		Op:       Op(w >> 8 & 0xff),
		Culprit:  rankInt(w >> 16 & 0xffff),
		Reporter: rankInt(w >> 32 & 0xffff),
	}, true
}

func rank16(r int) uint64 {
	if r < 0 || r >= NoRank {
		return NoRank
	}
	return uint64(r)
}

func rankInt(v uint64) int {
	if v == NoRank {
		return -1
	}
	return int(v)
}

package wire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"railhead/internal/rank"
)

// The control segment: one memfd a group, mapped by the daemon and by every rank (segment.h has the same structs). Where its parts
// lie is in parts.go.
const (
	ControlMagic    = 0x4c52544e4f434852 // "RHCONTRL"
	ControlVersion  = 3
	MaxControl      = 1 << 30 // bytes of a control segment
	rankLineBytes   = 256
	FlightRecords   = 1024 // of a rank
	FlightWords     = 16   // of a record, 64 bits each
	flightRingBytes = FlightRecords * FlightWords * 8

	// AbortOffset is where the abort word of the header lies.
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
	LocalSize   uint32
	Nodes       uint32
	Node        rank.Node
	FirstRank   rank.World // that of local rank 0; the others follow
	Bytes       uint64     // of the segment
	Reserved0   uint64
	Abort       uint64
	Reserved1   [7]uint64
	Parts       Parts
}

// Lease is a futex word that its holder's control thread has in its robust list.
type Lease struct {
	Next      uint64
	Word      uint32
	Reserved0 uint32
	Client    uint64 // id of the session that holds it
	Reserved1 [5]uint64
}

// The session segment: one memfd a session, made by its client.
const (
	SessionMagic   = 0x4e4f495353455352 // "RSESSION"
	SessionVersion = 1
	SessionBytes   = 4096
	// SessionLeaseOffset is where the lease's word lies.
	SessionLeaseOffset = 64 + LeaseOffset
)

// Session begins the session segment.
type Session struct {
	Magic     uint64
	Version   uint32
	Reserved0 uint32
	Client    uint64 // id of the session, chosen by the client; the same at all daemons that it meets
	Reserved1 [5]uint64
	Lease     Lease
}

// RankLine is one rank's part of the control segment.
type RankLine struct {
	Lease       Lease
	Seq         uint64
	Op          Op
	Chosen      uint32 // the Algo that ran last, its Why in the upper half
	Bytes       uint64
	WaitingFor  rank.LocalSet
	Call        uint64
	CallCount   uint64
	CallDetail  uint64
	AsleepSince uint64
	OtherCall   uint64
	OtherCount  uint64
	OtherDetail uint64
	Rank        rank.World
	Reserved1   uint32
	Way         uint64
	OtherWay    uint64
	Reserved2   [10]uint64
}

// FlightRecord is one operation of a rank.
type FlightRecord struct {
	Number       uint64
	Call         uint64
	Place        uint64
	Bytes        uint64
	Collective   uint64
	Enqueued     uint64
	Done         uint64
	Replay       uint64
	FirstArrival uint64
	LastArrival  uint64
	LastRank     uint64
	DeviceBegin  uint64
	DeviceEnd    uint64
	Reserved0    [3]uint64
}

// Offsets in a RankLine of the words that are read or written atomically.
const (
	LeaseOffset       = 8
	SeqOffset         = 64
	OpOffset          = 72
	ChosenOffset      = 76
	BytesOffset       = 80
	WaitingForOffset  = 88
	AsleepSinceOffset = 120
	RankOffset        = 152
)

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

// Ops is the number of operations, OpNone included.
const Ops = len(opNames)

var opNames = [...]string{
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

// MarshalText implements encoding.TextMarshaler: JSON has the name.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Op) UnmarshalText(text []byte) error {
	if i := slices.Index(opNames[:], string(text)); i >= 0 {
		*o = Op(i)
		return nil
	}
	number, known := strings.CutPrefix(string(text), "op_")
	n, err := strconv.ParseUint(number, 10, 32)
	if !known || err != nil {
		return fmt.Errorf("operation %.40q is unknown", text)
	}
	*o = Op(n)
	return nil
}

// IsSetUp says whether all ranks must make this call, through the daemon, in a group that is ready.
func (o Op) IsSetUp() bool {
	return o == OpWindowAlloc || o == OpWindowFree || o == OpWindowRegister || o == OpFinalize
}

// IsCollective says whether all ranks must make this call, without the daemon. Those of MoE are not among them.
func (o Op) IsCollective() bool {
	return o == OpAllReduce || o == OpBarrier || o >= OpAllGather && o <= OpScatter
}

// noRank stands for "not known" (culprit) or "the daemon" (reporter) in the abort word.
const noRank = 0xffffff

// Abort is the decoded abort word; segment.h has its layout. While the low half of the word is 0 the group works.
type Abort struct {
	Code     Result
	Op       Op
	Culprit  rank.World // rank.None = not known
	Reporter rank.World // rank.None = the daemon
}

// Word encodes the abort word.
func (a Abort) Word() uint64 {
	return uint64(a.Code)&0xff | rank24(a.Culprit)<<8 | uint64(a.Op)&0xff<<32 | rank24(a.Reporter)<<40
}

// IsBroken says whether an abort word breaks its group. Only the low half counts: ranks poll it and sleep on it.
func IsBroken(w uint64) bool { return uint32(w) != 0 }

// ParseAbort decodes the abort word; ok is false while the group works.
func ParseAbort(w uint64) (a Abort, ok bool) {
	if !IsBroken(w) {
		return Abort{}, false
	}
	return Abort{
		Code:     Result(w & 0xff),
		Op:       Op(w >> 32 & 0xff),
		Culprit:  worldRank(w >> 8 & noRank),
		Reporter: worldRank(w >> 40),
	}, true
}

func rank24(r rank.World) uint64 {
	if r < 0 || r >= noRank {
		return noRank
	}
	return uint64(r)
}

func worldRank(v uint64) rank.World {
	if v == noRank {
		return rank.None
	}
	return rank.World(v)
}

package wire

import "railhead/internal/rank"

// The counters of MoE dispatch and combine (segment.h has the same struct, and who writes and reads it).
const (
	// MaxExperts bounds the physical experts of a buffer.
	MaxExperts = 2048

	epCountersBytes = 36864
)

// EPCounters are the counters of one rank.
type EPCounters struct {
	Dispatches   uint64
	Combines     uint64
	Tokens       uint64
	Copies       uint64
	FlagBytes    uint64
	InvalidIds   uint64
	DuplicateIds uint64
	ExcessTokens uint64
	NonFinite    uint64
	OverCapacity uint64
	LostCopies   uint64
	Experts      uint64
	WaitTurns    uint64
	Reserved0    [3]uint64
	PayloadBytes [rank.MaxPerNode]uint64
	HeaderBytes  [rank.MaxPerNode]uint64
	WaitNS       [rank.MaxPerNode]uint64
	Routed       [MaxExperts]uint64
	Received     [MaxExperts]uint64
	Reserved1    [304]uint64
}

// Offsets in EPCounters, in bytes, of the words and arrays that the daemon reads atomically.
const (
	EPDispatchesOffset = 0
	EPCombinesOffset   = 8
	EPTokensOffset     = 16
	EPCopiesOffset     = 24
	EPFlagBytesOffset  = 32
	EPDroppedOffset    = 40 // EPDropped counters, InvalidIds to LostCopies
	EPDropped          = 6
	EPExpertsOffset    = 88
	EPPayloadOffset    = 128
	EPHeaderOffset     = EPPayloadOffset + 8*rank.MaxPerNode
	EPWaitOffset       = EPHeaderOffset + 8*rank.MaxPerNode
	EPRoutedOffset     = EPWaitOffset + 8*rank.MaxPerNode
	EPReceivedOffset   = EPRoutedOffset + 8*MaxExperts
)

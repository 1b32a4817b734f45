package wire

import (
	"fmt"
	"unsafe"

	"railhead/internal/rank"
)

// segmentUnit: every part of the control segment begins at a multiple of it, in bytes.
const segmentUnit = 4096

// Part is where elements of one kind lie in the control segment. An element may be larger than this version's struct: a later version
// appends fields.
type Part struct {
	Offset uint64
	Count  uint32
	Stride uint32
}

// At is where element i begins.
func (p Part) At(i int) uint64 { return p.Offset + uint64(i)*uint64(p.Stride) }

// Bytes is the size of the part.
func (p Part) Bytes() uint64 { return uint64(p.Count) * uint64(p.Stride) }

// Parts say where the parts of the segment lie behind its header (rhw_parts).
type Parts struct {
	Plans    Part // Plans, one for each kind of device
	Lines    Part // RankLine, by local rank
	Flights  Part // FlightRecords FlightRecord each, by local rank
	Ledger   Part // Ledger, one
	Regions  Part // RegionEntry, by number; [0] is unused
	Windows  Part // a 64-bit word for each window
	Counters Part // EPCounters, by local rank
	Reserved [9]Part
}

// plansBytes is the size of Plans, rounded up to whole pages.
const plansBytes = (uint32(unsafe.Sizeof(Plans{})) + segmentUnit - 1) / segmentUnit * segmentUnit

// need is the size of each part that this version needs, for this many local ranks.
func (p *Parts) need(local int) []struct {
	name string
	part *Part
	need Part // Offset is not used
} {
	return []struct {
		name string
		part *Part
		need Part
	}{
		{"plans", &p.Plans, Part{Count: 1, Stride: plansBytes}},
		{"rank lines", &p.Lines, Part{Count: uint32(local), Stride: rankLineBytes}},
		{"flight records", &p.Flights, Part{Count: uint32(local), Stride: flightRingBytes}},
		{"ledger", &p.Ledger, Part{Count: 1, Stride: ledgerBytes}},
		{"registered windows", &p.Regions, Part{Count: MaxRegion + 1, Stride: regionEntryBytes}},
		{"windows", &p.Windows, Part{Count: MaxWindows, Stride: 8}},
		{"counters", &p.Counters, Part{Count: uint32(local), Stride: epCountersBytes}},
	}
}

// PartsOf lays out the segment of a group with this many local ranks.
func PartsOf(local int) Parts {
	p, _ := layOut(local)
	return p
}

// ControlBytes is the size of that segment.
func ControlBytes(local int) uint64 {
	_, bytes := layOut(local)
	return bytes
}

func layOut(local int) (p Parts, bytes uint64) {
	at := uint64(segmentUnit)
	for _, n := range p.need(local) {
		*n.part = n.need
		n.part.Offset = at
		switch n.part { // small, so every group has room for the maximum
		case &p.Plans:
			n.part.Count = MaxDevices
		case &p.Lines:
			n.part.Count = rank.MaxPerNode
		}
		at += (n.part.Bytes() + segmentUnit - 1) / segmentUnit * segmentUnit
	}
	return p, at
}

// Check validates parts written by another process, for a segment of this size and this many local ranks: each part lies inside the
// segment and is as large as this version needs.
func (p *Parts) Check(local int, bytes uint64) error {
	for _, n := range p.need(local) {
		got := *n.part
		if got.Offset < segmentUnit || got.Offset%segmentUnit != 0 || got.Offset > bytes || got.Bytes() > bytes-got.Offset {
			return fmt.Errorf("wire: %s: %d elements of %d bytes at %d, in a segment of %d bytes", n.name, got.Count, got.Stride, got.Offset, bytes)
		}
		if got.Count < n.need.Count || got.Stride < n.need.Stride || got.Stride%8 != 0 {
			return fmt.Errorf("wire: %s: %d elements of %d bytes, expected at least %d of %d", n.name, got.Count, got.Stride, n.need.Count,
				n.need.Stride)
		}
	}
	return nil
}

// OutcomeOffset is where the outcome of set-up call n lies in the control segment. Call n+2 overwrites it.
func (p *Parts) OutcomeOffset(n uint64) uint64 {
	return p.Ledger.Offset + OutcomesOffset + n%2*OutcomeBytes
}

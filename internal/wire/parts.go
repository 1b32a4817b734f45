package wire

import (
	"fmt"
	"unsafe"

	"railhead/internal/rank"
)

// segmentUnit is what a part of the control segment begins at a multiple of.
const segmentUnit = 4096

// Part is where elements of one kind lie in the control segment. They are at least as large as the struct that this side knows.
type Part struct {
	Offset uint64
	Count  uint32
	Stride uint32
}

// At is where element i begins.
func (p Part) At(i int) uint64 { return p.Offset + uint64(i)*uint64(p.Stride) }

// Bytes is how much the whole part has.
func (p Part) Bytes() uint64 { return uint64(p.Count) * uint64(p.Stride) }

// Parts say where everything behind the header lies (rhw_parts).
type Parts struct {
	Plans    Part // Plans, one for each device
	Lines    Part // RankLine, by local rank
	Flights  Part // FlightRecords FlightRecord each, by local rank
	Ledger   Part // Ledger, one
	Regions  Part // RegionEntry, by number; [0] is unused
	Windows  Part // a 64-bit word for each window
	Counters Part // EPCounters, by local rank
	Reserved [9]Part
}

// plansBytes is the size of Plans, on whole pages.
const plansBytes = (uint32(unsafe.Sizeof(Plans{})) + segmentUnit - 1) / segmentUnit * segmentUnit

// need is what this version needs of each part, for so many local ranks.
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

// PartsOf lays a segment out for so many local ranks.
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
		if n.part == &p.Lines {
			n.part.Count = rank.MaxPerNode // they are small, and there is room for ranks that a group does not have
		}
		at += (n.part.Bytes() + segmentUnit - 1) / segmentUnit * segmentUnit
	}
	return p, at
}

// Check holds parts that another process has written to a segment of so many bytes and local ranks: each one has what this
// version needs of it, and lies inside.
func (p *Parts) Check(local int, bytes uint64) error {
	for _, n := range p.need(local) {
		got := *n.part
		if got.Offset < segmentUnit || got.Offset%segmentUnit != 0 || got.Offset > bytes || got.Bytes() > bytes-got.Offset {
			return fmt.Errorf("wire: %s of %d times %d bytes at %d, in a segment of %d", n.name, got.Count, got.Stride, got.Offset, bytes)
		}
		if got.Count < n.need.Count || got.Stride < n.need.Stride || got.Stride%8 != 0 {
			return fmt.Errorf("wire: %s of %d times %d bytes, expected at least %d times %d", n.name, got.Count, got.Stride, n.need.Count,
				n.need.Stride)
		}
	}
	return nil
}

// OutcomeOffset is where the outcome of the n-th set-up call lies in the control segment. The next but one overwrites it.
func (p *Parts) OutcomeOffset(n uint64) uint64 {
	return p.Ledger.Offset + OutcomesOffset + n%2*OutcomeBytes
}

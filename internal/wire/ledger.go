package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The ledger: the part of a control segment from which another daemon can take the group over. It follows the flight records.
// Only the daemon writes it; the ranks read how their set-up calls ended. (wire.h has the same structs, and the order in which
// they are written.)
const (
	// MaxWindows bounds the windows of a group that lie in its heaps, as the table has room.
	MaxWindows = 16384

	// Where the parts lie, from the ledger's beginning.
	regionTableOffset = 4096
	regionEntryBytes  = 272
	windowTableOffset = regionTableOffset + (MaxRegion+1)*regionEntryBytes
	ledgerBytes       = windowTableOffset + 8*MaxWindows

	// EndedOffset is where Ledger.Ended lies, OutcomesOffset Ledger.Outcomes.
	EndedOffset    = 640
	OutcomesOffset = 704
	OutcomeBytes   = 360
	// LiveOffset is where RegionEntry.Live lies.
	LiveOffset = 8

	// WindowUnit is what an entry of the window table counts in.
	WindowUnit = 64 << 10
)

// Ledger is its first page.
type Ledger struct {
	Name, Token  Name
	HeapBytes    uint64
	ScratchBytes uint64
	ReduceGroup  uint32
	Reproducible uint32
	Pids         [MaxWorld]uint32
	Forcing      Forcing
	Reserved0    [5]uint64
	Ended        uint64
	Reserved1    [7]uint64
	Outcomes     [2]Outcome
}

// Outcome is how a set-up call ended, for all ranks alike.
type Outcome struct {
	Op         Op
	Code       Result
	Culprit    int32
	StagedRank int32
	Region     uint32
	Reserved0  uint32
	Offset     uint64
	Bytes      uint64
	Text       Text
}

// RegionEntry is a registered window in its table, at its number.
type RegionEntry struct {
	Bytes      uint64
	Live       uint32
	StagedRank int32
	Reason     Reason
}

// LedgerOffset is where a group's ledger begins in its control segment: behind the flight records.
func LedgerOffset(world int) uint64 { return FlightRingOffset(world) }

// OutcomeOffset is where the outcome of the n-th set-up call lies in the control segment. The next but one overwrites it.
func OutcomeOffset(world int, n uint64) uint64 {
	return LedgerOffset(world) + OutcomesOffset + n%2*OutcomeBytes
}

// RegionOffset is where a registered window's entry lies in the control segment.
func RegionOffset(world int, number uint32) uint64 {
	return LedgerOffset(world) + regionTableOffset + uint64(number)*regionEntryBytes
}

// WindowOffset is where a slot of the window table lies in the control segment.
func WindowOffset(world, slot int) uint64 {
	return LedgerOffset(world) + windowTableOffset + 8*uint64(slot)
}

// WindowEntry puts a slot's word together, so that one store makes a window or ends it: 0 is an empty slot.
func WindowEntry(offset, bytes uint64) uint64 {
	return offset/WindowUnit<<32 | bytes/WindowUnit
}

// ParseWindowEntry takes the word apart; ok is false for an empty slot.
func ParseWindowEntry(w uint64) (offset, bytes uint64, ok bool) {
	return w >> 32 * WindowUnit, w & 0xffffffff * WindowUnit, w&0xffffffff != 0
}

// DecodeLedger reads the first page's struct. Any rank may have written anything there: nothing is taken as it is.
func DecodeLedger(b []byte) (Ledger, error) {
	var l Ledger
	if _, err := binary.Decode(b, binary.LittleEndian, &l); err != nil {
		return l, fmt.Errorf("wire: ledger: %w", err)
	}
	if err := l.check(); err != nil {
		return l, fmt.Errorf("wire: ledger: %w", err)
	}
	return l, nil
}

func (l *Ledger) check() error {
	if err := firstError(checkCString("name", l.Name[:]), checkCString("token", l.Token[:]),
		checkCString("forced algorithms", l.Forcing[:]), checkNotEmpty("name", l.Name)); err != nil {
		return err
	}
	if l.HeapBytes == 0 || l.HeapBytes > maxSegmentBytes || l.ScratchBytes == 0 || l.ScratchBytes > l.HeapBytes {
		return fmt.Errorf("heap of %d bytes with %d of scratch", l.HeapBytes, l.ScratchBytes)
	}
	if l.HeapBytes%WindowUnit != 0 || l.ScratchBytes%WindowUnit != 0 {
		return fmt.Errorf("heap of %d bytes with %d of scratch, expected multiples of %d", l.HeapBytes, l.ScratchBytes, WindowUnit)
	}
	if l.Ended == 0 {
		return errors.New("the group was not ready")
	}
	return l.Last().check()
}

// Last is how the latest set-up call ended.
func (l *Ledger) Last() *Outcome { return &l.Outcomes[l.Ended%2] }

func (o *Outcome) check() error {
	if !o.Code.Known() {
		return fmt.Errorf("outcome with result %d", o.Code)
	}
	if o.StagedRank < -1 || o.StagedRank >= MaxWorld {
		return fmt.Errorf("outcome with staged rank %d", o.StagedRank)
	}
	if o.Op == OpWindowRegister && o.Code == ResultOK {
		if err := checkRegion(o.Region); err != nil {
			return err
		}
	}
	return checkCString("outcome's text", o.Text[:])
}

// DecodeRegionEntry reads a registered window's entry, with Live as read before the rest.
func DecodeRegionEntry(b []byte, live uint32) (RegionEntry, error) {
	var e RegionEntry
	if _, err := binary.Decode(b, binary.LittleEndian, &e); err != nil {
		return e, fmt.Errorf("wire: registered window: %w", err)
	}
	e.Live = live
	if live == 0 {
		return e, nil
	}
	err := firstError(checkRange(e.Bytes, 0), checkCString("reason", e.Reason[:]))
	if err == nil && (e.StagedRank < -1 || e.StagedRank >= MaxWorld || (e.StagedRank < 0) != (e.Reason[0] == 0)) {
		err = fmt.Errorf("staged rank %d with the reason %q", e.StagedRank, e.Reason)
	}
	if err != nil {
		return e, fmt.Errorf("wire: registered window: %w", err)
	}
	return e, nil
}

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"railhead/internal/rank"
)

// The ledger: what a new daemon needs to take the group over. It is a part of the control segment, beside the two tables of windows.
// Only the daemon writes them; the ranks read the outcomes of set-up calls. (segment.h has the same structs, and the order of writes.)
const (
	// MaxWindows is the size of the table of windows in heaps.
	MaxWindows = 16384
	// MaxMemories bounds the kinds of memory among a group's windows. MemoryOfCPU and MemoryOfDevice are the indices of those in use.
	MaxMemories    = 4
	MemoryOfCPU    = 0
	MemoryOfDevice = 1

	ledgerBytes      = 4096
	regionEntryBytes = 280

	// EndedOffset is where Ledger.Ended lies, OutcomesOffset Ledger.Outcomes.
	EndedOffset    = 704
	OutcomesOffset = 768
	OutcomeBytes   = 360
	// LiveOffset is where RegionEntry.Live lies.
	LiveOffset = 8
)

// Memory is a kind of memory of windows. Their offsets and sizes are multiples of its granularity, a power of two, in bytes.
type Memory struct {
	Kind        MemoryKind // 0 = the entry is not in use
	Granularity uint32
}

// Ledger is the ledger's page.
type Ledger struct {
	Name, Token  Name
	HeapBytes    uint64
	ScratchBytes uint64
	ReduceGroup  uint32
	Reproducible uint32
	Memory       [MaxMemories]Memory // a window's word has an index of it: MemoryOfCPU or MemoryOfDevice
	Pids         [rank.MaxPerNode]uint32
	Forcing      Forcing

	DeviceHeapBytes uint64
	Device          Device // on which the ranks run
	Reserved2       uint32
	Reserved0       [7]uint64

	Ended     uint64
	Reserved1 [7]uint64
	Outcomes  [2]Outcome
}

// Outcome is how a set-up call ended, the same on all ranks.
type Outcome struct {
	Op          Op
	Code        Result
	Culprit     rank.World
	StagedLocal rank.Local
	Region      uint32
	Memory      uint32 // of windows: index of Ledger.Memory
	Offset      uint64
	Bytes       uint64
	Text        Text
}

// RegionEntry is an entry of the table of registered windows, by number.
type RegionEntry struct {
	Bytes       uint64
	Live        uint32
	StagedLocal rank.Local
	Memory      MemoryKind
	Reserved0   uint32
	Reason      Reason
}

// Offset and size have windowBits bits each in a window's word (segment.h), in granules of its memory.
const windowBits = 28

// WindowEntry encodes a window as one word of its table, so that one store adds or removes it; 0 is an empty slot. memory is an index
// of l.Memory.
func (l *Ledger) WindowEntry(offset, bytes uint64, memory uint32) (uint64, error) {
	if memory >= MaxMemories || l.Memory[memory].Kind == 0 {
		return 0, fmt.Errorf("wire: window of memory %d, which the group does not have", memory)
	}
	g := uint64(l.Memory[memory].Granularity)
	if offset%g != 0 || bytes%g != 0 || bytes == 0 || offset/g >= 1<<windowBits || bytes/g >= 1<<windowBits {
		return 0, fmt.Errorf("wire: window of %d bytes at %d, expected multiples of %d", bytes, offset, g)
	}
	return bytes/g | offset/g<<windowBits | uint64(memory)<<(2*windowBits), nil
}

// ParseWindowEntry takes the word apart; ok is false for an empty slot, and for one of memory that the ledger does not have.
func (l *Ledger) ParseWindowEntry(w uint64) (offset, bytes uint64, memory uint32, ok bool) {
	const field = 1<<windowBits - 1
	memory = uint32(w >> (2 * windowBits))
	if w&field == 0 || memory >= MaxMemories || l.Memory[memory].Kind == 0 {
		return 0, 0, 0, false
	}
	g := uint64(l.Memory[memory].Granularity)
	return w >> windowBits & field * g, w & field * g, memory, true
}

func (m Memory) check() error {
	switch g := m.Granularity; {
	case m.Kind == 0 && g != 0, m.Kind != 0 && (g < 4096 || g > 1<<30 || g&(g-1) != 0):
		return fmt.Errorf("kind %d with granules of %d bytes", m.Kind, g)
	}
	return nil
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
	for i, m := range l.Memory {
		if err := m.check(); err != nil {
			return fmt.Errorf("memory %d: %w", i, err)
		}
	}
	if g := uint64(l.Memory[MemoryOfCPU].Granularity); g == 0 || l.HeapBytes%g != 0 || l.ScratchBytes%g != 0 {
		return fmt.Errorf("heap of %d bytes with %d of scratch, expected granules of %d", l.HeapBytes, l.ScratchBytes, g)
	}
	if err := l.checkDevice(); err != nil {
		return err
	}
	if l.Ended == 0 {
		return errors.New("the group was not ready")
	}
	return l.Last().check()
}

// checkDevice: a group on a device has a second kind of memory and a heap of it, a group on CPUs neither.
func (l *Ledger) checkDevice() error {
	g, heap := uint64(l.Memory[MemoryOfDevice].Granularity), l.DeviceHeapBytes
	switch {
	case !l.Device.Known():
		return fmt.Errorf("device %d", l.Device)
	case l.Device == DeviceCPU && (heap != 0 || g != 0):
		return fmt.Errorf("device heap of %d bytes in granules of %d, of a group on CPUs", heap, g)
	case l.Device == DeviceCUDA && (g == 0 || l.Memory[MemoryOfDevice].Kind != MemoryCUDA || heap == 0 || heap > maxSegmentBytes || heap%g != 0):
		return fmt.Errorf("device heap of %d bytes of memory %+v", heap, l.Memory[MemoryOfDevice])
	}
	return nil
}

// Last is how the latest set-up call ended.
func (l *Ledger) Last() *Outcome { return &l.Outcomes[l.Ended%2] }

func (o *Outcome) check() error {
	if !o.Code.Known() {
		return fmt.Errorf("outcome with result %d", o.Code)
	}
	if o.StagedLocal < rank.None || o.StagedLocal >= rank.MaxPerNode {
		return fmt.Errorf("outcome with staged rank %d", o.StagedLocal)
	}
	if o.Memory >= MaxMemories {
		return fmt.Errorf("outcome with memory %d, there are %d", o.Memory, MaxMemories)
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
	if err == nil {
		err = checkStaged(e.StagedLocal, e.Reason)
	}
	if err != nil {
		return e, fmt.Errorf("wire: registered window: %w", err)
	}
	return e, nil
}

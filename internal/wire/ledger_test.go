package wire

import (
	"encoding/binary"
	"strings"
	"testing"
)

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goodLedger is that of a group on CPUs, or on CUDA devices, that has just formed.
func goodLedger(t *testing.T, device Device) Ledger {
	t.Helper()
	l := Ledger{Name: name(t, "g"), HeapBytes: 1 << 20, ScratchBytes: 1 << 17, ReduceGroup: 1, Device: device, Ended: 1}
	l.Memory[MemoryOfCPU] = Memory{MemoryCPU, 64 << 10}
	l.Outcomes[1].Op = OpCommInit
	if device == DeviceCUDA {
		l.DeviceHeapBytes = 8 << 20
		l.Memory[MemoryOfDevice] = Memory{MemoryCUDA, 2 << 20}
	}
	return l
}

// Any rank can write the ledger.
func TestAnInvalidLedgerIsRefused(t *testing.T) {
	last := func(l *Ledger) *Outcome { return &l.Outcomes[1] }
	for what, c := range map[string]struct {
		device Device
		change func(l *Ledger)
		want   string
	}{
		"no name":                          {DeviceCPU, func(l *Ledger) { l.Name = Name{} }, "name is empty"},
		"a name that is no text":           {DeviceCPU, func(l *Ledger) { l.Name[0] = 0xff }, "name is not UTF-8"},
		"a token without an end":           {DeviceCPU, func(l *Ledger) { copy(l.Token[:], strings.Repeat("x", NameBytes)) }, "token has no NUL"},
		"forced algorithms without an end": {DeviceCPU, func(l *Ledger) { copy(l.Forcing[:], strings.Repeat("x", ForcingBytes)) }, "algorithms has no NUL"},
		"a heap of 0 bytes":                {DeviceCPU, func(l *Ledger) { l.HeapBytes = 0 }, "heap of 0"},
		"a heap beyond any":                {DeviceCPU, func(l *Ledger) { l.HeapBytes = maxSegmentBytes + 64<<10 }, "heap of 1100585435136"},
		"a heap of half granules":          {DeviceCPU, func(l *Ledger) { l.HeapBytes += 32 << 10 }, "granules of 65536"},
		"a scratch of 0 bytes":             {DeviceCPU, func(l *Ledger) { l.ScratchBytes = 0 }, "0 of scratch"},
		"a scratch beyond its heap":        {DeviceCPU, func(l *Ledger) { l.ScratchBytes = 2 << 20 }, "2097152 of scratch"},
		"a scratch of half granules":       {DeviceCPU, func(l *Ledger) { l.ScratchBytes += 32 << 10 }, "granules of 65536"},
		"no memory of a CPU":               {DeviceCPU, func(l *Ledger) { l.Memory[MemoryOfCPU] = Memory{} }, "granules of 0"},
		"granules of 3 pages":              {DeviceCPU, func(l *Ledger) { l.Memory[3] = Memory{7, 3 * 4096} }, "memory 3: kind 7 with granules of 12288"},
		"granules below a page":            {DeviceCPU, func(l *Ledger) { l.Memory[3] = Memory{7, 2048} }, "granules of 2048"},
		"granules of 2 GiB":                {DeviceCPU, func(l *Ledger) { l.Memory[3] = Memory{7, 1 << 31} }, "granules of 2147483648"},
		"granules of no memory":            {DeviceCPU, func(l *Ledger) { l.Memory[3] = Memory{0, 4096} }, "kind 0 with granules of 4096"},
		"an unknown device":                {DeviceCPU, func(l *Ledger) { l.Device = 9 }, "device 9"},
		"a device heap on CPUs":            {DeviceCPU, func(l *Ledger) { l.DeviceHeapBytes = 4096 }, "of a group on CPUs"},
		"device memory on CPUs":            {DeviceCPU, func(l *Ledger) { l.Memory[MemoryOfDevice] = Memory{MemoryCUDA, 2 << 20} }, "of a group on CPUs"},
		"no device memory":                 {DeviceCUDA, func(l *Ledger) { l.Memory[MemoryOfDevice] = Memory{} }, "device heap of 8388608"},
		"device memory of another kind":    {DeviceCUDA, func(l *Ledger) { l.Memory[MemoryOfDevice].Kind = MemoryCPU }, "device heap of 8388608"},
		"a device heap of 0 bytes":         {DeviceCUDA, func(l *Ledger) { l.DeviceHeapBytes = 0 }, "device heap of 0"},
		"a device heap beyond any":         {DeviceCUDA, func(l *Ledger) { l.DeviceHeapBytes = 1 << 41 }, "device heap of 2199023255552"},
		"a device heap of half granules":   {DeviceCUDA, func(l *Ledger) { l.DeviceHeapBytes += 1 << 20 }, "device heap of 9437184"},
		"a group that was not ready":       {DeviceCPU, func(l *Ledger) { l.Ended = 0 }, "not ready"},
		"an unknown result":                {DeviceCPU, func(l *Ledger) { last(l).Code = 999 }, "result 999"},
		"a staged rank of -2":              {DeviceCPU, func(l *Ledger) { last(l).StagedLocal = -2 }, "staged rank -2"},
		"a staged rank of 64":              {DeviceCPU, func(l *Ledger) { last(l).StagedLocal = 64 }, "staged rank 64"},
		"a memory that there is not":       {DeviceCPU, func(l *Ledger) { last(l).Memory = MaxMemories }, "memory 4"},
		"a registered window 0":            {DeviceCPU, func(l *Ledger) { *last(l) = Outcome{Op: OpWindowRegister} }, "region 0"},
		"a registered window 256":          {DeviceCPU, func(l *Ledger) { *last(l) = Outcome{Op: OpWindowRegister, Region: 256} }, "region 256"},
		"a text without an end":            {DeviceCPU, func(l *Ledger) { copy(last(l).Text[:], strings.Repeat("x", TextBytes)) }, "text has no NUL"},
	} {
		l := goodLedger(t, c.device)
		if _, err := DecodeLedger(encoded(t, &l)); err != nil {
			t.Fatalf("a good ledger: %v", err)
		}
		c.change(&l)
		if _, err := DecodeLedger(encoded(t, &l)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

func TestAnInvalidEntryOfARegisteredWindowIsRefused(t *testing.T) {
	good := RegionEntry{Bytes: 1, StagedLocal: 1, Reason: MakeReason("private")}
	for what, c := range map[string]struct {
		change func(e *RegionEntry)
		want   string
	}{
		"0 bytes":                 {func(e *RegionEntry) { e.Bytes = 0 }, "memory of 0 bytes"},
		"too many bytes":          {func(e *RegionEntry) { e.Bytes = MaxRegistered + 1 }, "memory of 1099511627777"},
		"a reason without an end": {func(e *RegionEntry) { copy(e.Reason[:], strings.Repeat("x", ReasonBytes)) }, "reason has no NUL"},
		"staged by rank 64":       {func(e *RegionEntry) { e.StagedLocal = 64 }, "staged rank 64"},
		"staged by rank -2":       {func(e *RegionEntry) { e.StagedLocal = -2 }, "staged rank -2"},
		"staged without a reason": {func(e *RegionEntry) { e.Reason = Reason{} }, "staged rank 1 with reason"},
		"shared with a reason":    {func(e *RegionEntry) { e.StagedLocal = -1 }, "staged rank -1 with reason"},
	} {
		if e, err := DecodeRegionEntry(encoded(t, &good), 1); err != nil || e.Live != 1 || e.Bytes != 1 {
			t.Fatalf("a good entry: %+v, %v", e, err)
		}
		e := good
		c.change(&e)
		if _, err := DecodeRegionEntry(encoded(t, &e), 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		if _, err := DecodeRegionEntry(encoded(t, &e), 0); err != nil { // there is no window
			t.Errorf("%s, of no window: %v", what, err)
		}
	}
}

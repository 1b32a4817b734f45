package group

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/limits"
	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// A rank comes back with what cannot be taken over: neither the group that is there nor what it sent changes.
func TestAGroupThatIsNotTakenOverIsLeftAsItIs(t *testing.T) {
	d := withWindows(t)
	image := d.segment()
	bytes := uint64(len(image))
	last := wire.PartsOf(killedWorld).Ledger.Offset
	without := func(change func(b []byte)) func() *symm.Segment {
		return func() *symm.Segment {
			b := append([]byte(nil), image...)
			change(b)
			return segmentOf(t, b)
		}
	}
	good := wire.Reannounce{ControlBytes: bytes, Place: wire.OneNode(0, killedWorld), World: killedWorld, Nodes: 1, TimeoutMS: 60_000}
	with := func(change func(m *wire.Reannounce)) wire.Reannounce {
		m := good
		change(&m)
		return m
	}
	anew := without(func([]byte) {})
	for name, c := range map[string]struct {
		segment func() *symm.Segment
		message wire.Reannounce
	}{
		"another size":             {anew, with(func(m *wire.Reannounce) { m.ControlBytes += 4096 })},
		"another world":            {anew, with(func(m *wire.Reannounce) { m.World, m.Place.LocalSize = 3, 3 })},
		"two nodes":                {anew, with(func(m *wire.Reannounce) { m.Nodes = 2 })},
		"too many ranks":           {anew, with(func(m *wire.Reannounce) { m.Place.LocalSize = 65 })},
		"zeros":                    {without(func(b []byte) { clear(b) }), good},
		"a group that never began": {without(func(b []byte) { clear(b[last+wire.EndedOffset:][:8]) }), good},
		"a part beyond the end":    {without(func(b []byte) { b[128+7] = 1 }), good},
		"a heap of no bytes":       {without(func(b []byte) { clear(b[last+2*64:][:8]) }), good},
		"windows one upon another": {without(func(b []byte) {
			at := wire.PartsOf(killedWorld).Windows.Offset
			binary.LittleEndian.PutUint64(b[at+8:], binary.LittleEndian.Uint64(b[at:]))
		}), good},
		"a segment of the version before":    {without(func(b []byte) { b[8] = wire.ControlVersion - 1 }), good},
		"more ranks here than in the world":  {without(func(b []byte) { b[32] = killedWorld + 1 }), good},
		"ranks of another node":              {without(func(b []byte) { b[44] = killedWorld }), good},
		"a device that is not known":         {without(func(b []byte) { b[last+ledgerDevice] = 9 }), good},
		"a CUDA device without memory":       {without(func(b []byte) { b[last+ledgerDevice] = byte(wire.DeviceCUDA) }), good},
		"a device heap of a group on CPUs":   {without(func(b []byte) { b[last+ledgerDeviceHeap+3] = 1 }), good},
		"device memory of a group on CPUs":   {without(func(b []byte) { memoryOf(b, 1, wire.MemoryCUDA) }), good},
		"a device heap of another granule":   {without(func(b []byte) { onCUDA(b); b[last+ledgerDeviceHeap] = 1 }), good},
		"a device window beyond its heap":    {without(func(b []byte) { onCUDA(b); windowOf(b, 1, 1<<20) }), good},
		"a window of memory that is unknown": {without(func(b []byte) { memoryOf(b, 2, 9); windowOf(b, 2, 0) }), good},
		"an outcome in a memory that there is not": {without(func(b []byte) {
			o := wire.Outcome{Op: wire.OpWindowRegister, StagedLocal: rank.None, Region: 1, Memory: wire.MaxMemories, Bytes: 4096}
			parts := wire.PartsOf(killedWorld)
			_, _ = binary.Encode(b[parts.OutcomeOffset(d.ended):], binary.LittleEndian, &o)
		}), good},
		"a group that was finalized": {without(func(b []byte) {
			parts := wire.PartsOf(killedWorld)
			binary.LittleEndian.PutUint32(b[parts.OutcomeOffset(d.ended):], uint32(wire.OpFinalize))
		}), good},
		"the group itself, whose rank is here": {func() *symm.Segment {
			if err := d.g.memory[d.id].control.Retain(); err != nil {
				t.Fatal(err)
			}
			return d.g.memory[d.id].control
		}, good},
	} {
		t.Run(name, func(t *testing.T) { d.comesBackInVain(t, c.segment(), c.message) })
	}
	onDevices := append([]byte(nil), image...) // without any of the damage above
	onCUDA(onDevices)
	windowOf(onDevices, wire.MemoryOfDevice, 3)
	if r := readBack(t, onDevices); r.Device != wire.DeviceCUDA || len(r.DeviceWindows) != 1 || r.DeviceWindows[0].Offset != 3*symm.CUDAGranule {
		t.Errorf("a group on CUDA devices is read as %+v", r)
	}
	for name, fd := range map[string]func() int{
		"a device":                  func() int { return opened(t, "/dev/null", unix.O_RDWR) },
		"a memfd without its seals": func() int { return memfdWith(t, unix.F_SEAL_SHRINK) },
		"a memfd sealed for reading": func() int {
			return memfdWith(t, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
		},
	} {
		m := good
		m.ControlBytes = 4096
		d.leavesNothing(name, false, func() { d.answersError(name, d.reannounced(m, fd())) })
		d.leavesNothing(name+" as a heap", false, func() {
			if actions := d.g.takeHeap(from{id: 1, file: d.g.files.add(fd())}, &wire.ReannounceHeap{Group: d.group()}); len(actions) != 0 {
				t.Errorf("%s: %+v", name, actions)
			}
		})
	}
}

// Offsets of fields in the ledger; a test of package wire has them all.
const (
	ledgerMemory     = 152
	ledgerDeviceHeap = 632
	ledgerDevice     = 640
)

// memoryOf adds a kind of memory, with granules of 2 MiB, to a control segment's ledger.
func memoryOf(b []byte, index int, kind wire.MemoryKind) {
	at := b[wire.PartsOf(killedWorld).Ledger.Offset+ledgerMemory+8*uint64(index):]
	binary.LittleEndian.PutUint32(at, uint32(kind))
	binary.LittleEndian.PutUint32(at[4:], symm.CUDAGranule)
}

// onCUDA makes a group one on CUDA devices, with device heaps of 8 MiB.
func onCUDA(b []byte) {
	memoryOf(b, wire.MemoryOfDevice, wire.MemoryCUDA)
	ledger := wire.PartsOf(killedWorld).Ledger.Offset
	binary.LittleEndian.PutUint64(b[ledger+ledgerDeviceHeap:], 8<<20)
	b[ledger+ledgerDevice] = byte(wire.DeviceCUDA)
}

// windowOf adds a window of one granule to a control segment's table.
func windowOf(b []byte, memory, granule uint64) {
	binary.LittleEndian.PutUint64(b[wire.PartsOf(killedWorld).Windows.At(9):], 1|granule<<28|memory<<56)
}

// segmentOf is a control segment with these bytes.
func segmentOf(t *testing.T, image []byte) *symm.Segment {
	t.Helper()
	s, err := symm.NewSegment("failed", uint64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	copy(m.Bytes(0, uint64(len(image))), image)
	if err := m.Unmap(); err != nil {
		t.Fatal(err)
	}
	return s
}

// reannounced is the answer to a Reannounce that carries fd.
func (d *recorded) reannounced(m wire.Reannounce, fd int) []membership.Action {
	d.take()
	d.sends = nil
	out := d.g.reannounce(from{now: d.now, id: 9, pid: 1, request: d.request, file: d.g.files.add(fd)}, &m)
	for _, e := range d.take() {
		if e.bytes == nil { // the machine has answered in a step of its own, which is not seen here
			out = append(out, membership.Send{Msg: &wire.Error{}})
		}
	}
	return out
}

func (d *recorded) answersError(name string, actions []membership.Action) {
	d.Helper()
	if len(actions) != 1 {
		d.Fatalf("%s: %+v", name, actions)
	}
	if s, ok := actions[0].(membership.Send); !ok {
		d.Errorf("%s: %+v", name, actions)
	} else if _, ok := s.Msg.(*wire.Error); !ok || s.FD != membership.NoFD {
		d.Errorf("%s: %+v", name, s)
	}
}

// comesBackInVain: session 9 sends the segment, which is released.
func (d *recorded) comesBackInVain(t *testing.T, s *symm.Segment, m wire.Reannounce) {
	t.Helper()
	mine := newMapping(t, s)
	before := string(mine.Bytes(0, s.Size()))
	groups := len(d.g.memory)
	d.leavesNothing(t.Name(), false, func() {
		fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		d.answersError(t.Name(), d.reannounced(m, fd))
	})
	if string(mine.Bytes(0, s.Size())) != before {
		t.Error("the segment that it sent has changed")
	}
	if len(d.g.memory) != groups || len(d.g.segments) != groups || d.g.adopting != nil {
		t.Errorf("%d groups, %d segments, adopting %v; want %d", len(d.g.memory), len(d.g.segments), d.g.adopting, groups)
	}
	if err := s.Release(); err != nil {
		t.Error(err)
	}
}

// The address space is full when the daemon maps the segment of a group that comes back.
func TestAGroupThatCannotBeMappedIsNotTakenOver(t *testing.T) {
	d := withWindows(t)
	s, err := symm.NewSegment("failed", wire.MaxControl)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Release() }()
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.take()
	descriptors, mappings := held(t)
	// Room for all that the Go runtime may need meanwhile, but not for the segment.
	restore := limits.Set(t, unix.RLIMIT_AS, vmSize(t)+wire.MaxControl/2)
	out := d.reannounced(wire.Reannounce{
		ControlBytes: wire.MaxControl, Place: wire.OneNode(0, killedWorld), World: killedWorld, Nodes: 1, TimeoutMS: 60_000,
	}, fd)
	restore()
	d.answersError("no address space", out)
	if text := out[0].(membership.Send).Msg.(*wire.Error).Text.String(); !strings.Contains(text, "cannot allocate memory") {
		t.Errorf("the error is %q", text)
	}
	if fds, maps := held(t); fds != descriptors-1 || maps != mappings {
		t.Errorf("%d descriptors and %d mappings before, %d and %d after", descriptors-1, mappings, fds, maps)
	}
}

// Each descriptor that a new group needs is the first one that is missing.
func TestAGroupForWhichTheDaemonHasTooFewDescriptorsLeavesNothing(t *testing.T) {
	const needed = 1 + killedWorld // control segment and heaps
	for free := range needed + 1 {
		d := newRecorded(t)
		d.leavesNothing(fmt.Sprintf("%d free descriptors", free), false, func() {
			restore := limits.LeaveFree(t, free)
			d.join()
			restore()
			if formed := len(d.g.memory) == 1; formed != (free == needed) {
				t.Errorf("with %d free descriptors a group was created: %v", free, formed)
			}
			if free == needed {
				d.do(d.g.machine.Attached(d.now, 1, d.request, &wire.Attached{Group: d.group(), Error: int32(unix.ENOMEM)}))
				_ = d.mapping.Unmap()
				d.mapping = nil
			}
		})
	}
}

// vmSize is the size of this process's address space in bytes.
func vmSize(t *testing.T) uint64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(b), &pages); err != nil {
		t.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

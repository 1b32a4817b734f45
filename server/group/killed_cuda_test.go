package group

import (
	"testing"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// The CUresults that a rank reports.
const (
	cudaOutOfMemory  = 2
	cudaNoPeerAccess = 217
)

// As TestACallHasEndedOrNotWhereverItsDaemonIsKilled, of ranks on CUDA devices: a window is there for all of them once all have mapped all
// parts, and for none before.
func TestACallOnCUDADevicesHasEndedOrNotWhereverItsDaemonIsKilled(t *testing.T) {
	d := newRecordedOnCUDA(t)
	d.form()
	scratch := d.allocate("window_alloc of the kernels' scratch", 4<<20)
	a := d.allocate("window_alloc", 1)
	if scratch != 0 || a != 4<<20 {
		t.Errorf("windows at %d and %d", scratch, a)
	}
	d.device = wire.DeviceCPU // its memory has windows too, with offsets of their own
	host := d.allocate("window_alloc of the CPU's memory", 1)
	d.device = wire.DeviceCUDA

	d.fails(d.call("window_alloc of too much", func() { d.askWindow(1<<40, 1<<40) }), wire.ResultOutOfMemory)
	d.fails(d.call("window_alloc of different kinds of memory", func() {
		d.askWindow(1)
		d.do(d.g.machine.WindowAlloc(d.now, 2, d.request, &wire.WindowAlloc{Group: d.group(), Bytes: 1, Memory: wire.MemoryCPU}))
	}), wire.ResultMismatch)
	next := a + symm.CUDAGranule
	d.fails(d.call("window_alloc that a rank cannot create", func() {
		d.askWindow(1, 1)
		d.both(func(s membership.SessionID) []membership.Action {
			return d.committed(s, next, int32(s-1)*cudaOutOfMemory)
		})
	}), wire.ResultOutOfMemory)
	d.fails(d.call("window_alloc that a rank cannot map", func() {
		d.askWindow(1, 1)
		d.both(func(s membership.SessionID) []membership.Action { return d.committed(s, next, 0) })
		d.both(func(s membership.SessionID) []membership.Action { return d.mapped(s, int32(s-1)*cudaNoPeerAccess) })
	}), wire.ResultSystem)
	if again := d.allocate("window_alloc where windows failed", 1); again != next {
		t.Errorf("a window at %d, want %d", again, next)
	}

	shared := d.register("window_register", true, 0)
	d.register("window_register of private memory", false, 0)
	d.register("window_register of memory that a rank cannot map", true, cudaNoPeerAccess)

	d.free("window_free", a)
	d.fails(d.call("window_free of a window that was freed", func() { d.askFree(a) }), wire.ResultInvalidArgument)
	if again := d.allocate("window_alloc where a window was", 1); again != a {
		t.Errorf("a window at %d, want %d", again, a)
	}
	d.free("window_free of registered memory", uint64(shared)<<wire.RegionShift)
	d.device = wire.DeviceCPU
	d.free("window_free of the CPU's memory", host)
	d.device = wire.DeviceCUDA
	for _, w := range d.windows() {
		if w.Memory != wire.MemoryCUDA {
			t.Errorf("the table has %+v", w)
		}
	}
	if m := d.g.memory[d.id]; m.ended != d.ended {
		t.Errorf("%d calls have ended, the test counts %d", m.ended, d.ended)
	}
	d.finalize()
}

func newRecordedOnCUDA(t *testing.T) *recorded {
	d := newRecorded(t)
	d.device = wire.DeviceCUDA
	return d
}

// The daemon dies when ranks have created or mapped memory: the call has not ended, and they repeat it with the next daemon, at the same
// place.
func TestRanksRepeatAWindowOfTheirDevicesThatADaemonHasNotCompleted(t *testing.T) {
	for name, part := range map[string]func(d *recorded, at uint64){
		"before any rank has created memory": func(*recorded, uint64) {},
		"when one rank has created its memory": func(d *recorded, at uint64) {
			d.do(d.committed(1, at, 0))
		},
		"when all have created it": func(d *recorded, at uint64) {
			d.both(func(s membership.SessionID) []membership.Action { return d.committed(s, at, 0) })
		},
		"when one has mapped the others'": func(d *recorded, at uint64) {
			d.both(func(s membership.SessionID) []membership.Action { return d.committed(s, at, 0) })
			d.do(d.mapped(2, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecordedOnCUDA(t)
			d.formQuickly()
			scratch := d.allocate("window_alloc of the kernels' scratch", 1)
			before := d.segment()
			d.askWindow(1, 1)
			part(d, scratch+symm.CUDAGranule)
			image := d.segment()
			if string(image) != string(before) {
				t.Error("the control segment has changed")
			}
			next := newRecordedOnCUDA(t)
			next.ended = d.ended
			file := next.given(image)
			if v := next.call("reannounce", func() { next.takeOver(file) }); len(v.Taken.DeviceWindows) != 1 || v.Taken.Device != wire.DeviceCUDA {
				t.Errorf("the next daemon finds %+v", v.Taken)
			}
			if at := next.allocate("window_alloc", 1); at != scratch+symm.CUDAGranule {
				t.Errorf("the window is at %d", at)
			}
			next.finalize()
		})
	}
}

// Whatever ends a window of CUDA memory, each descriptor that a rank has sent is closed, and only the outcome is new.
func TestAWindowOfCUDAMemoryThatFailsLeavesNothingButItsOutcome(t *testing.T) {
	d := newRecordedOnCUDA(t)
	d.formQuickly()
	at := d.allocate("window_alloc of the kernels' scratch", 1) + symm.CUDAGranule
	d.register("window_register", true, 0)
	committed := func(errnos ...int32) {
		d.askWindow(1, 1)
		for i, errno := range errnos {
			d.do(d.committed(membership.SessionID(i+1), at, errno))
		}
	}
	d.leavesNothing("a rank cannot create its memory", true, func() { committed(0, cudaOutOfMemory) })
	d.leavesNothing("no rank can", true, func() { committed(cudaOutOfMemory, cudaOutOfMemory) })
	d.leavesNothing("a rank cannot map the other's", true, func() {
		committed(0, 0)
		d.both(func(s membership.SessionID) []membership.Action { return d.mapped(s, int32(2-s)*cudaNoPeerAccess) })
	})
	d.leavesNothing("a descriptor that nobody waits for", false, func() { d.do(d.committed(1, at, 0)) })
	d.leavesNothing("memory of another kind that nobody waits for", false, func() {
		m := &wire.WindowCommitted{Group: d.group(), Offset: at, Memory: wire.MemoryCPU}
		d.do(d.g.machine.WindowCommitted(1, d.request, m, 0))
	})
	fds, _ := held(t)
	committed(0, 0)
	d.do(d.g.machine.SessionEnded(2, "socket"))
	d.do(d.committed(1, at, 0)) // on its way when the group broke
	if now, _ := held(t); now != fds {
		t.Errorf("%d descriptors before a rank died, %d after", fds, now)
	}
}

func TestMemoryOfCUDAIsPassedWithoutLookingAtIt(t *testing.T) {
	d := newRecordedOnCUDA(t)
	d.formQuickly()
	for name, r := range map[string]*wire.Register{
		"a descriptor": {Group: d.group(), Bytes: 100, FdOffset: 28, Memory: wire.MemoryCUDA, AllocationBytes: 128},
		"a handle":     {Group: d.group(), Bytes: 100, Memory: wire.MemoryCUDAIPC, AllocationBytes: 128, Handle: wire.Handle{7}},
	} {
		fd := -1
		if wire.CarriesFD(r) {
			fd = memfdWith(t, 0) // without the seals that a CPU's memory needs
		}
		m, file := d.g.Take(nil, r, fd)
		if m != wire.Message(r) || (file != 0) != (fd >= 0) {
			t.Errorf("%s: it goes on as %+v, file %d", name, m, file)
		}
		d.g.Drop(file)
	}
	if m, file := d.g.Take(nil, &wire.WindowCommitted{Group: d.group(), Memory: wire.MemoryCPU}, -1); file != 0 {
		t.Errorf("%+v goes on with file %d", m, file)
	}
	if v := d.register("window_register", true, 0); v != 1 {
		t.Errorf("window %d", v)
	}
	kinds := map[wire.MemoryKind]int{}
	for number := range rank.MaxPerNode {
		if live := d.mapping.Word32(d.g.memory[d.id].liveAt(uint32(number + 1))); *live != 0 {
			kinds[wire.MemoryKind(*d.mapping.Word32(d.g.memory[d.id].liveAt(uint32(number+1)) + 8))]++
		}
	}
	if len(kinds) != 1 || kinds[wire.MemoryCUDA] != 1 {
		t.Errorf("the table of registered windows has memory of %v", kinds)
	}
}

// Registrations on CUDA devices that fail: one that is refused changes nothing, one that all ranks have made leaves only its outcome.
func TestARegistrationOfCUDAMemoryThatFailsLeavesNothingButItsOutcome(t *testing.T) {
	d := newRecordedOnCUDA(t)
	d.formQuickly()
	d.register("window_register", true, 0)
	d.request++
	m := d.g.machine
	register := func(s membership.SessionID, memory wire.MemoryKind, bytes uint64) []membership.Action {
		r, file := &wire.Register{Group: d.group(), Bytes: bytes, Memory: memory, AllocationBytes: bytes}, membership.FileID(0)
		if memory.HasFD() {
			file = d.g.files.add(memfdWith(t, 0))
		} else {
			r.Handle = wire.Handle{byte(s)}
		}
		return m.Register(d.now, s, d.request, r, file)
	}
	for _, kind := range []wire.MemoryKind{wire.MemoryCPU, 9} {
		d.refused("memory of kind "+kind.String(), wire.ResultUnsupported, func() []membership.Action { return register(1, kind, 1) })
	}
	d.refused("a window of memory that is only registered", wire.ResultUnsupported, func() []membership.Action {
		return m.WindowAlloc(d.now, 1, d.request, &wire.WindowAlloc{Group: d.group(), Bytes: 1, Memory: wire.MemoryCUDAIPC})
	})
	for _, kinds := range [][2]wire.MemoryKind{
		{wire.MemoryCUDA, wire.MemoryCUDA}, {wire.MemoryCUDA, wire.MemoryCUDAIPC}, {wire.MemoryCUDAIPC, wire.MemoryCUDAIPC},
	} {
		d.leavesNothing("registrations of different sizes of "+kinds[0].String()+" and "+kinds[1].String(), true, func() {
			d.request++
			d.both(func(s membership.SessionID) []membership.Action { return register(s, kinds[s-1], uint64(s)) })
		})
	}
	d.leavesNothing("a registration against a window", true, func() {
		d.request++
		d.do(register(1, wire.MemoryCUDA, 1))
		d.do(m.WindowAlloc(d.now, 2, d.request, &wire.WindowAlloc{Group: d.group(), Bytes: 1, Memory: wire.MemoryCUDA}))
	})
	d.request++
	fds, _ := held(t)
	d.do(register(1, wire.MemoryCUDA, 1))
	d.do(m.LeaseLost(d.id, 1, false))
	if now, _ := held(t); now != fds {
		t.Errorf("%d descriptors before a rank died, %d after", fds, now)
	}
}

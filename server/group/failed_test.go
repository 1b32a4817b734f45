package group

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// held counts this process's descriptors, and its mappings of memfds.
func held(t *testing.T) (descriptors, mappings int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds), strings.Count(string(maps), "/memfd:")
}

// leavesNothing runs f, which must fail: it leaves no descriptor and no mapping, and the control segment as it was. Of a call that all
// ranks have made, the outcome is new.
func (d *recorded) leavesNothing(name string, outcome bool, f func()) {
	d.Helper()
	before := d.segment()
	descriptors, mappings := held(d.T)
	f()
	await.Until(d, func() string { // memory of a group that cannot form is released on another goroutine
		if fds, maps := held(d.T); fds != descriptors || maps != mappings {
			return fmt.Sprintf("%s: %d descriptors and %d mappings before, %d and %d after", name, descriptors, mappings, fds, maps)
		}
		return ""
	})
	after := d.segment()
	parts := wire.PartsOf(killedWorld)
	if outcome {
		d.ended++
		at := parts.OutcomeOffset(d.ended)
		copy(before[at:at+wire.OutcomeBytes], after[at:])
		at = parts.Ledger.Offset + wire.EndedOffset
		copy(before[at:at+8], after[at:])
	}
	for at := range before {
		if before[at] != after[at] {
			d.Errorf("%s: byte %d of the control segment was %#x, is %#x; the parts are %+v", name, at, before[at], after[at], parts)
			break
		}
	}
	if m := d.g.memory[d.id]; m != nil && m.ended != d.ended {
		d.Errorf("%s: %d calls have ended, want %d", name, m.ended, d.ended)
	}
}

// refused runs an event and expects an error as its only answer.
func (d *recorded) refused(name string, with wire.Result, event func() []membership.Action) {
	d.Helper()
	d.leavesNothing(name, false, func() {
		d.take()
		d.do(event())
		if events := d.take(); len(events) != 1 || events[0].send == nil {
			d.Errorf("%s: %+v", name, events)
		} else if e, ok := events[0].send.Msg.(*wire.Error); !ok || e.Code != with {
			d.Errorf("%s: the answer is %+v, want %s", name, events[0].send.Msg, with)
		}
	})
}

// memfdWith is a memfd of one page.
func memfdWith(t *testing.T, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("failed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// opened is a descriptor of a file that is no memfd.
func opened(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// withWindows is a group with a window and a registered window, so that the tables have entries.
func withWindows(t *testing.T) *recorded {
	d := newRecorded(t)
	d.quick = true
	d.form()
	d.allocate("window_alloc", 1)
	d.register("window_register", true, 0)
	d.request++
	return d
}

// The daemon closes a descriptor that other ranks cannot map, before the core has it. The rank takes part without.
func TestARefusedDescriptorLeavesNothing(t *testing.T) {
	d := withWindows(t)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	shared := func() int { return memfdWith(t, unix.F_SEAL_SHRINK) }
	for name, c := range map[string]struct {
		make          func() int
		offset, bytes uint64
		word          string
	}{
		"a device":               {func() int { return opened(t, "/dev/null", unix.O_RDWR) }, 0, 4096, "no memfd"},
		"a file":                 {func() int { return opened(t, file, unix.O_RDWR) }, 0, 4096, "no memfd"},
		"no descriptor":          {func() int { return -1 }, 0, 4096, "no memfd"},
		"one without a seal":     {func() int { return memfdWith(t, 0) }, 0, 4096, "not sealed"},
		"one sealed for reading": {func() int { return memfdWith(t, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE) }, 0, 4096, "sealed against writing"},
		"one sealed for reading from now on": {func() int {
			return memfdWith(t, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE)
		}, 0, 4096, "sealed against writing"},
		"more bytes than it has":   {shared, 0, 4097, "4096 bytes, 4097 at 0"},
		"bytes behind its end":     {shared, 4096, 1, "1 at 4096"},
		"an offset behind its end": {shared, 8192, 1, "1 at 8192"},
		"a sum that overflows":     {shared, 4096, 1<<64 - 4096, "were registered"},
		"one open for reading": {func() int {
			fd := shared()
			defer func() { _ = unix.Close(fd) }()
			return opened(t, fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY)
		}, 0, 4096, "not open for reading and writing"},
	} {
		d.leavesNothing(name, false, func() {
			m, f := d.g.Take(&session.Session{}, &wire.Register{Group: d.group(), Bytes: c.bytes, FdOffset: c.offset, Memory: wire.MemoryCPU}, c.make())
			if p, ok := m.(*wire.RegisterPrivate); !ok || f != 0 || p.Bytes != c.bytes || !strings.Contains(p.Reason.String(), c.word) {
				t.Errorf("%s: it goes on as %+v, file %d", name, m, f)
			}
		})
	}
}

// A message that the machine refuses at once.
func TestARefusedMessageLeavesNothing(t *testing.T) {
	d := withWindows(t)
	m := d.g.machine
	file := func() membership.FileID { return d.g.files.add(memfdWith(t, unix.F_SEAL_SHRINK)) }
	register := func(s membership.SessionID, r wire.Register) func() []membership.Action {
		return func() []membership.Action { return m.Register(d.now, s, d.request, &r, file()) }
	}
	good := wire.Register{Group: d.group(), Bytes: 1, Memory: wire.MemoryCPU}
	d.refused("memory of an unknown kind", wire.ResultUnsupported, register(1, wire.Register{Group: d.group(), Bytes: 1, Memory: 9}))
	d.refused("another group", wire.ResultProtocol, register(1, wire.Register{Group: d.group() + 1, Bytes: 1, Memory: wire.MemoryCPU}))
	d.refused("a stranger", wire.ResultProtocol, register(9, good))
	d.refused("RegisterMapped of nothing", wire.ResultProtocol, func() []membership.Action {
		return m.RegisterMapped(1, d.request, &wire.RegisterMapped{Group: d.group(), Region: 7})
	})
	d.refused("a window of an unknown kind", wire.ResultUnsupported, func() []membership.Action {
		return m.WindowAlloc(d.now, 1, d.request, &wire.WindowAlloc{Group: d.group(), Bytes: 1, Memory: 9})
	})
	d.refused("WindowCommitted of nothing", wire.ResultProtocol, func() []membership.Action {
		return m.WindowCommitted(1, d.request, &wire.WindowCommitted{Group: d.group(), Offset: 0, Memory: wire.MemoryCPU}, 0)
	})
	fds, _ := held(t)
	d.do(register(1, good)())
	d.refused("a rank's second call", wire.ResultProtocol, register(1, good))
	d.do(m.LeaseLost(d.id, 1, false))
	d.refused("a broken group", wire.ResultRankDead, register(1, good))
	if now, _ := held(t); now != fds {
		t.Errorf("%d descriptors before the calls, %d after", fds, now)
	}
}

// The memory of a new group is made before its plans.
func TestAGroupWhosePlansCannotBeMadeLeavesNothing(t *testing.T) {
	d := withWindows(t)
	d.leavesNothing("a group with an algorithm that is not known", false, func() {
		d.do(d.g.createGroup(membership.CreateGroup{
			Group: d.id + 1, Name: "tp", World: 2, HeapBytes: 1 << 20, ScratchBytes: 1 << 17, ReduceGroup: 2, PIDs: []int{1, 2}, Memory: cpu, Forcing: "none",
		}))
	})
}

func TestAClientsFileThatIsClosedIsNotSent(t *testing.T) {
	f := &clientFile{fd: memfdWith(t, unix.F_SEAL_SHRINK), refs: 1}
	if err := f.Retain(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Release(); err != nil {
			t.Error(err)
		}
	}
	if err := f.Retain(); err == nil {
		t.Error("its number may be that of another file by now")
	}
}

// A call that all ranks have made fails: only its outcome is new.
func TestACallThatFailsLeavesNothingButItsOutcome(t *testing.T) {
	d := withWindows(t)
	m := d.g.machine
	both := func(event func(s membership.SessionID) []membership.Action) func() {
		return func() { d.request++; d.both(event) }
	}
	shared := func(bytes func(s membership.SessionID) uint64) func(s membership.SessionID) []membership.Action {
		return func(s membership.SessionID) []membership.Action {
			r := &wire.Register{Group: d.group(), Bytes: bytes(s), Memory: wire.MemoryCPU}
			return m.Register(d.now, s, d.request, r, d.g.files.add(memfdWith(t, unix.F_SEAL_SHRINK)))
		}
	}
	d.leavesNothing("registrations of different sizes", true, both(shared(func(s membership.SessionID) uint64 { return uint64(s) })))
	d.leavesNothing("windows of different sizes", true, func() { d.askWindow(1, 2) })
	d.leavesNothing("a window larger than the heap", true, func() { d.askWindow(1<<40, 1<<40) })
	d.leavesNothing("a window that was never allocated", true, func() { d.askFree(12345) })
	d.leavesNothing("memory that was never registered", true, func() { d.askFree(200 << wire.RegionShift) })
	d.leavesNothing("a window for which a rank has no pages", true, func() {
		d.askWindow(1, 1)
		groups, _ := m.Snapshot()
		at := groups[0].Windows[len(groups[0].Windows)-1].Offset
		d.both(func(s membership.SessionID) []membership.Action {
			return m.WindowCommitted(s, d.request, &wire.WindowCommitted{Group: d.group(), Offset: at, Error: int32(s - 1), Memory: wire.MemoryCPU}, 0)
		})
		d.next("the punch")
	})
	for range wire.MaxRegion - 1 {
		both(func(s membership.SessionID) []membership.Action {
			return m.RegisterPrivate(d.now, s, d.request, &wire.RegisterPrivate{Group: d.group(), Bytes: 1, Reason: wire.MakeReason("malloc")})
		})()
		d.ended++
	}
	d.leavesNothing("a registration when the table is full", true, both(shared(func(membership.SessionID) uint64 { return 1 })))
}

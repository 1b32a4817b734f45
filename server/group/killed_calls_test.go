package group

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// A daemon may be killed after any of its stores into the control segment. Those who come then, the next daemon and the ranks, see each
// call as before it or as after it, all the same. The stores are those that the code makes, in its order.
//
// A barrier and the exchange of a split need no daemon, so it stores nothing. A color's group forms as any other.
func TestACallHasEndedOrNotWhereverItsDaemonIsKilled(t *testing.T) {
	d := newRecorded(t)
	d.form()
	a := d.allocate("window_alloc", 1)
	b := d.allocate("window_alloc, the second", 300_000)
	d.fails(d.call("window_alloc of too much", func() { d.askWindow(1<<30, 1<<30) }), wire.ResultOutOfMemory)
	d.fails(d.call("window_alloc of different sizes", func() { d.askWindow(1, 2) }), wire.ResultMismatch)
	d.fails(d.call("window_alloc without pages", func() {
		d.askWindow(1, 1)
		d.both(func(s membership.SessionID) []membership.Action {
			m := &wire.WindowCommitted{Group: d.group(), Offset: d.reserved(b), Error: int32(unix.ENOMEM), Memory: wire.MemoryCPU}
			return d.g.machine.WindowCommitted(s, d.request, m, 0)
		})
		d.next("the punch")
	}), wire.ResultOutOfMemory)

	shared := d.register("window_register", true, 0)
	staged := d.register("window_register of private memory", false, 0)
	unmapped := d.register("window_register of memory that a rank cannot map", true, int32(unix.ENOMEM))
	d.fails(d.call("window_register against window_alloc", func() {
		d.request++
		d.do(d.g.machine.RegisterPrivate(d.now, 1, d.request, &wire.RegisterPrivate{Group: d.group(), Bytes: 1, Reason: wire.MakeReason("malloc")}))
		d.do(d.g.machine.WindowAlloc(d.now, 2, d.request, &wire.WindowAlloc{Group: d.group(), Bytes: 1, Memory: wire.MemoryCPU}))
	}), wire.ResultMismatch)

	d.free("window_free", a)
	d.fails(d.call("window_free of a window that was freed", func() { d.askFree(a) }), wire.ResultInvalidArgument)
	d.allocate("window_alloc where a window was", 1)
	for _, number := range []uint32{shared, staged} {
		d.free("window_free of registered memory", uint64(number)<<wire.RegionShift)
	}
	if again := d.register("window_register with a number that was used", false, 0); again != shared || unmapped != 3 {
		t.Errorf("registered windows %d and %d, want %d and 3", again, unmapped, shared)
	}
	if m := d.g.memory[d.id]; m.ended != d.ended || d.ended != 16 {
		t.Errorf("%d calls have ended, the test counts %d, want 16", m.ended, d.ended)
	}
	d.finalize()
}

// What breaks a group ends the call in progress: those who come after a kill find the abort word, before any rank is answered.
func TestACallThatBreaksItsGroupHasDoneSoBeforeAnAnswerWhereverItsDaemonIsKilled(t *testing.T) {
	for name, breaks := range map[string]func(d *recorded){
		"a death":         func(d *recorded) { d.do(d.g.machine.LeaseLost(d.id, 1, false)) },
		"a closed socket": func(d *recorded) { d.do(d.g.machine.SessionEnded(2, "socket")) },
		"the deadline":    func(d *recorded) { d.do(d.g.machine.Tick(d.now.Add(2 * time.Minute))) },
		"finalize of one rank": func(d *recorded) {
			d.do(d.g.machine.Leave(d.now, 2, d.request, &wire.Leave{Group: d.group()}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecorded(t)
			d.formQuickly()
			v := d.call("window_alloc and "+name, func() {
				d.askWindow(1)
				breaks(d)
			})
			if v.Ended || !wire.IsBroken(v.Abort) {
				t.Errorf("those after a kill see %+v", v)
			}
			if d.call("finalize of the broken group", func() {
				d.both(func(s membership.SessionID) []membership.Action {
					return d.g.machine.Leave(d.now, s, d.request, &wire.Leave{Group: d.group()})
				})
			}).Abort != v.Abort {
				t.Error("the abort word has changed")
			}
		})
	}
	t.Run("window_alloc of one rank against finalize", func(t *testing.T) {
		d := newRecorded(t)
		d.formQuickly()
		v := d.call("finalize and window_alloc of one rank", func() {
			d.do(d.g.machine.Leave(d.now, 1, d.request, &wire.Leave{Group: d.group()}))
			d.do(d.g.machine.WindowAlloc(d.now, 2, d.request, &wire.WindowAlloc{Group: d.group(), Bytes: 1, Memory: wire.MemoryCPU}))
		})
		if v.Ended || !wire.IsBroken(v.Abort) {
			t.Errorf("those after a kill see %+v", v)
		}
	})
}

// A group that never became ready is no group: nobody takes it over.
func TestAGroupThatCannotFormIsNotTakenOver(t *testing.T) {
	for name, fails := range map[string]func(d *recorded){
		"a rank cannot attach": func(d *recorded) {
			d.do(d.g.machine.Attached(d.now, 1, d.request, &wire.Attached{Group: d.group(), Error: int32(unix.ENOMEM)}))
		},
		"a rank dies":  func(d *recorded) { d.do(d.g.machine.LeaseLost(d.id, 1, false)) },
		"the deadline": func(d *recorded) { d.do(d.g.machine.Tick(d.now.Add(2 * time.Minute))) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecorded(t)
			v := d.call("comm_init where "+name, func() {
				d.join()
				fails(d)
			})
			if v.Ended || v.Taken != nil {
				t.Errorf("those after a kill see %+v", v)
			}
		})
	}
}

// A daemon that takes a group over may be killed too, also after its own first calls.
func TestADaemonThatTakesAGroupOverMayBeKilledToo(t *testing.T) {
	d := newRecorded(t)
	d.quick = true
	d.form()
	before := d.segment()
	d.register("window_register", false, 0)
	after := d.segment()
	parts := wire.PartsOf(killedWorld)
	ended := copyOfRange(before, after, parts.Ledger.Offset, parts.Ledger.Bytes()) // killed before it has changed the tables
	for name, image := range map[string][]byte{"before": before, "at the end of": ended, "after": after} {
		t.Run(name+" a call", func(t *testing.T) {
			next := newRecorded(t)
			next.ended = 1
			if name != "before" {
				next.ended = 2
			}
			file := next.given(image)
			v := next.call("reannounce", func() { next.takeOver(file) })
			if windows := len(v.Taken.Regions); windows != int(next.ended)-1 {
				t.Errorf("%d registered windows after %d calls", windows, next.ended)
			}
			next.quick = name != "at the end of"
			next.register("window_register", true, 0)
			next.allocate("window_alloc", 1)
			next.finalize()
		})
	}
}

func copyOfRange(to, from []byte, offset, n uint64) []byte {
	out := append([]byte(nil), to...)
	copy(out[offset:offset+n], from[offset:])
	return out
}

// given makes a control segment that an earlier daemon has left.
func (d *recorded) given(image []byte) *symm.Segment {
	d.Helper()
	s, err := symm.NewSegment("taken over", uint64(len(image)))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = s.Release() })
	d.mapping = newMapping(d.T, s)
	copy(d.mapping.Bytes(0, uint64(len(image))), image)
	return s
}

// takeOver: both ranks come back with the segment.
func (d *recorded) takeOver(s *symm.Segment) {
	d.Helper()
	d.both(func(id membership.SessionID) []membership.Action { return d.comesBack(s, id) })
	for id := range d.g.memory {
		d.id = id
	}
}

// comesBack: the rank of a session comes back with the segment.
func (d *recorded) comesBack(s *symm.Segment, id membership.SessionID) []membership.Action {
	d.Helper()
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		d.Fatal(err)
	}
	return d.g.reannounce(from{now: d.now, id: id, pid: 1, request: d.request, file: d.g.files.add(fd)}, &wire.Reannounce{
		ControlBytes: s.Size(), Place: wire.OneNode(int(id)-1, killedWorld), World: killedWorld, Nodes: 1, TimeoutMS: 60_000,
	})
}

func (d *recorded) group() uint64 { return uint64(d.id) }

func (d *recorded) next(what string) {
	d.Helper()
	await.Next(d.T, what, d.posted)()
}

func (d *recorded) join() {
	d.Helper()
	name, err := wire.MakeName("tp")
	if err != nil {
		d.Fatal(err)
	}
	d.both(func(s membership.SessionID) []membership.Action {
		return d.g.machine.Join(d.now, s, 10+int(s), d.request, &wire.Join{
			Group: name, Common: wire.Common{World: killedWorld, Nodes: 1, HeapBytes: 1 << 20},
			Own: d.own(s),
		})
	})
	d.segment()
}

func (d *recorded) own(s membership.SessionID) wire.Own {
	own := wire.Own{Place: wire.OneNode(int(s)-1, killedWorld), TimeoutMS: 60_000}
	if d.device == wire.DeviceCUDA {
		own.Device, own.DeviceUUID, own.DeviceMultiprocessors = d.device, wire.UUID{byte(s)}, 132
	}
	return own
}

// memory is what the device's windows are made of.
func (d *recorded) memory() wire.MemoryKind {
	if d.device == wire.DeviceCUDA {
		return wire.MemoryCUDA
	}
	return wire.MemoryCPU
}

func (d *recorded) form() {
	d.Helper()
	v := d.call("comm_init", func() {
		d.join()
		d.both(func(s membership.SessionID) []membership.Action {
			return d.g.machine.Attached(d.now, s, d.request, &wire.Attached{Group: d.group()})
		})
	})
	if v.Taken == nil || v.Taken.Name != "tp" || len(v.Taken.PIDs) != killedWorld || v.Taken.PIDs[1] != 12 {
		d.Fatalf("those after a kill see %+v", v)
	}
}

func (d *recorded) formQuickly() {
	d.Helper()
	d.quick = true
	d.form()
	d.quick = false
}

// askWindow: the first ranks call window_alloc.
func (d *recorded) askWindow(bytes ...uint64) {
	d.request++
	for i, n := range bytes {
		d.do(d.g.machine.WindowAlloc(d.now, membership.SessionID(i+1), d.request, &wire.WindowAlloc{Group: d.group(), Bytes: n, Memory: d.memory()}))
	}
}

// reserved is where the machine puts a window of one granule, after the window at offset after of less than 8 granules.
func (d *recorded) reserved(after uint64) uint64 {
	groups, _ := d.g.machine.Snapshot()
	last := groups[0].Windows[len(groups[0].Windows)-1]
	if last.Offset <= after {
		d.Fatalf("windows %+v: none is being allocated", groups[0].Windows)
	}
	return last.Offset
}

func (d *recorded) allocate(name string, bytes uint64) (offset uint64) {
	d.Helper()
	v := d.call(name, func() {
		d.askWindow(bytes, bytes)
		groups, _ := d.g.machine.Snapshot()
		had := map[membership.WindowInfo]bool{}
		for _, w := range d.windows() {
			had[w] = true
		}
		for _, w := range groups[0].Windows {
			if !had[w] {
				offset = w.Offset
			}
		}
		d.both(func(s membership.SessionID) []membership.Action { return d.committed(s, offset, 0) })
		if d.device == wire.DeviceCUDA {
			d.both(func(s membership.SessionID) []membership.Action { return d.mapped(s, 0) })
		}
	})
	d.matches(name, v)
	return offset
}

// committed: a rank has committed a window's pages, or created its memory.
func (d *recorded) committed(s membership.SessionID, offset uint64, errno int32) []membership.Action {
	m := &wire.WindowCommitted{Group: d.group(), Offset: offset, Error: errno, Memory: d.memory()}
	var file membership.FileID
	if wire.CarriesFD(m) {
		file = d.g.files.add(memfdWith(d.T, 0))
	}
	return d.g.machine.WindowCommitted(s, d.request, m, file)
}

// mapped: a rank has mapped the others' parts of a window.
func (d *recorded) mapped(s membership.SessionID, errno int32) []membership.Action {
	return d.g.machine.RegisterMapped(s, d.request, &wire.RegisterMapped{Group: d.group(), Error: errno})
}

// windows are those in the table.
func (d *recorded) windows() []membership.WindowInfo {
	d.Helper()
	v, _ := d.copy.view(d.segment(), d.ended)
	if v.Taken == nil {
		d.Fatal("the group cannot be taken over")
	}
	return windowsOf(v.Taken)
}

func windowsOf(r *membership.Recovered) (all []membership.WindowInfo) {
	for _, w := range r.Windows {
		all = append(all, membership.WindowInfo{Window: w, Memory: r.Memory.Kind})
	}
	for _, w := range r.DeviceWindows {
		all = append(all, membership.WindowInfo{Window: w, Memory: r.DeviceMemory.Kind})
	}
	return all
}

func (d *recorded) askFree(offset uint64) {
	d.request++
	d.both(func(s membership.SessionID) []membership.Action {
		m := &wire.WindowFree{Group: d.group(), Offset: offset}
		if offset>>wire.RegionShift == 0 {
			m.Memory = d.memory()
		}
		return d.g.machine.WindowFree(d.now, s, d.request, m)
	})
}

func (d *recorded) free(name string, offset uint64) {
	d.Helper()
	d.matches(name, d.call(name, func() {
		d.askFree(offset)
		if offset < 1<<wire.RegionShift && d.device == wire.DeviceCPU {
			d.next("the punch")
		}
	}))
}

// register registers memory, rank 0's private unless shared. errno: rank 1 cannot map rank 0's.
func (d *recorded) register(name string, shared bool, errno int32) (number uint32) {
	d.Helper()
	v := d.call(name, func() {
		d.request++
		for s := membership.SessionID(1); s <= killedWorld; s++ {
			if s == 1 && !shared {
				d.do(d.g.machine.RegisterPrivate(d.now, s, d.request, &wire.RegisterPrivate{Group: d.group(), Bytes: 77, Reason: wire.MakeReason("malloc")}))
				continue
			}
			r := &wire.Register{Group: d.group(), Bytes: 77, Memory: d.memory()}
			d.do(d.g.machine.Register(d.now, s, d.request, r, d.g.files.add(memfdWith(d.T, 0))))
		}
		if !shared {
			return
		}
		groups, _ := d.g.machine.Snapshot()
		for number = 1; ; number++ { // the lowest that is free
			used := false
			for _, r := range groups[0].Registered {
				used = used || r.Number == number
			}
			if !used {
				break
			}
		}
		for s := membership.SessionID(1); s <= killedWorld; s++ {
			m := &wire.RegisterMapped{Group: d.group(), Region: number}
			if s == 2 {
				m.Error = errno
			}
			d.do(d.g.machine.RegisterMapped(s, d.request, m))
		}
	})
	if o := v.Outcome; !v.Ended || o.Code != wire.ResultOK || (o.StagedLocal == rank.None) != (shared && errno == 0) {
		d.Fatalf("%s: the outcome is %+v", name, v)
	}
	d.matches(name, v)
	return v.Outcome.Region
}

func (d *recorded) finalize() {
	d.Helper()
	v := d.call("finalize", func() {
		d.request++
		d.both(func(s membership.SessionID) []membership.Action {
			return d.g.machine.Leave(d.now, s, d.request, &wire.Leave{Group: d.group()})
		})
	})
	if !v.Ended || v.Outcome.Code != wire.ResultOK || !v.Taken.Finalized {
		d.Errorf("those after a kill see %+v", v)
	}
}

func (d *recorded) fails(v view, with wire.Result) {
	d.Helper()
	if !v.Ended || v.Outcome.Code != with {
		d.Errorf("those after a kill see the outcome %+v, want %s", v.Outcome, with)
	}
}

// matches: those after a kill see the windows that the machine has.
func (d *recorded) matches(name string, v view) {
	d.Helper()
	groups, _ := d.g.machine.Snapshot()
	if len(groups) != 1 || v.Taken == nil || !v.Ended || v.Outcome.Code != wire.ResultOK {
		d.Fatalf("%s: those after a kill see %+v; the daemon has %+v", name, v, groups)
	}
	found := map[membership.WindowInfo]bool{}
	for _, w := range windowsOf(v.Taken) {
		found[w] = true
	}
	for _, w := range groups[0].Windows {
		if !found[w] {
			d.Errorf("%s: window %+v is not among those seen after a kill: %+v", name, w, windowsOf(v.Taken))
		}
	}
	for _, r := range groups[0].Registered {
		if seen, ok := v.Taken.Regions[r.Number]; !ok || seen.Bytes != r.Bytes || seen.Staged < 0 != r.Shared || seen.Reason != r.Reason {
			d.Errorf("%s: registered window %+v is seen as %+v after a kill", name, r, seen)
		}
	}
	if len(found) != len(groups[0].Windows) || len(v.Taken.Regions) != len(groups[0].Registered) {
		d.Errorf("%s: those after a kill see windows %+v and %+v, the daemon has %+v and %+v", name, windowsOf(v.Taken), v.Taken.Regions,
			groups[0].Windows, groups[0].Registered)
	}
}

package tests

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/limits"
	"railhead/internal/wire"
)

// controlSegment maps the control segment of the youngest group. The daemon runs in this process.
func controlSegment(t *testing.T, world int) []byte {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	at, youngest := -1, uint64(0)
	for _, e := range entries {
		var fd int
		var group uint64
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // it was that of ReadDir
		}
		if n, _ := fmt.Sscanf(link, "/memfd:railhead-control:%d", &group); n == 1 && group >= youngest {
			if _, err := fmt.Sscan(e.Name(), &fd); err == nil {
				at, youngest = fd, group
			}
		}
	}
	if at < 0 {
		t.Fatal("there is no control segment")
	}
	b, err := unix.Mmap(at, 0, int(wire.ControlBytes(world)), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	parts := wire.PartsOf(world)
	eventually(t, "the daemon watches all leases", func() bool {
		for r := range world {
			if binary.LittleEndian.Uint32(b[parts.Lines.At(r)+wire.LeaseOffset:])&wire.LeaseWaiters == 0 {
				return false
			}
		}
		return true
	})
	return b
}

// Each descriptor that a registration needs, of the library and of the daemon, is the first one that is missing. The call fails, or the
// window is staged. A call that fails leaves no descriptor, no mapping, and no trace in the control segment but the abort word and what
// the ranks record of their calls.
func TestARegistrationWithTooFewDescriptorsLeavesNothing(t *testing.T) {
	t.Run("given its descriptor", func(t *testing.T) { registersWithTooFewDescriptors(t, true) })
	t.Run("without its descriptor", func(t *testing.T) { registersWithTooFewDescriptors(t, false) })
}

func registersWithTooFewDescriptors(t *testing.T, given bool) {
	const world = 2
	s := startDaemon(t)
	failed, staged := 0, 0
	for free := 0; ; free++ {
		if free == 16 {
			t.Fatal("the registration needs more than 16 descriptors")
		}
		shared := false
		nothingLeaks(t, func() {
			ranks := formGroup(t, s, client.CommConfig{World: world, Timeout: 20 * time.Second})
			memory := []owned{ownMemfd(t, page), ownMemfd(t, page)}
			control := controlSegment(t, world)
			defer func() { _ = unix.Munmap(control) }()
			before := bytes.Clone(control)
			windows := make([]*client.Window, world)
			restore := limits.LeaveFree(t, free)
			errs := together(ranks, func(m member) (err error) {
				config := memory[m.Rank()].Config()
				if !given {
					config.FD = -1
				}
				windows[m.Rank()], err = m.Register(config)
				return err
			})
			restore()
			switch {
			case errs[0] != nil && errs[1] != nil:
				failed++
				if text := fmt.Sprint(errs); strings.Contains(text, "deadline") {
					t.Errorf("with %d free descriptors a rank waits for the other until its deadline: %s", free, text)
				}
				unchangedButForCalls(t, fmt.Sprintf("%d free descriptors", free), before, bytes.Clone(control), world)
			case errs[0] != nil || errs[1] != nil:
				t.Errorf("with %d free descriptors one rank fails alone: %v", free, errs)
			default:
				sharing, err := windows[0].Sharing()
				if shared = err == nil && sharing.ZeroCopy; !shared {
					staged++
					wantSharing(t, windows, sharing.Rank, "Too many open files", "ulimit -n")
				}
			}
			_ = together(ranks, finalize)
			for r, m := range ranks {
				_ = m.session.Close()
				memory[r].Release()
			}
		})
		if shared {
			break
		}
	}
	if failed < 2 || staged < 1 { // the daemon's descriptors and the other rank's; the library's own first one
		t.Errorf("%d registrations failed, %d were staged", failed, staged)
	}
}

// unchangedButForCalls compares control segments: the ranks have written their lines and flight records, and one may have broken the group.
func unchangedButForCalls(t *testing.T, name string, before, after []byte, world int) {
	t.Helper()
	parts := wire.PartsOf(world)
	copyOver := func(offset, n uint64) { copy(after[offset:offset+n], before[offset:]) }
	copyOver(wire.AbortOffset, 8)
	copyOver(parts.Lines.Offset, parts.Lines.Bytes())
	copyOver(parts.Flights.Offset, parts.Flights.Bytes())
	wantSameSegment(t, name, before, after)
}

func wantSameSegment(t *testing.T, name string, before, after []byte) {
	t.Helper()
	for at := range before {
		if before[at] != after[at] {
			t.Errorf("%s: byte %d of the control segment was %#x, is %#x", name, at, before[at], after[at])
			return
		}
	}
}

// Each descriptor that a group needs, of the library and of the daemon, is the first one that is missing.
func TestAGroupThatFormsWithTooFewDescriptorsLeavesNothing(t *testing.T) {
	s := startDaemon(t)
	formed := false
	for free := 0; !formed; free++ {
		if free == 32 {
			t.Fatal("the group needs more than 32 descriptors")
		}
		nothingLeaks(t, func() {
			ranks := []*client.Session{connect(t, s), connect(t, s)}
			comms := make([]*client.Comm, len(ranks))
			eventually(t, "the daemon has the sessions' leases", func() bool {
				maps, err := os.ReadFile("/proc/self/maps")
				return err == nil && strings.Count(string(maps), "/memfd:railhead-session") == 2*len(ranks)
			})
			restore := limits.LeaveFree(t, free)
			errs := inParallel(len(ranks), func(r int) (err error) {
				comms[r], err = ranks[r].Init(client.CommConfig{Group: t.Name(), World: len(ranks), Rank: r, Timeout: 5 * time.Second})
				return err
			})
			restore()
			if formed = errs[0] == nil && errs[1] == nil; formed {
				_ = inParallel(len(ranks), func(r int) error { return comms[r].Finalize() })
			} else if errs[0] == nil || errs[1] == nil {
				t.Errorf("with %d free descriptors one rank fails alone: %v", free, errs)
			}
			for _, session := range ranks {
				_ = session.Close()
			}
		})
	}
}

// The address space is full when the ranks map each other's memory.
func TestARegistrationThatCannotBeMappedIsStagedWithoutMappings(t *testing.T) {
	const size = 16 << 30 // of address space; no page is used
	s := startDaemon(t)
	nothingLeaks(t, func() {
		ranks := formGroup(t, s, client.CommConfig{World: 2, HeapBytes: 1 << 20})
		memory := []owned{ownMemfd(t, size), ownMemfd(t, size)}
		before := harness.CountResources(t)
		statm, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Fatal(err)
		}
		var pages uint64
		if _, err := fmt.Sscan(string(statm), &pages); err != nil {
			t.Fatal(err)
		}
		// Room for all that this process may need meanwhile, but not for the memory.
		restore := limits.Set(t, unix.RLIMIT_AS, pages*page+size/2)
		windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })
		restore()
		wantSharing(t, windows, 0, "rank 0", "could not map the other ranks' memory", "ulimit -v")
		if now := harness.CountResources(t); now != before {
			t.Errorf("before %+v, afterwards %+v", before, now)
		}
		freeAll(t, ranks, windows)
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
		memory[0].Release()
		memory[1].Release()
	})
}

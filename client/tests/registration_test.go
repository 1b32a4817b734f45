package tests

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
	"railhead/internal/rank"
	"railhead/internal/wire"
)

// registerAll registers each rank's memory and returns the windows.
func registerAll(t testing.TB, ranks []member, config func(rank int) client.RegisterConfig) []*client.Window {
	t.Helper()
	windows := make([]*client.Window, len(ranks))
	all(t, ranks, func(m member) (err error) {
		windows[m.Rank()], err = m.Register(config(m.Rank()))
		return err
	})
	return windows
}

// wantSharing checks that all ranks have the same sharing. staged is the rank whose memory cannot be shared, -1 = none.
func wantSharing(t testing.TB, windows []*client.Window, staged int, words ...string) {
	t.Helper()
	for rank, w := range windows {
		s, err := w.Sharing()
		if err != nil || s.ZeroCopy != (staged < 0) || s.Rank != staged || (s.Reason == "") != (staged < 0) {
			t.Errorf("rank %d: %+v, %v; want staged by %d", rank, s, err, staged)
		}
		for _, word := range words {
			if !strings.Contains(s.Reason, word) {
				t.Errorf("rank %d: the reason lacks %q: %s", rank, word, s.Reason)
			}
		}
	}
}

// seesAllStores checks that the window is the ranks' memory, and that all ranks see all stores.
func seesAllStores(t testing.TB, ranks []member, windows []*client.Window, memory func(rank int) []byte) {
	t.Helper()
	at := func(n, writer int) int { return (writer * 97) % n }
	all(t, ranks, func(m member) error {
		mine, err := windows[m.Rank()].Local()
		if err != nil {
			return err
		}
		if own := memory(m.Rank()); len(own) != len(mine) || &own[0] != &mine[0] {
			return fmt.Errorf("rank %d's part of the window is not its memory", m.Rank())
		}
		for r := range ranks {
			peer, err := windows[m.Rank()].Peer(r)
			if err != nil {
				return err
			}
			peer[at(len(peer), m.Rank())] = byte(100 + m.Rank()) // each writer has its own byte in each rank's memory
		}
		if err := m.Barrier(); err != nil {
			return err
		}
		for r := range ranks {
			peer, err := windows[m.Rank()].Peer(r)
			if err != nil {
				return err
			}
			for writer := range ranks {
				own := memory(r)
				if got := peer[at(len(peer), writer)]; got != byte(100+writer) || own[at(len(own), writer)] != got {
					return fmt.Errorf("rank %d sees %d of rank %d in rank %d's memory", m.Rank(), got, writer, r)
				}
			}
		}
		return m.Barrier()
	})
}

func freeAll(t testing.TB, ranks []member, windows []*client.Window) {
	t.Helper()
	all(t, ranks, func(m member) error { return windows[m.Rank()].Free() })
}

func TestAllMemoryMappedFromAMemfdIsShared(t *testing.T) {
	s := startDaemon(t)
	const world, size = 3, 3 * page
	for _, c := range []struct {
		name   string
		make   func() owned
		config func(o owned) client.RegisterConfig
	}{
		{"with its descriptor", func() owned { return ownMemfd(t, size) }, owned.Config},
		{"at an offset of its descriptor", func() owned {
			return mapOwned(t, memfd(t, 8*page, unix.MFD_ALLOW_SEALING), 5*page, size, unix.MAP_SHARED)
		}, func(o owned) client.RegisterConfig {
			return client.RegisterConfig{Memory: o.Memory, FD: o.FD, Offset: 5 * page}
		}},
		{"the rest of a mapping", func() owned { return ownMemfd(t, size) }, func(o owned) client.RegisterConfig {
			return client.RegisterConfig{Memory: o.Memory[2*page:], FD: o.FD, Offset: 2 * page}
		}},
		{"without its descriptor", func() owned { return ownMemfd(t, size) }, func(o owned) client.RegisterConfig {
			return client.RegisterConfig{Memory: o.Memory, FD: -1}
		}},
		{"without its descriptor, within a page", func() owned {
			return mapOwned(t, memfd(t, 8*page, unix.MFD_ALLOW_SEALING), 2*page, size, unix.MAP_SHARED)
		}, func(o owned) client.RegisterConfig {
			return client.RegisterConfig{Memory: o.Memory[page+68 : 2*page+99], FD: -1}
		}},
		{"sealed already", func() owned {
			o := ownMemfd(t, size)
			seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
			if _, err := unix.FcntlInt(uintptr(o.FD), unix.F_ADD_SEALS, seals); err != nil {
				t.Fatal(err)
			}
			return o
		}, owned.Config},
		{"in two mappings", func() owned {
			o := ownMemfd(t, size)
			if err := unix.Madvise(o.Memory[page:], unix.MADV_DONTFORK); err != nil { // splits the mapping
				t.Fatal(err)
			}
			return o
		}, func(o owned) client.RegisterConfig {
			return client.RegisterConfig{Memory: o.Memory[1 : 2*page], FD: -1}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nothingLeaks(t, func() {
				ranks := formGroup(t, s, client.CommConfig{World: world})
				memory := make([]owned, world)
				for r := range memory {
					memory[r] = c.make()
				}
				windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return c.config(memory[r]) })
				wantSharing(t, windows, -1)
				part := func(r int) []byte { return c.config(memory[r]).Memory }
				seesAllStores(t, ranks, windows, part)
				if offset, err := windows[0].Offset(); offset != 0 || err != nil {
					t.Errorf("offset %d, %v", offset, err)
				}
				freeAll(t, ranks, windows)
				_, err := windows[0].Peer(1)
				wantError(t, err, wire.ResultInvalidHandle, "window_pointer")
				for r := range memory {
					part(r)[0] = 1 // still mapped
					memory[r].Release()
				}
				all(t, ranks, finalize)
				all(t, ranks, closeSession)
			})
		})
	}
}

func TestAGroupOfOneRegisters(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 1})
	o := ownMemfd(t, page)
	defer o.Release()
	windows := registerAll(t, ranks, func(int) client.RegisterConfig { return o.Config() })
	wantSharing(t, windows, -1)
	seesAllStores(t, ranks, windows, func(int) []byte { return o.Memory })
	freeAll(t, ranks, windows)
}

func TestARegisteredMemfdCannotShrink(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2})
	memory := []owned{ownMemfd(t, 2*page), ownMemfd(t, 2*page)}
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })
	if err := unix.Ftruncate(memory[1].FD, page); err != unix.EPERM {
		t.Errorf("shrinking it: %v", err)
	}
	if err := unix.Ftruncate(memory[1].FD, 3*page); err != nil {
		t.Errorf("growing it: %v", err)
	}
	// If the owner unmaps and closes it, the other ranks still have it mapped, and finalize works.
	memory[1].Release()
	peer, err := windows[0].Peer(1)
	if err != nil {
		t.Fatal(err)
	}
	peer[2*page-1] = 7
	memory[0].Release()
	all(t, ranks, finalize)
}

func TestInvalidRegistrationsAreRefusedBeforeTheDaemonIsAsked(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	o, other := ownMemfd(t, 4*page), ownMemfd(t, 4*page)
	defer o.Release()
	defer other.Release()
	private := mapOwned(t, o.FD, 0, page, unix.MAP_PRIVATE)
	defer func() { _ = unix.Munmap(private.Memory) }()
	holey := ownMemfd(t, 3*page)
	defer holey.Release()
	hole(t, holey.Memory[page:2*page])
	short := ownMemfd(t, 2*page) // a page of its own, then a page of other memory
	defer short.Release()
	overlayPrivate(t, short.Memory[page:])
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(socket) }()
	free := memfd(t, page, 0)
	_ = unix.Close(free)
	control := controlSegment(t, 2)
	before, resources := bytes.Clone(control), harness.CountResources(t)
	for _, c := range []struct {
		name   string
		config client.RegisterConfig
		words  []string
	}{
		{"no bytes", client.RegisterConfig{Memory: o.Memory[:0], FD: -1}, []string{"0 bytes"}},
		{"an offset within a page", client.RegisterConfig{Memory: o.Memory, FD: o.FD, Offset: 64}, []string{"fd_offset 64", "4096"}},
		{"an offset without a descriptor", client.RegisterConfig{Memory: o.Memory, FD: -1, Offset: page}, []string{"without an fd"}},
		{"an offset beyond any file", client.RegisterConfig{Memory: o.Memory, FD: o.FD, Offset: 1 << 63}, []string{"fd_offset"}},
		{"another file", client.RegisterConfig{Memory: o.Memory, FD: other.FD}, []string{"not mapped MAP_SHARED from fd", "memfd:test-owned"}},
		{"another offset", client.RegisterConfig{Memory: o.Memory, FD: o.FD, Offset: page}, []string{"not mapped", "at 4096", "at 0;"}},
		{"another page", client.RegisterConfig{Memory: o.Memory[page:], FD: o.FD}, []string{"not mapped", "at 4096;"}},
		{"an address within a page", client.RegisterConfig{Memory: o.Memory[64:], FD: o.FD}, []string{"not mapped", "at 64;"}},
		{"a private mapping", client.RegisterConfig{Memory: private.Memory, FD: o.FD}, []string{"not mapped MAP_SHARED", "private memory"}},
		{"a closed descriptor", client.RegisterConfig{Memory: o.Memory, FD: free}, []string{fmt.Sprint("fd ", free), "Bad file descriptor"}},
		{"a directory", client.RegisterConfig{Memory: o.Memory, FD: int(dir.Fd())}, []string{"neither a memfd nor a file"}},
		{"a socket", client.RegisterConfig{Memory: o.Memory, FD: socket}, []string{"neither a memfd nor a file"}},
		{"a hole", client.RegisterConfig{Memory: holey.Memory, FD: holey.FD}, []string{"12288 bytes", "only 4096 are mapped; register no more"}},
		{"more than the mapping", client.RegisterConfig{Memory: short.Memory, FD: short.FD}, []string{"of the 8192 bytes", "only the first 4096 are mapped from fd", "register no more"}},
		{"a hole, of no descriptor", client.RegisterConfig{Memory: holey.Memory[1 : 2*page], FD: -1}, []string{"only 4095 are mapped"}},
		{"nothing mapped at all", client.RegisterConfig{Memory: holey.Memory[page : 2*page], FD: -1}, []string{"only 0 are mapped"}},
	} {
		_, err := ranks[1].Register(c.config)
		wantError(t, err, wire.ResultInvalidArgument, append(c.words, "window_register: rank 1")...)
		if t.Failed() {
			t.Fatalf("failed with %s", c.name)
		}
	}
	wantSameSegment(t, "refused calls", before, control)
	if now := harness.CountResources(t); now != resources {
		t.Errorf("before the refused calls %+v, afterwards %+v", resources, now)
	}
	_ = unix.Munmap(control)
	// None of the calls reached the group.
	all(t, ranks, barrier)
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return []owned{o, other}[r].Config() })
	wantSharing(t, windows, -1)
}

func TestDifferentRegistrationsAndFreesAreRefusedAndTheGroupWorks(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		ranks := formGroup(t, s, client.CommConfig{World: 3})
		memory := []owned{ownMemfd(t, 2*page), ownMemfd(t, page), mapOwned(t, -1, 0, 2*page, unix.MAP_PRIVATE)}
		for range 3 {
			for _, err := range together(ranks, func(m member) error {
				_, err := m.Register(memory[m.Rank()].Config())
				return err
			}) {
				wantError(t, err, wire.ResultMismatch, "window_register(4096)", "window_register(8192)")
			}
		}
		all(t, ranks, barrier)
		windows := registerAll(t, ranks, func(r int) client.RegisterConfig {
			return client.RegisterConfig{Memory: memory[r].Memory[:page], FD: -1}
		})
		wantSharing(t, windows, 2, "rank 2")
		// Ranks 0 and 2 free the registered window, rank 1 another one.
		heap := make([]*client.Window, len(ranks))
		all(t, ranks, func(m member) (err error) { heap[m.Rank()], err = m.AllocWindow(1); return err })
		for _, err := range together(ranks, func(m member) error {
			if m.Rank() == 1 {
				return heap[1].Free()
			}
			return windows[m.Rank()].Free()
		}) {
			wantError(t, err, wire.ResultMismatch, "window_free(registered window 1)", "window_free(")
		}
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
		for _, o := range memory {
			o.Release()
		}
	})
}

func TestACommHasAtMost255RegisteredWindows(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2})
	memory := []owned{ownMemfd(t, 256*page), ownMemfd(t, 256*page)}
	defer memory[0].Release()
	defer memory[1].Release()
	piece := func(i int) func(r int) client.RegisterConfig {
		return func(r int) client.RegisterConfig {
			return client.RegisterConfig{Memory: memory[r].Memory[i*page : (i+1)*page], FD: memory[r].FD, Offset: uint64(i * page)}
		}
	}
	var windows [][]*client.Window
	for i := range 255 {
		windows = append(windows, registerAll(t, ranks, piece(i)))
	}
	for _, err := range together(ranks, func(m member) error { _, err := m.Register(piece(255)(m.Rank())); return err }) {
		wantError(t, err, wire.ResultLimit, "window_register", "255 registered windows", "free some")
	}
	for i, w := range windows {
		peer, err := w[0].Peer(1)
		if err != nil {
			t.Fatal(err)
		}
		peer[0] = byte(i)
		if got := memory[1].Memory[i*page]; got != byte(i) {
			t.Errorf("window %d: rank 1 sees %d", i, got)
		}
	}
	freeAll(t, ranks, windows[100])
	again := registerAll(t, ranks, piece(255))
	wantSharing(t, again, -1)
	wantSharing(t, windows[101], -1)
}

// The group breaks while ranks 0 and 1 wait in window_register.
func TestARegistrationEndsWithItsGroupWithoutLeaks(t *testing.T) {
	s := startDaemon(t)
	for _, c := range []struct {
		name string
		end  func(m member) error
		want wire.Result
		word string
	}{
		{"a closed session", func(m member) error { return m.session.Close() }, wire.ResultRankDead, "rank 2"},
		{"an abort", func(m member) error { return m.Abort() }, wire.ResultAborted, "rank 2"},
		{"a finalize", func(m member) error { _ = m.Finalize(); return nil }, wire.ResultMismatch, "group \"TestARegistration"},
	} {
		nothingLeaks(t, func() {
			for range 20 {
				ranks := formGroup(t, s, client.CommConfig{World: 3})
				o := ownMemfd(t, page)
				errs := together(ranks, func(m member) error {
					if m.Rank() == 2 {
						return c.end(m)
					}
					_, err := m.Register(o.Config())
					return err
				})
				if errs[2] != nil {
					t.Errorf("%s: %v", c.name, errs[2])
				}
				wantError(t, errs[0], c.want, c.word)
				wantError(t, errs[1], c.want, c.word)
				_, err := ranks[0].Register(o.Config())
				wantError(t, err, c.want, c.word)
				for _, m := range ranks {
					_ = m.Finalize()
					_ = m.session.Close()
				}
				o.Release()
			}
		})
	}
}

func TestTheDeadlineNamesARankThatDoesNotRegister(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2, Timeout: 500 * 1e6})
	o := ownMemfd(t, page)
	defer o.Release()
	_, err := ranks[0].Register(o.Config())
	wantError(t, err, wire.ResultTimeout, "rank 1", "window_register")
	if st, err := ranks[0].Status(); err != nil || st.OperationName != "window_register" || st.Bytes != page {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestManyRegistrationsDoNotLeak(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		for i := range deep.Rounds(t, 24, 60) {
			ranks := formGroup(t, s, client.CommConfig{World: 2})
			memory := []owned{ownMemfd(t, 2*page), ownMemfd(t, 2*page)}
			var windows []*client.Window
			for range 5 {
				windows = registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })
			}
			switch i % 4 {
			case 0:
				freeAll(t, ranks, windows)
				all(t, ranks, finalize)
			case 1: // not freed
				all(t, ranks, finalize)
			case 2:
				_ = ranks[1].Abort()
				wantError(t, windows[0].Free(), wire.ResultAborted, "rank 1")
			case 3:
				_ = ranks[1].session.Close()
			}
			for _, m := range ranks {
				_ = m.Finalize()
				_ = m.session.Close()
			}
			for _, o := range memory {
				if !bytes.Equal(o.Memory, make([]byte, 2*page)) {
					t.Error("the memory has changed")
				}
				o.Release()
			}
		}
	})
}

// Every rank gets 63 descriptors at once, two fewer than the answers that a call can queue.
func TestSixtyFourRanksRegister(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: rank.MaxPerNode, HeapBytes: 1 << 20})
	memory := make([]owned, len(ranks))
	for r := range memory {
		memory[r] = ownMemfd(t, page)
		defer memory[r].Release()
	}
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })
	wantSharing(t, windows, -1)
	first, err := windows[0].Peer(rank.MaxPerNode - 1)
	if err != nil {
		t.Fatal(err)
	}
	first[0] = 9
	if memory[rank.MaxPerNode-1].Memory[0] != 9 {
		t.Error("rank 63 does not see a store of rank 0 to its memory")
	}
	freeAll(t, ranks, windows)
}

package cuda

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/await"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

// registerCalls are the functions of the driver that window_register calls.
var registerCalls = []string{
	"cuPointerGetAttribute", "cuMemGetAddressRange", "cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle",
	"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess",
}

// Each call of the driver in turn fails on one of three ranks. All ranks have the window then, staged with the reason of that rank, and nothing is
// mapped.
func TestAFailureDuringARegistrationIsOneOnAllRanks(t *testing.T) {
	const world = 3
	s := startDaemon(t)
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	functions := someOf(t, []string{"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemSetAccess"}, registerCalls)
	ranks := form(t, s, client.CommConfig{World: world, Timeout: missing, HeapBytes: 16 << 20})
	memory := make([][]byte, world)
	for i, r := range ranks {
		memory[i] = tensor{1, 3, 100, 4 << 20}.of(t, r)
	}
	for _, function := range functions {
		t.Run(function, func(t *testing.T) {
			staged, before := 0, account(t)
			for n := 1; ; n++ {
				if err := gpu.Fail(function, n, outOfMemory); err != nil {
					t.Fatal(err)
				}
				windows, errs := make([]*client.Window, world), make([]error, world)
				inParallel(world, func(i int) error {
					windows[i], errs[i] = ranks[i].Register(client.RegisterConfig{Memory: memory[i], FD: -1})
					return nil
				})
				_ = gpu.Fail("*", 0, 0)
				if err := errors.Join(errs...); err != nil {
					t.Fatalf("call %d: %v", n, err)
				}
				sharing, err := windows[0].Sharing()
				if err != nil {
					t.Fatal(err)
				}
				if sharing.ZeroCopy {
					wantSharing(t, windows, -1)
				} else {
					staged++
					words := []string{fmt.Sprintf("rank %d", sharing.Rank)}
					if function == "cuMemImportFromShareableHandle" {
						words = append(words, fmt.Sprintf("(pid %d)", os.Getpid()), "could not map the other ranks' memory (CUDA error 2)")
					}
					wantSharing(t, windows, sharing.Rank, words...)
					if now := account(t); now != before {
						t.Fatalf("call %d: %s: before %+v, afterwards %+v", n, sharing.Reason, before, now)
					}
				}
				freeAll(t, ranks, windows)
				if now := account(t); now != before {
					t.Fatalf("call %d, after the window was freed: before %+v, afterwards %+v", n, before, now)
				}
				if sharing.ZeroCopy {
					break
				}
			}
			if staged == 0 {
				t.Error("no failure of the function made the window staged")
			}
		})
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

func TestGroupsWithRegisteredWindowsLeaveNothing(t *testing.T) {
	s := startDaemon(t)
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	for name, end := range map[string]func(ranks []rank, windows []*client.Window){
		"freed": func(ranks []rank, windows []*client.Window) {
			each(t, ranks, func(r rank) error { return errors.Join(windows[r.Rank()].Free(), r.Finalize()) })
		},
		"not freed": func(ranks []rank, _ []*client.Window) { each(t, ranks, func(r rank) error { return r.Finalize() }) },
		"closed":    func([]rank, []*client.Window) {},
		"aborted, and freed": func(ranks []rank, windows []*client.Window) {
			_ = ranks[0].Abort()
			each(t, ranks, func(r rank) error {
				wantError(t, windows[r.Rank()].Free(), wire.ResultAborted)
				return r.Finalize()
			})
		},
		"unmapped first": func(ranks []rank, windows []*client.Window) {
			each(t, ranks, func(r rank) error { return errors.Join(windows[r.Rank()].Free(), r.Finalize()) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeaks(t, func() {
				life(t, s, 2, func(ranks []rank) {
					memory := make([][]byte, 2)
					for i, r := range ranks {
						var err error
						if memory[i], err = r.device.Map(granule, 2, true); err != nil {
							t.Fatal(err)
						}
					}
					windows := register(t, ranks, memory)
					each(t, ranks, func(r rank) error {
						b := memory[r.Rank()][:1<<20]
						return errors.Join(r.on().AllReduce(b, b, len(b)/4, client.I32, client.Sum), r.wait())
					})
					unmap := func() {
						for i, r := range ranks {
							if err := r.device.Unmap(memory[i]); err != nil {
								t.Error(err)
							}
						}
					}
					if name == "unmapped first" {
						unmap() // the other ranks' mappings keep it alive
						end(ranks, windows)
						return
					}
					end(ranks, windows)
					unmap()
				})
			})
		})
	}
}

func TestARegisteredWindowOfACapturedGraphCannotBeFreed(t *testing.T) {
	const count = 1 << 18
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	memory, graphs := make([][]byte, 2), make([]*graph, 2)
	for i, r := range ranks {
		memory[i] = tensor{1, 2, 64, 4 * count}.of(t, r)
	}
	windows := register(t, ranks, memory)
	for i, r := range ranks {
		graphs[i] = r.capture(t, func() error { return r.on().AllReduce(memory[i], memory[i], count, client.I32, client.Sum) })
	}
	for turn := range 3 {
		each(t, ranks, func(r rank) error {
			clear(memory[r.Rank()])
			memory[r.Rank()][4*(count-1)] = byte(10*turn + r.Rank())
			return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait())
		})
		for i, b := range memory {
			if got := int(b[4*(count-1)]); got != 20*turn+1 {
				t.Fatalf("replay %d: rank %d has %d, want %d", turn, i, got, 20*turn+1)
			}
		}
	}
	for i := range ranks {
		wantError(t, windows[i].Free(), wire.ResultBusy, fmt.Sprintf("window_free: rank %d", i), "registration 1", "1 calls")
	}
	for _, g := range graphs {
		g.end()
	}
	freeAll(t, ranks, windows)
}

// window_free waits until the kernels of replays that use the window have ended.
func TestAWindowIsFreedOnceItsStreamsAreIdle(t *testing.T) {
	const count = 1 << 18
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	memory := make([][]byte, 2)
	for i, r := range ranks {
		memory[i] = tensor{1, 2, 0, 4 * count}.of(t, r)
		memory[i][0] = 1
	}
	windows := register(t, ranks, memory)
	each(t, ranks, func(r rank) error {
		if r.Rank() == 1 {
			time.Sleep(20 * time.Millisecond) // rank 0's kernel waits for this one's
		}
		b := memory[r.Rank()]
		var err error
		for range 3 {
			err = errors.Join(err, r.on().AllReduce(b, b, count, client.I32, client.Sum))
		}
		return errors.Join(err, windows[r.Rank()].Free())
	})
	for i, b := range memory {
		if b[0] != 8 {
			t.Errorf("rank %d: the window was freed before its operations had run: %d", i, b[0])
		}
	}
}

// A child. Its memory is RAILHEAD_TEST_MEMORY. It checks sums, zero-copy or staged, and of replays.
func TestChildReducesRegistered(t *testing.T) {
	r := childRank(t)
	const bytes = 2 << 20
	memory := r.registrable(t, bytes)
	before := account(t)
	w, err := r.Register(client.RegisterConfig{Memory: memory, FD: -1})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := w.Sharing(); err != nil || !s.ZeroCopy {
		t.Fatalf("%+v, %v", s, err)
	}
	for peer := range r.WorldSize() {
		if part, err := w.Peer(peer); err != nil || len(part) != bytes {
			t.Fatalf("rank %d: %d bytes, %v", peer, len(part), err)
		}
	}
	r.reduce(t, memory)
	ones := memory[:bytes/2]
	for i := range ones {
		ones[i] = 1
	}
	if err := errors.Join(r.on().AllReduce(ones, ones, len(ones), client.U8, client.Sum), r.wait()); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Status(); err != nil || s.Algorithm != "pull" {
		t.Fatalf("%q ran: %v", s.Algorithm, err)
	}
	for i, got := range ones {
		if int(got) != r.WorldSize() {
			t.Fatalf("byte %d is %d, want %d", i, got, r.WorldSize())
		}
	}
	if err := w.Free(); err != nil {
		t.Fatal(err)
	}
	if now := account(t); now.Opened != before.Opened || now.Mappings != before.Mappings {
		t.Fatalf("before the registration %+v, afterwards %+v", before, now)
	}
	if err := errors.Join(r.Finalize(), r.session.Close()); err != nil {
		t.Fatal(err)
	}
}

// registrable is memory that RAILHEAD_TEST_MEMORY names, elsewhere in its allocation on each rank where that may be.
func (r rank) registrable(t testing.TB, bytes int) []byte {
	t.Helper()
	switch kind := os.Getenv("RAILHEAD_TEST_MEMORY"); kind {
	case "mapped":
		return tensor{1, 3, granule + 256, bytes}.of(t, r)
	case "malloc":
		return r.alloc(t, bytes+1024)[48*r.Rank():][:bytes]
	default:
		t.Fatalf("no memory %q", kind)
		return nil
	}
}

func TestProcessesReduceRegisteredMemory(t *testing.T) {
	t.Parallel()
	for _, memory := range []string{"mapped", "malloc"} {
		for _, world := range []int{2, 5} {
			t.Run(fmt.Sprint(memory, world), func(t *testing.T) {
				for _, c := range harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildReducesRegistered", world, "RAILHEAD_TEST_MEMORY="+memory) {
					c.Succeeds(t)
				}
			})
		}
	}
}

// A child. It registers and frees until that fails, then checks that nothing of it is left.
func TestChildRegistersUntilARankDies(t *testing.T) {
	r := childRank(t)
	memory, mappings := r.registrable(t, 2<<20), 0
	if os.Getenv("RAILHEAD_TEST_MEMORY") == "mapped" {
		mappings = 3
	}
	before := account(t)
	for n := 0; ; n++ {
		w, err := r.Register(client.RegisterConfig{Memory: memory, FD: -1})
		if err == nil {
			err = w.Free()
		}
		if n == 2 {
			fmt.Println("registers")
		}
		if err == nil {
			continue
		}
		harness.PrintEnd(err)
		if err := errors.Join(r.Finalize(), r.session.Close()); err != nil {
			t.Fatal(err)
		}
		await.Until(t, func() string {
			now := account(t)
			if now.Mappings == mappings && now.Opened == 0 { // the tensor
				return ""
			}
			return fmt.Sprintf("before %+v, afterwards %+v", before, now)
		})
		fmt.Println("clean")
		return
	}
}

// The victim is killed at different moments of a registration.
func TestTheOtherRanksNameARankKilledDuringARegistration(t *testing.T) {
	t.Parallel()
	const world, victim = 3, 1
	for round := range deep.Rounds(t, 4, 30) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			memory := []string{"mapped", "malloc"}[round%2]
			children := harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildRegistersUntilARankDies", world, "RAILHEAD_TEST_MEMORY="+memory)
			for _, c := range children {
				c.Line(t, "registers")
			}
			time.Sleep(time.Duration(round) * 730 * time.Microsecond)
			if err := children[victim].Cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for i, c := range children {
				if i == victim {
					continue
				}
				died := fmt.Sprintf("rank %d (pid %d)", victim, children[victim].Cmd.Process.Pid)
				if err := harness.Missing("a child", c.Line(t, "ended "), fmt.Sprint(wire.ResultRankDead), died); err != nil {
					t.Error(err)
				}
				c.Line(t, "clean")
			}
		})
	}
}

// A child on a GPU with little memory, so that each device heap has few addresses for registered windows.
func TestChildRegistersUntilThereIsNoRoom(t *testing.T) {
	r := childRank(t)
	memory := tensor{32, 1, 0, 64 << 20}.of(t, r)
	var windows []*client.Window
	for {
		w, err := r.Register(client.RegisterConfig{Memory: memory, FD: -1})
		if err != nil {
			t.Fatal(err)
		}
		windows = append(windows, w)
		s, err := w.Sharing()
		if err != nil {
			t.Fatal(err)
		}
		if s.ZeroCopy {
			continue
		}
		if err := harness.Missing("the reason", s.Reason, "rank 0 (pid", "no addresses left", "free registered windows"); err != nil {
			t.Fatal(err)
		}
		break
	}
	if len(windows) != 4+1 { // 256 MiB
		t.Errorf("the window %d was the first without room", len(windows))
	}
	if err := windows[1].Free(); err != nil {
		t.Fatal(err)
	}
	w, err := r.Register(client.RegisterConfig{Memory: memory, FD: -1})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := w.Sharing(); err != nil || !s.ZeroCopy {
		t.Fatalf("in the place of a freed window: %+v, %v", s, err)
	}
	if err := errors.Join(r.Finalize(), r.session.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestWindowsForWhichThereAreNoAddressesAreStaged(t *testing.T) {
	t.Parallel()
	for _, c := range harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildRegistersUntilThereIsNoRoom", 2, fmt.Sprint("RAILHEAD_FAKE_CUDA_MEMORY=", 256<<20)) {
		c.Succeeds(t)
	}
}

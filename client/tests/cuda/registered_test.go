package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

const granule = 2 << 20

// tensor is memory of the engine: so many allocations of cuMemCreate of so many granules each, of which bytes from an offset on are registered.
type tensor struct {
	granules, pieces int
	offset, bytes    int
}

func (x tensor) String() string {
	return fmt.Sprintf("%d bytes at %d of %d allocations of %d granules", x.bytes, x.offset, x.pieces, x.granules)
}

// of allocates the tensor on a rank's device. It ends with the test.
func (x tensor) of(t testing.TB, r rank) []byte {
	t.Helper()
	memory, err := r.device.Map(x.granules*granule, x.pieces, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.device.Unmap(memory); err != nil {
			t.Error(err)
		}
	})
	return memory[x.offset : x.offset+x.bytes]
}

// register registers each rank's memory.
func register(t testing.TB, ranks []rank, memory [][]byte) []*client.Window {
	t.Helper()
	windows := make([]*client.Window, len(ranks))
	each(t, ranks, func(r rank) (err error) {
		windows[r.Rank()], err = r.Register(client.RegisterConfig{Memory: memory[r.Rank()], FD: -1})
		return err
	})
	return windows
}

// wantSharing checks that all ranks have the same answer. words: of the reason why the window is staged by that rank; none: it is shared.
func wantSharing(t testing.TB, windows []*client.Window, staged int, words ...string) {
	t.Helper()
	for i, w := range windows {
		s, err := w.Sharing()
		if err != nil {
			t.Fatal(err)
		}
		if s.ZeroCopy != (len(words) == 0) || s.Rank != staged {
			t.Fatalf("rank %d: %+v, want rank %d and %q", i, s, staged, words)
		}
		if err := harness.Missing("the reason", s.Reason, words...); err != nil {
			t.Fatal(err)
		}
	}
}

func freeAll(t testing.TB, ranks []rank, windows []*client.Window) {
	t.Helper()
	each(t, ranks, func(r rank) error { return windows[r.Rank()].Free() })
}

// zeroCopy are calls for which pull is chosen between windows, in memory of 4 MiB.
func zeroCopy(world int, seed uint64) (operations []operation) {
	count := (1 << 20) / 4 / world
	for i, k := range []kind{"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"} {
		for _, inPlace := range []bool{false, true} {
			o := operation{kind: k, dtype: oracle.I32, op: oracle.Sum, count: count, root: world - 1, offset: 64, inPlace: inPlace, seed: seed + uint64(i)}
			if k == "all_reduce" || k == "broadcast" {
				o.count = (1 << 20) / 4
			}
			operations = append(operations, o)
		}
	}
	return operations
}

// runAll runs the operations and checks which of them were zero-copy: all but all-to-alls in place.
func runAll(t testing.TB, ranks []rank, memory [][]byte, zero bool, operations ...operation) {
	t.Helper()
	for _, o := range operations {
		o.run(t, ranks, memory)
		want := zero && !(o.kind == "all_to_all" && o.inPlace) && len(ranks) > 1
		for _, r := range ranks {
			if s, err := r.Status(); err != nil || (s.Algorithm == "pull") != want {
				t.Fatalf("%v: rank %d ran %q, want zero-copy %v: %v", o, r.Rank(), s.Algorithm, want, err)
			}
		}
	}
}

func TestTensorsOfCuMemCreateAreZeroCopy(t *testing.T) {
	const size = 4 << 20
	for i, c := range []struct {
		name string
		of   func(r rank) tensor
	}{
		{"one allocation", func(rank) tensor { return tensor{2, 1, 0, size} }},
		{"several allocations", func(rank) tensor { return tensor{1, 2, 0, size} }},
		{"parts of allocations", func(rank) tensor { return tensor{1, 4, 512 + granule, size} }},
		{"other places in allocations on each rank", func(r rank) tensor { return tensor{3 + r.Rank()%2, 3, 4096 + r.Rank()*granule, size} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			worlds := []int{1, 2, 3, 4, 5}
			if deep.Rounds(t, 0, 1) == 0 {
				worlds = worlds[i+1 : i+2]
			}
			for _, world := range worlds {
				t.Run(fmt.Sprint(world), func(t *testing.T) {
					ranks := form(t, startDaemon(t), client.CommConfig{World: world, HeapBytes: 16 << 20})
					memory := make([][]byte, world)
					for i, r := range ranks {
						memory[i] = c.of(r).of(t, r)
					}
					windows := register(t, ranks, memory)
					wantSharing(t, windows, -1)
					for i, w := range windows {
						own, err := w.Local()
						if err != nil || &own[0] != &memory[i][0] {
							t.Fatalf("rank %d: its own part is at %p, want %p: %v", i, &own[0], &memory[i][0], err)
						}
						for peer := range world {
							part, err := w.Peer(peer)
							if err != nil {
								t.Fatal(err)
							}
							memory[peer][size-1] = byte(10*i + peer + 1)
							if part[size-1] != memory[peer][size-1] {
								t.Fatalf("rank %d does not see the memory of rank %d", i, peer)
							}
						}
					}
					runAll(t, ranks, memory, true, zeroCopy(world, uint64(world))...)
					freeAll(t, ranks, windows)
					runAll(t, ranks, memory, false, zeroCopy(world, 9)[0])
					each(t, ranks, func(r rank) error { return r.Finalize() })
				})
			}
		})
	}
}

// Two tensors, a window of the library, and a part that is registered by itself.
func TestCallsBetweenSeveralWindowsAreZeroCopy(t *testing.T) {
	const count, bytes = 1 << 18, 1 << 20
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	a, b, part := make([][]byte, 2), make([][]byte, 2), make([][]byte, 2)
	for i, r := range ranks {
		a[i], b[i] = tensor{1, 2, 0, 2 * granule}.of(t, r), tensor{4, 1, 100, granule}.of(t, r)
		part[i] = a[i][granule+64:]
	}
	own := window(t, ranks, bytes)
	first, second, third := register(t, ranks, part), register(t, ranks, b), register(t, ranks, a)
	wantSharing(t, slices.Concat(first, second, third), -1)
	for name, c := range map[string]struct{ send, recv [][]byte }{
		"from a tensor to another":    {a, b},
		"from a tensor to a window":   {b, own},
		"from a window to a part":     {own, part},
		"from a part to the tensor":   {part, a},
		"in place, also in two":       {part, part},
		"in place in the first bytes": {a, a},
	} {
		each(t, ranks, func(r rank) error {
			send, recv := c.send[r.Rank()][:bytes], c.recv[r.Rank()][:bytes]
			for i := range count {
				send[4*i], send[4*i+1], send[4*i+2], send[4*i+3] = byte(i), byte(r.Rank()+1), 0, 0
			}
			err := errors.Join(r.on().AllReduce(send, recv, count, client.I32, client.Sum), r.wait())
			if s, e := r.Status(); e != nil || s.Algorithm != "pull" {
				return fmt.Errorf("%s ran %q: %w", name, s.Algorithm, e)
			}
			return err
		})
		for i := range ranks {
			for k := 0; k < bytes; k += 4 {
				got := int(c.recv[i][k]) | int(c.recv[i][k+1])<<8 | int(c.recv[i][k+2])<<16
				if want := 2*int(byte(k/4)) + 256*3; got != want {
					t.Fatalf("%s: rank %d: sum %d is %d, want %d", name, i, k/4, got, want)
				}
			}
		}
	}
	for _, windows := range [][]*client.Window{third, first, second} {
		freeAll(t, ranks, windows)
	}
}

func TestTensorsThatCannotBeSharedAreStaged(t *testing.T) {
	const size = 4 << 20
	good := func(r rank) []byte { return tensor{2, 1, 0, size}.of(t, r) }
	for name, c := range map[string]struct {
		of     func(r rank) []byte
		staged int
		words  []string
	}{
		"cudaMalloc in one process": {func(r rank) []byte { return r.alloc(t, size) }, 0,
			[]string{"rank 0 (", "one of several ranks of a process", "cudaMalloc", "expandable_segments:True"}},
		"cudaMalloc on a rank": {func(r rank) []byte {
			if r.Rank() == 1 {
				return r.alloc(t, size)
			}
			return good(r)
		}, 0, []string{"rank 0 (", "some ranks' memory is of cudaMalloc"}},
		"no descriptor on a rank": {func(r rank) []byte {
			if r.Rank() < 2 {
				return good(r)
			}
			memory, err := r.device.Map(size, 1, false)
			if err != nil {
				t.Fatal(err)
			}
			return memory
		}, 2, []string{"rank 2: ", "without a POSIX descriptor"}},
		"other places of a granule": {func(r rank) []byte { return tensor{4, 2, 64 * r.Rank(), size}.of(t, r) }, 0,
			[]string{"rank 0 (", "different places of the GPU's granules", "in the same order"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
			memory := make([][]byte, 3)
			for i, r := range ranks {
				memory[i] = c.of(r)
			}
			before := account(t)
			windows := register(t, ranks, memory)
			if now := account(t); now != before {
				t.Errorf("before the registration %+v, afterwards %+v", before, now)
			}
			wantSharing(t, windows, c.staged, c.words...)
			_, err := windows[0].Peer(1)
			wantError(t, err, wire.ResultUnsupported, "window_pointer", c.words[0])
			runAll(t, ranks, memory, false, zeroCopy(3, 1)[:4]...)
			freeAll(t, ranks, windows)
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

func TestWhatCannotBeRegisteredIsRefused(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 1})
	r := ranks[0]
	x := tensor{1, 2, 0, 2 * granule}.of(t, r)
	beyond, err := r.device.Map(granule, 2, true)
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.AllocWindowIn(4096, client.MemoryHost)
	if err != nil {
		t.Fatal(err)
	}
	host, err := w.Local()
	if err != nil {
		t.Fatal(err)
	}
	before := account(t)
	for name, c := range map[string]struct {
		config client.RegisterConfig
		words  []string
	}{
		"host memory":    {client.RegisterConfig{Memory: host, FD: -1}, []string{"no memory of CUDA"}},
		"a descriptor":   {client.RegisterConfig{Memory: x, FD: 0}, []string{"fd 0", "pass -1"}},
		"another device": {client.RegisterConfig{Memory: tensorOn(t, 3), FD: -1}, []string{"memory of device 3", "on device 0"}},
		"nothing":        {client.RegisterConfig{Memory: x[:0], FD: -1}, []string{"0 bytes"}},
	} {
		_, err := r.Register(c.config)
		wantError(t, err, wire.ResultInvalidArgument, append(c.words, "window_register: rank 0")...)
		if now := account(t); name != "another device" && now.Handles != before.Handles {
			t.Errorf("%s: before %+v, afterwards %+v", name, before, now)
		}
	}
	if err := r.device.Unmap(beyond); err != nil {
		t.Fatal(err)
	}
	_, err = r.Register(client.RegisterConfig{Memory: beyond, FD: -1})
	wantError(t, err, wire.ResultInvalidArgument, "no memory of CUDA")
	each(t, ranks, func(r rank) error { return errors.Join(r.allReduce(r.alloc(t, 400)), r.wait(), r.Finalize()) })
}

func tensorOn(t *testing.T, device int) []byte {
	t.Helper()
	return tensor{1, 1, 0, granule}.of(t, rank{device: gpu.Device(device)})
}

func TestUnequalSizesAreAMismatch(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	memory := make([][]byte, 3)
	for i, r := range ranks {
		memory[i] = tensor{1, 1, 0, 4096 + i/2}.of(t, r)
	}
	before := account(t)
	for _, err := range inParallel(3, func(i int) error {
		_, err := ranks[i].Register(client.RegisterConfig{Memory: memory[i], FD: -1})
		return err
	}) {
		wantError(t, err, wire.ResultMismatch, "window_register", "4096", "4097")
	}
	if now := account(t); now != before {
		t.Errorf("before %+v, afterwards %+v", before, now)
	}
	for i := range memory {
		memory[i] = memory[i][:4096]
	}
	windows := register(t, ranks, memory)
	wantSharing(t, windows, -1)
	freeAll(t, ranks, windows)
}

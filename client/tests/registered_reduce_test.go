package tests

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// reduceIn fills send of every rank, all-reduces, and checks the sums and the algorithm.
func reduceIn(t *testing.T, ranks []member, d oracle.Dtype, algorithm string, buffers func(rank int) (send, recv []byte)) {
	t.Helper()
	seeds := make([]uint64, len(ranks))
	for r := range seeds {
		seeds[r] = oracle.Seed(7, r, 0)
	}
	all(t, ranks, func(m member) error {
		send, recv := buffers(m.Rank())
		oracle.Fill(send, d, oracle.Sum, seeds[m.Rank()])
		if err := m.AllReduce(send, recv, len(send)/d.Size(), clientDtypes[d], client.Sum); err != nil {
			return err
		}
		if wrong := oracle.WrongSums(recv, d, seeds, len(ranks)); wrong != 0 {
			return fmt.Errorf("rank %d has %d wrong sums", m.Rank(), wrong)
		}
		st, err := m.Status()
		if err == nil && st.Algorithm != algorithm {
			err = fmt.Errorf("rank %d ran %s, want %s", m.Rank(), st.Algorithm, algorithm)
		}
		return err
	})
}

func TestAllReduceIsZeroCopyAnywhereInRegisteredMemory(t *testing.T) {
	s := startDaemon(t)
	const world, size = 3, 64 * page
	const bytes = 20 * page
	ranks := formGroup(t, s, client.CommConfig{World: world})
	first, second := make([]owned, world), make([]owned, world)
	for r := range world {
		// Each rank's memory is at another offset of its file.
		first[r] = mapOwned(t, memfd(t, size+int64(r)*page, unix.MFD_ALLOW_SEALING), int64(r)*page, size, unix.MAP_SHARED)
		second[r] = ownMemfd(t, size)
		defer first[r].Release()
		defer second[r].Release()
	}
	part := func(o owned, start int) []byte { return o.Memory[start : start+bytes] }
	config := func(o owned) client.RegisterConfig { return client.RegisterConfig{Memory: o.Memory, FD: -1} }

	reduceIn(t, ranks, oracle.F32, "twoshot", func(r int) ([]byte, []byte) { return part(first[r], 0), part(second[r], 0) })
	windows := [][]*client.Window{
		registerAll(t, ranks, func(r int) client.RegisterConfig { return config(first[r]) }),
		registerAll(t, ranks, func(r int) client.RegisterConfig { return config(second[r]) }),
	}
	heap := make([]*client.Window, world)
	all(t, ranks, func(m member) (err error) { heap[m.Rank()], err = m.AllocWindow(size); return err })
	inHeap := func(r int) []byte {
		b, err := heap[r].Local()
		if err != nil {
			t.Error(err)
		}
		return b[4*r : 4*r+bytes]
	}
	for what, buffers := range map[string]func(r int) ([]byte, []byte){
		"one region to the other": func(r int) ([]byte, []byte) { return part(first[r], 0), part(second[r], 0) },
		"at different offsets":    func(r int) ([]byte, []byte) { return part(first[r], 4*r), part(second[r], size-bytes-4*r) },
		"within a region":         func(r int) ([]byte, []byte) { return part(second[r], 0), part(second[r], bytes) },
		"in place":                func(r int) ([]byte, []byte) { return part(first[r], 68), part(first[r], 68) },
		"from the heap":           func(r int) ([]byte, []byte) { return inHeap(r), part(first[r], 0) },
		"to the heap":             func(r int) ([]byte, []byte) { return part(first[r], 0), inHeap(r) },
		"in different regions": func(r int) ([]byte, []byte) {
			return [][]byte{part(first[r], 0), part(second[r], 0), inHeap(r)}[r], part(second[r], bytes+64)
		},
		"up to the last byte of a region": func(r int) ([]byte, []byte) { return part(first[r], size-bytes), part(second[r], size-bytes) },
		"in the other region on rank 1":   func(r int) ([]byte, []byte) { return part([][]owned{first, second}[r%2][r], 0), part(first[r], bytes) },
	} {
		for _, d := range []oracle.Dtype{oracle.F32, oracle.BF16} {
			reduceIn(t, ranks, d, "pull", buffers)
			if t.Failed() {
				t.Fatalf("failed with buffers %s, %s", what, d)
			}
		}
	}
	// One rank's buffer is not in a window.
	private := mapOwned(t, -1, 0, bytes, unix.MAP_PRIVATE)
	defer private.Release()
	reduceIn(t, ranks, oracle.F32, "twoshot", func(r int) ([]byte, []byte) {
		if r == 1 {
			return private.Memory, part(second[r], 0)
		}
		return part(first[r], 0), part(second[r], 0)
	})
	freeAll(t, ranks, windows[0])
	reduceIn(t, ranks, oracle.F32, "twoshot", func(r int) ([]byte, []byte) { return part(first[r], 0), part(second[r], 0) })
	reduceIn(t, ranks, oracle.F32, "pull", func(r int) ([]byte, []byte) { return part(second[r], 0), part(second[r], 0) })
}

func TestAllReduceOnAStagedWindowCopies(t *testing.T) {
	const world, size = 3, 20 * page
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: world})
	memory := []owned{ownMemfd(t, size), mapOwned(t, -1, 0, size, unix.MAP_PRIVATE), ownMemfd(t, size)}
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return client.RegisterConfig{Memory: memory[r].Memory, FD: -1} })
	wantSharing(t, windows, 1, "private")
	reduceIn(t, ranks, oracle.F32, "twoshot", func(r int) ([]byte, []byte) { return memory[r].Memory, memory[r].Memory })
	freeAll(t, ranks, windows)
	for _, o := range memory {
		o.Release()
	}
}

// After the window is freed its memory may be unmapped. Other memory at the same address is then not registered.
func TestMemoryAtTheAddressOfAFreedRegistrationIsNotRegistered(t *testing.T) {
	const world, size = 2, 20 * page
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: world})
	memory := []owned{ownMemfd(t, size), ownMemfd(t, size)}
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })
	reduceIn(t, ranks, oracle.F32, "pull", func(r int) ([]byte, []byte) { return memory[r].Memory, memory[r].Memory })
	freeAll(t, ranks, windows)
	for r := range memory {
		_ = unix.Munmap(memory[r].Memory)
		memory[r].Memory = nil
		other := mapOwned(t, -1, 0, size, unix.MAP_PRIVATE)
		defer other.Release()
		memory[r].Release()
		memory[r] = other
	}
	reduceIn(t, ranks, oracle.F32, "oneshot", func(r int) ([]byte, []byte) { return memory[r].Memory, memory[r].Memory })
}

// A rank whose free was refused has ended its window all the same: its memory may be unmapped, though the other ranks still have the window.
func TestMemoryOfARegistrationWhoseFreeWasRefusedIsNotOffered(t *testing.T) {
	const world, size = 2, 20 * page
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: world})
	var memory [2][world]owned
	var windows [2][]*client.Window
	for i := range memory {
		for r := range world {
			memory[i][r] = ownMemfd(t, size)
			defer memory[i][r].Release()
		}
		windows[i] = registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[i][r].Config() })
	}
	in := func(i int) func(r int) ([]byte, []byte) {
		return func(r int) ([]byte, []byte) { return memory[i][r].Memory, memory[i][r].Memory }
	}
	reduceIn(t, ranks, oracle.F32, "pull", in(0))
	// Rank r frees window r.
	for _, err := range together(ranks, func(m member) error { return windows[m.Rank()][m.Rank()].Free() }) {
		wantError(t, err, wire.ResultMismatch, "window_free(registered window 1)", "window_free(registered window 2)")
	}
	for i := range memory {
		reduceIn(t, ranks, oracle.F32, "oneshot", in(i))
	}
}

// Rank 1's buffers begin in its window and end behind it, in memory that the other ranks have not mapped.
func TestABufferThatEndsBehindItsRegisteredWindowIsCopied(t *testing.T) {
	const world, size, bytes = 3, 64 * page, 20 * page
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: world})
	memory := make([]owned, world)
	for r := range world {
		memory[r] = ownMemfd(t, 2*size)
		defer memory[r].Release()
	}
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig {
		return client.RegisterConfig{Memory: memory[r].Memory[:size], FD: -1}
	})
	wantSharing(t, windows, -1)
	for beyond, algorithm := range map[int]string{0: "pull", 64: "twoshot", bytes - 64: "twoshot"} {
		reduceIn(t, ranks, oracle.F32, algorithm, func(r int) ([]byte, []byte) {
			start := size - bytes
			if r == 1 {
				start += beyond
			}
			return memory[r].Memory[start : start+bytes], memory[r].Memory[:bytes]
		})
	}
	freeAll(t, ranks, windows)
}

package cuda

import (
	"errors"
	"fmt"
	"testing"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// staged are all-reduces and reduce-scatters that are large enough to be copied to a window of the library, with two ranks also in two pieces.
func staged(world int) (operations []operation) {
	counts := []int{3<<20/4*world + 13}
	if world == 2 {
		counts = append(counts, 20<<20/4+1)
	}
	for i, count := range counts {
		for _, inPlace := range []bool{false, true} {
			o := operation{kind: "all_reduce", dtype: oracle.I32, op: oracle.Max, count: count, offset: 4, inPlace: inPlace, seed: uint64(i)}
			operations = append(operations, o)
			o.kind, o.op, o.count = "reduce_scatter", oracle.Sum, count/world
			operations = append(operations, o)
		}
	}
	return operations
}

func TestLargeBuffersAreCopiedToAWindow(t *testing.T) {
	for _, world := range deep.First(t, 1, []int{3, 2}) {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			memory := make([][]byte, world)
			for i, r := range ranks {
				memory[i] = r.alloc(t, 42<<20)
			}
			for _, o := range staged(world) {
				o.run(t, ranks, memory)
				for _, r := range ranks {
					if s, err := r.Status(); err != nil || s.Algorithm != "pull" {
						t.Fatalf("%v: rank %d ran %q: %v", o, r.Rank(), s.Algorithm, err)
					}
				}
			}
			small := operation{kind: "all_reduce", dtype: oracle.I32, op: oracle.Sum, count: 1000, seed: 5}
			small.run(t, ranks, memory)
			if s, err := ranks[0].Status(); err != nil || s.Algorithm == "pull" {
				t.Fatalf("a small all-reduce ran %q: %v", s.Algorithm, err)
			}
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

// A scale is applied by each rank to what it sends, so its data is never read from a window.
func TestLargeBuffersOfACallWithAScaleAreNotCopiedToAWindow(t *testing.T) {
	const count = 1 << 20
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	memory := [][]byte{ranks[0].alloc(t, 4*count), ranks[1].alloc(t, 4*count)}
	each(t, ranks, func(r rank) error {
		b := memory[r.Rank()]
		b[4*(count-1)] = byte(10 + r.Rank())
		scaled, err := r.CreatePreMulSum(client.I32, []byte{byte(2 + r.Rank()), 0, 0, 0})
		if err != nil {
			return err
		}
		if err := errors.Join(r.on().AllReduce(b, b, count, client.I32, scaled), r.wait()); err != nil {
			return err
		}
		if s, err := r.Status(); err != nil || s.Algorithm == "pull" {
			return fmt.Errorf("%q ran: %w", s.Algorithm, err)
		}
		if b[4*(count-1)] != 2*10+3*11 {
			return fmt.Errorf("the sum is %d, want %d", b[4*(count-1)], 2*10+3*11)
		}
		return nil
	})
}

// Replays of calls in pieces, mixed with eager ones.
func TestCallsInPiecesAreCaptured(t *testing.T) {
	const count = 20 << 20 / 4
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	memory, graphs := make([][]byte, 2), make([]*graph, 2)
	for i, r := range ranks {
		memory[i] = r.alloc(t, 4*count)
		put := func() error { return r.on().AllReduce(memory[i], memory[i], count, client.I32, client.Sum) }
		graphs[i] = r.capture(t, func() error { return errors.Join(put(), put()) })
		if n, err := graphs[i].Size(); err != nil || n != 2*2*3 { // two pieces of a copy, a kernel and a copy each
			t.Fatalf("%d nodes were captured: %v", n, err)
		}
	}
	for turn := range 3 {
		each(t, ranks, func(r rank) error {
			b := memory[r.Rank()]
			clear(b)
			for _, at := range []int{0, count / 2, count - 1} {
				b[4*at] = byte(turn + r.Rank() + at%3)
			}
			if turn == 1 {
				err := r.on().AllReduce(b, b, count, client.I32, client.Sum)
				return errors.Join(err, r.on().AllReduce(b, b, count, client.I32, client.Sum), r.wait())
			}
			return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait())
		})
		for i, b := range memory {
			for _, at := range []int{0, count / 2, count - 1} {
				if want := 2 * (2*turn + 1 + 2*(at%3)); int(b[4*at]) != want {
					t.Fatalf("turn %d: rank %d: element %d is %d, want %d", turn, i, at, b[4*at], want)
				}
			}
		}
	}
}

func TestLargeBuffersInWindowsOfOnlySomeRanksAreAMismatch(t *testing.T) {
	const count = 1 << 20
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	parts := window(t, ranks, 4*count)
	parts[1] = ranks[1].alloc(t, 4*count)
	each(t, ranks, func(r rank) error {
		b := parts[r.Rank()]
		return r.on().AllReduce(b, b, count, client.I32, client.Sum)
	})
	for _, r := range ranks {
		wantError(t, r.wait(), wire.ResultMismatch, "all_reduce of 1048576 i32 sum", "in windows")
	}
}

// On a GPU that ranks share, floating-point types too. rh_comm_get_choice says the same as what runs.
func TestLargeBuffersOnASharedGPUAreCopiedToAWindow(t *testing.T) {
	const bytes = 6 << 20
	s := startDaemon(t)
	ranks := []rank{connectRank(t, s, 0), connectRank(t, s, 0)}
	if err := errors.Join(inParallel(2, func(i int) (err error) {
		ranks[i].Comm, err = ranks[i].session.Init(client.CommConfig{Group: "shared GPU", Rank: i, World: 2, Timeout: patience, Device: client.DeviceCUDA, DeviceName: "0"})
		return err
	})...); err != nil {
		t.Fatal(err)
	}
	memory := [][]byte{ranks[0].alloc(t, 2*bytes), ranks[1].alloc(t, 2*bytes)}
	for _, size := range []int{bytes - 2, bytes} {
		o := operation{kind: "all_reduce", dtype: oracle.BF16, op: oracle.Sum, count: size / 2, seed: uint64(size)}
		o.run(t, ranks, memory)
		chosen, _, err := ranks[0].Choice("all_reduce", uint64(size), false)
		if err != nil {
			t.Fatal(err)
		}
		status, err := ranks[0].Status()
		if err != nil || status.Algorithm != chosen || (chosen == "pull") != (size == bytes) {
			t.Errorf("%d bytes: %q ran, %q was chosen: %v", size, status.Algorithm, chosen, err)
		}
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

package tests

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
)

// Units of the kernel. It takes other paths for counts next to their multiples.
const (
	tileElements = 16
	blockBytes   = 64 << 10
)

// step is one operation of all ranks of a group.
type step struct {
	barrier        bool
	dtype          oracle.Dtype
	count          int
	sendAt, recvAt int // address modulo 16
	inPlace        bool
}

func (s step) String() string {
	if s.barrier {
		return "barrier"
	}
	return fmt.Sprintf("%d %s, send at %d, recv at %d, in place %v", s.count, s.dtype, s.sendAt, s.recvAt, s.inPlace)
}

// drawStep draws a step of at most most elements over all ranks, which bounds the time of the checks.
func drawStep(t *rapid.T, world, most int) step {
	if rapid.IntRange(0, 4).Draw(t, "barrier") == 0 {
		return step{barrier: true}
	}
	s := step{
		dtype:   rapid.SampledFrom([]oracle.Dtype{oracle.F32, oracle.BF16}).Draw(t, "dtype"),
		sendAt:  rapid.IntRange(0, 15).Draw(t, "sendAt"),
		recvAt:  rapid.IntRange(0, 15).Draw(t, "recvAt"),
		inPlace: rapid.Bool().Draw(t, "inPlace"),
	}
	perBlock := blockBytes / s.dtype.Size()
	unit := rapid.SampledFrom([]int{0, 1, tileElements, 2 * tileElements, perBlock, 2 * perBlock, 3 * perBlock}).Draw(t, "unit")
	counts := []*rapid.Generator[int]{
		rapid.IntRange(max(unit-1, 0), unit+1),
		rapid.IntRange(0, 1000),
	}
	if world <= 4 {
		counts = append(counts, rapid.IntRange(0, 200_000))
	}
	s.count = min(rapid.OneOf(counts...).Draw(t, "count"), most/world)
	return s
}

func drawWorld(t *rapid.T) int {
	if rapid.IntRange(0, 15).Draw(t, "large") == 0 {
		return rapid.IntRange(17, 64).Draw(t, "world")
	}
	return rapid.IntRange(1, 16).Draw(t, "world")
}

// run runs the step on one rank and returns the rank's result.
func (s step) run(m member, seed uint64) ([]byte, error) {
	if s.barrier {
		return nil, m.Barrier()
	}
	n := s.count * s.dtype.Size()
	send := newBuffer(n, s.sendAt)
	oracle.Fill(send.data, s.dtype, oracle.Sum, seed)
	recv := send
	if !s.inPlace {
		recv = newBuffer(n, s.recvAt)
	}
	input := bytes.Clone(send.data)
	if err := m.AllReduce(send.data, recv.data, s.count, clientDtypes[s.dtype], client.Sum); err != nil {
		return nil, err
	}
	if !s.inPlace && !bytes.Equal(input, send.data) {
		return nil, fmt.Errorf("send was changed")
	}
	for _, b := range []buffer{send, recv} {
		if err := b.checkGuards(); err != nil {
			return nil, err
		}
	}
	return recv.data, nil
}

// checkSteps runs the steps on all ranks back to back, and then checks every result.
func checkSteps(t rapid.TB, ranks []member, steps []step, reduceGroup int, base uint64) {
	results := make([][][]byte, len(ranks))
	noErrors(t, together(ranks, func(m member) error {
		results[m.Rank()] = make([][]byte, len(steps))
		for i, s := range steps {
			out, err := s.run(m, oracle.Seed(base, m.Rank(), i))
			if err != nil {
				return fmt.Errorf("rank %d: step %d (%v): %w", m.Rank(), i, s, err)
			}
			results[m.Rank()][i] = out
		}
		return nil
	}))
	for i, s := range steps {
		seeds := make([]uint64, len(ranks))
		for r := range ranks {
			seeds[r] = oracle.Seed(base, r, i)
			if !bytes.Equal(results[0][i], results[r][i]) {
				t.Fatalf("step %d (%v): ranks 0 and %d have different bits", i, s, r)
			}
		}
		if s.barrier {
			continue
		}
		if wrong := oracle.WrongSums(results[0][i], s.dtype, seeds, reduceGroup); wrong != 0 {
			t.Fatalf("step %d (%v): %d of %d sums are wrong", i, s, wrong, s.count)
		}
	}
}

func TestAllReduceGivesTheExactBitsForAnyShapeAndSequence(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	groups := 0
	deep.Checks(t, 30)
	rapid.Check(t, func(rt *rapid.T) {
		world := drawWorld(rt)
		reduceGroup := rapid.IntRange(0, world).Draw(rt, "reduceGroup")
		base := rapid.Uint64().Draw(rt, "seed")
		steps := make([]step, rapid.IntRange(1, 6).Draw(rt, "steps"))
		for i := range steps {
			steps[i] = drawStep(rt, world, 400_000)
		}
		groups++
		ranks := formGroup(t, s, client.CommConfig{
			Group: fmt.Sprintf("shapes %d", groups), World: world, ReduceGroup: reduceGroup, HeapBytes: 1 << 20,
		})
		checkSteps(rt, ranks, steps, reduceGroup, base)
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
	})
}

func TestAllReduceOfCountsAroundTilesAndBlocks(t *testing.T) {
	s := startDaemon(t)
	for _, d := range []oracle.Dtype{oracle.F32, oracle.BF16} {
		ranks := formGroup(t, s, client.CommConfig{Group: "counts " + string(d), World: 3, ReduceGroup: 2})
		var steps []step
		perBlock := blockBytes / d.Size()
		for _, unit := range []int{1, tileElements, perBlock, 2 * perBlock} {
			for count := max(unit-2, 0); count <= unit+2; count++ {
				steps = append(steps, step{dtype: d, count: count, sendAt: count % 16, recvAt: (count * 7) % 16, inPlace: count%3 == 0})
			}
		}
		checkSteps(t, ranks, steps, 2, 99)
	}
}

func TestAllReduceWorksForEveryMisalignment(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	var steps []step
	for _, d := range []oracle.Dtype{oracle.F32, oracle.BF16} {
		for sendAt := range 16 {
			for recvAt := range 16 {
				steps = append(steps, step{dtype: d, count: 3*tileElements + 5, sendAt: sendAt, recvAt: recvAt})
			}
			steps = append(steps, step{dtype: d, count: 3*tileElements + 5, sendAt: sendAt, inPlace: true})
		}
	}
	checkSteps(t, ranks, steps, 0, 7)
}

func TestAdjacentBuffersAreNotAnOverlap(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	const count = 100
	for _, sendFirst := range []bool{true, false} {
		all(t, ranks, func(m member) error {
			both := newBuffer(2*count*4, 4)
			send, recv := both.data[:count*4], both.data[count*4:]
			if !sendFirst {
				send, recv = recv, send
			}
			oracle.Fill(send, oracle.F32, oracle.Sum, oracle.Seed(5, m.Rank(), 0))
			if err := m.AllReduce(send, recv, count, client.F32, client.Sum); err != nil {
				return err
			}
			seeds := []uint64{oracle.Seed(5, 0, 0), oracle.Seed(5, 1, 0)}
			if wrong := oracle.WrongSums(recv, oracle.F32, seeds, 0); wrong != 0 {
				return fmt.Errorf("%d sums are wrong", wrong)
			}
			return both.checkGuards()
		})
	}
}

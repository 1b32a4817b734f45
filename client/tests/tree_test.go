package tests

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/server"
)

// Tree and ring add in their own order. So integers must be exact, f32 near the sum in f64, and all ranks and runs must have the same bits.
func TestTreeAndRingGiveTheSameBitsOnAllRanksAndRuns(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	for _, algo := range []string{"tree", "ring"} {
		t.Run(algo, func(t *testing.T) {
			t.Setenv("RAILHEAD_ALGO", algo)
			checkTreeSums(t, s, algo)
		})
	}
}

func worldsOfTrees(t *testing.T) []int {
	t.Helper()
	if deep.On(t) {
		return []int{2, 3, 4, 5, 7, 8, 9, 12, 33}
	}
	return []int{2, 3, 5, 8}
}

func checkTreeSums(t *testing.T, s *server.Server, algo string) {
	for _, world := range worldsOfTrees(t) {
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint(algo, world), World: world, Reproducible: client.ReproducibleOff})
		for _, count := range []int{0, 1, 17, 5000, 60000 / world * 4} {
			for _, inPlace := range []bool{false, true} {
				first := treeSums(t, ranks, oracle.F32, count, inPlace)
				if again := treeSums(t, ranks, oracle.F32, count, inPlace); !bytes.Equal(first, again) {
					t.Errorf("world %d, %d f32: two runs differ", world, count)
				}
				checkNear(t, first, world, count)
				if fold := oracle.Reduce(oracle.F32, oracle.Sum, treeInputs(world, oracle.F32, count), world, nil); world > 2 && count > 1000 && bytes.Equal(first, fold) {
					t.Errorf("world %d, %d f32: added in rank order", world, count)
				}
				exact := treeSums(t, ranks, oracle.I32, count, inPlace)
				inputs := treeInputs(world, oracle.I32, count)
				if wrong := oracle.Differences(exact, oracle.Reduce(oracle.I32, oracle.Sum, inputs, world, nil), oracle.I32); wrong != 0 {
					t.Errorf("world %d, %d i32: %d sums are wrong", world, count, wrong)
				}
			}
		}
		all(t, ranks, finalize)
	}
}

func treeInputs(world int, d oracle.Dtype, count int) [][]byte {
	inputs := make([][]byte, world)
	for r := range inputs {
		inputs[r] = make([]byte, count*d.Size())
		oracle.Fill(inputs[r], d, oracle.Sum, oracle.Seed(7, r, count))
	}
	return inputs
}

// treeSums all-reduces, checks that all ranks have the same bits and ran the forced algorithm, and returns the result.
func treeSums(t *testing.T, ranks []member, d oracle.Dtype, count int, inPlace bool) []byte {
	t.Helper()
	inputs := treeInputs(len(ranks), d, count)
	results := make([][]byte, len(ranks))
	all(t, ranks, func(m member) error {
		send := inputs[m.Rank()]
		recv := bytes.Repeat([]byte{0xff}, len(send))
		if inPlace {
			recv = send
		}
		if err := m.AllReduce(send, recv, count, clientDtypes[d], client.Sum); err != nil {
			return err
		}
		results[m.Rank()] = recv
		status, err := m.Status()
		if want := os.Getenv("RAILHEAD_ALGO"); err == nil && status.Algorithm != want {
			err = fmt.Errorf("algorithm %q, want %q", status.Algorithm, want)
		}
		return err
	})
	for r, got := range results {
		if !bytes.Equal(got, results[0]) {
			t.Errorf("world %d, %d %s: ranks 0 and %d differ", len(ranks), count, d, r)
		}
	}
	return results[0]
}

// checkNear allows for each of the world - 1 additions half a unit in the last place of the sum of magnitudes.
func checkNear(t *testing.T, got []byte, world, count int) {
	t.Helper()
	inputs := treeInputs(world, oracle.F32, count)
	for i := range count {
		var sum, magnitude float64
		for _, in := range inputs {
			v := float64(math.Float32frombits(binary.LittleEndian.Uint32(in[4*i:])))
			sum += v
			magnitude += math.Abs(v)
		}
		have := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:])))
		if !(math.Abs(have-sum) <= float64(world)*magnitude*0x1p-24) {
			t.Fatalf("world %d, element %d of %d: %g, the sum in f64 is %g", world, i, count, have, sum)
		}
	}
}

func TestRingAndTreeBroadcastFromEveryRoot(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	for _, algo := range []string{"ring", "tree"} {
		t.Setenv("RAILHEAD_ALGO", algo)
		for _, world := range []int{2, 3, 6, 9} {
			ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint(algo, world), World: world})
			for root := range world {
				for _, count := range []int{0, 1, 33_000, 300_001} {
					want := make([]byte, count)
					oracle.Fill(want, oracle.U8, oracle.Sum, uint64(root*1000+count))
					all(t, ranks, func(m member) error {
						recv := make([]byte, count)
						if err := m.Broadcast(bytes.Clone(want), recv, count, client.U8, root); err != nil {
							return err
						}
						if !bytes.Equal(recv, want) {
							return fmt.Errorf("%s, root %d, %d bytes: wrong result", algo, root, count)
						}
						return nil
					})
				}
			}
			all(t, ranks, finalize)
		}
	}
}

// Integers, whose sums do not depend on the order.
func TestTreesGatherAndScatterInEveryWorld(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	t.Setenv("RAILHEAD_ALGO", "tree")
	for _, world := range worldsOfTrees(t) {
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint("gathers", world), World: world})
		for _, count := range []int{0, 1, 17, 9000, 120_000 / world} {
			all(t, ranks, func(m member) error { return checkTreeScatter(m, world, count) })
			all(t, ranks, func(m member) error { return checkTreeGather(m, world, count) })
		}
		all(t, ranks, finalize)
	}
}

func checkTreeScatter(m member, world, count int) error {
	inputs := treeInputs(world, oracle.I32, world*count)
	want := oracle.ReduceScatter(oracle.I32, oracle.Sum, inputs, world, nil)[m.Rank()]
	recv := bytes.Repeat([]byte{0xff}, 4*count)
	if err := m.ReduceScatter(inputs[m.Rank()], recv, count, client.I32, client.Sum); err != nil {
		return err
	}
	status, err := m.Status()
	if err != nil || status.Algorithm != "tree" || !bytes.Equal(recv, want) {
		return fmt.Errorf("reduce-scatter of %d in a world of %d: %s, right: %t, %w", count, world, status.Algorithm, bytes.Equal(recv, want), err)
	}
	return nil
}

func checkTreeGather(m member, world, count int) error {
	inputs := treeInputs(world, oracle.U8, count)
	recv := bytes.Repeat([]byte{0xff}, world*count)
	if err := m.AllGather(inputs[m.Rank()], recv, count, client.U8); err != nil {
		return err
	}
	status, err := m.Status()
	if want := bytes.Join(inputs, nil); err != nil || status.Algorithm != "tree" || !bytes.Equal(recv, want) {
		return fmt.Errorf("all-gather of %d in a world of %d: %s, right: %t, %w", count, world, status.Algorithm, bytes.Equal(recv, want), err)
	}
	return nil
}

package tests

import (
	"bytes"
	"fmt"
	"testing"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// buffersOf returns send and recv buffers of a rank: on the Go heap, or in a new window.
func buffersOf(m member, bytes int, inWindow bool) (send, recv []byte, free func() error, err error) {
	if !inWindow {
		return make([]byte, bytes), make([]byte, bytes), func() error { return nil }, nil
	}
	w, err := m.AllocWindow(2 * bytes)
	if err != nil {
		return nil, nil, nil, err
	}
	both, err := w.Local()
	if err != nil {
		return nil, nil, nil, err
	}
	return both[:bytes], both[bytes:], w.Free, nil
}

// checkSums all-reduces out of place and in place, and checks every bit of every rank. want is the algorithm that must run.
func checkSums(t *testing.T, ranks []member, d oracle.Dtype, count, reduceGroup int, inWindow bool, want string) {
	t.Helper()
	seeds := make([]uint64, len(ranks))
	for r := range seeds {
		seeds[r] = oracle.Seed(uint64(count), r, 0)
	}
	results := make([][2][]byte, len(ranks)) // out of place, in place
	all(t, ranks, func(m member) error {
		return sumTwice(m, d, count, seeds[m.Rank()], inWindow, want, &results[m.Rank()])
	})
	for i, got := range results[0] {
		if wrong := oracle.WrongSums(got, d, seeds, reduceGroup); wrong != 0 {
			t.Errorf("%d %s, in window %v, %s: %d sums are wrong", count, d, inWindow, want, wrong)
		}
		for r := range results {
			if !bytes.Equal(results[r][i], got) {
				t.Errorf("%d %s, in window %v, %s: ranks 0 and %d have different bits", count, d, inWindow, want, r)
			}
		}
	}
}

func sumTwice(m member, d oracle.Dtype, count int, seed uint64, inWindow bool, want string, results *[2][]byte) error {
	send, recv, free, err := buffersOf(m, count*d.Size(), inWindow)
	if err != nil {
		return err
	}
	for i, dst := range [][]byte{recv, send} {
		oracle.Fill(send, d, oracle.Sum, seed)
		for i := range recv {
			recv[i] = 0xff
		}
		// Pull writes to peers' windows, so no rank may start before all have filled theirs.
		if err := m.Barrier(); err != nil {
			return err
		}
		if err := m.AllReduce(send, dst, count, clientDtypes[d], client.Sum); err != nil {
			return err
		}
		results[i] = bytes.Clone(dst)
	}
	if st, err := m.Status(); err != nil || (count > 0 && st.Algorithm != want) {
		return fmt.Errorf("%d %s, in window %v: algorithm %q (%v), want %q", count, d, inWindow, st.Algorithm, err, want)
	}
	return free()
}

// inRankOrder lists the all-reduce algorithms that add in rank order on a reproducible comm.
func inRankOrder() []string {
	return allReduceAlgorithms(func(a wire.Algo) bool { return a.Adds() != wire.OwnOrder })
}

// copyingAlgorithms lists those of them that accept buffers outside of windows.
func copyingAlgorithms() []string {
	return allReduceAlgorithms(func(a wire.Algo) bool { return a.Adds() != wire.OwnOrder && !a.Windows() })
}

func allReduceAlgorithms(having func(wire.Algo) bool) (names []string) {
	for _, a := range wire.OpAllReduce.Algorithms() {
		if having(a) {
			names = append(names, a.String())
		}
	}
	return names
}

// f32 inputs have exponents spread over 20 bits, so that almost every sum depends on the order of its additions.
func TestEveryAlgorithmGivesTheSameBits(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	worlds := []int{1, 2, 3, 9}
	if deep.On(t) {
		worlds = []int{1, 2, 3, 5, 8, 17, 64}
	}
	for _, algo := range inRankOrder() {
		t.Setenv("RAILHEAD_ALGO", algo)
		for _, world := range worlds {
			for _, reduceGroup := range []int{0, 2} {
				if reduceGroup > world || reduceGroup == world && !deep.On(t) { // a group of all ranks adds as no groups do
					continue
				}
				ranks := formGroup(t, s, client.CommConfig{
					Group: fmt.Sprint(algo, world, reduceGroup), World: world, ReduceGroup: reduceGroup, HeapBytes: 8 << 20,
				})
				counts := deep.First(t, 5, []int{0, 1, 17, 16385, 40000, 15, 16, 1000, 16384})
				if world > 8 {
					counts = []int{1, 17, 1000, 2000}
				}
				for _, count := range counts {
					for _, d := range []oracle.Dtype{oracle.F32, oracle.BF16} {
						for _, inWindow := range []bool{false, true} {
							want := algo
							if algo == "pull" && !inWindow {
								want = "twoshot" // the default
								if world == 2 || count*d.Size() < 16<<10 {
									want = "oneshot"
								}
							}
							if world == 1 {
								want = "none" // world size 1 copies
							}
							if inWindow && count == 0 {
								continue
							}
							checkSums(t, ranks, d, count, reduceGroup, inWindow, want)
						}
					}
				}
				all(t, ranks, finalize)
				all(t, ranks, closeSession)
			}
		}
	}
}

func TestPullFallsBackOnAllRanksIfOneBufferIsNotInAWindow(t *testing.T) {
	s := startDaemon(t)
	t.Setenv("RAILHEAD_ALGO", "pull")
	ranks := formGroup(t, s, client.CommConfig{World: 3, HeapBytes: 8 << 20})
	for outsider := range 3 {
		all(t, ranks, func(m member) error {
			// All ranks allocate, because the call is collective. The outsider does not use its window.
			w, err := m.AllocWindow(1 << 16)
			if err != nil {
				return err
			}
			buf, err := w.Local()
			if err != nil {
				return err
			}
			if m.Rank() == outsider {
				buf = make([]byte, 1<<16)
			}
			oracle.Fill(buf, oracle.F32, oracle.Sum, oracle.Seed(1, m.Rank(), outsider))
			if err := m.AllReduce(buf, buf, len(buf)/4, client.F32, client.Sum); err != nil {
				return err
			}
			seeds := []uint64{oracle.Seed(1, 0, outsider), oracle.Seed(1, 1, outsider), oracle.Seed(1, 2, outsider)}
			if wrong := oracle.WrongSums(buf, oracle.F32, seeds, 0); wrong != 0 {
				return fmt.Errorf("%d sums are wrong", wrong)
			}
			if st, err := m.Status(); err != nil || st.Algorithm != "twoshot" {
				return fmt.Errorf("algorithm %q, %v", st.Algorithm, err)
			}
			return w.Free()
		})
	}
}

func TestAnUnknownInstructionSetIsRefused(t *testing.T) {
	s := startDaemon(t)
	t.Setenv("RAILHEAD_ISA", "mmx")
	_, errs := tryGroup(t, s, client.CommConfig{World: 1}, func(*client.CommConfig) {})
	wantError(t, errs[0], wire.ResultUnsupported, "RAILHEAD_ISA=mmx", "portable")
}

package tests

import (
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/server"
)

func TestNaNResultsHaveTheBitsThatRailheadHStates(t *testing.T) {
	header, err := os.ReadFile("../include/railhead.h")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`(?s)Every NaN result is the type's one NaN.*?\. So`).FindString(string(header))
	stated := map[oracle.Dtype][]byte{}
	for _, m := range regexp.MustCompile(`(\w+) 0x([0-9a-f]+)`).FindAllStringSubmatch(rule, -1) {
		bits, err := hex.DecodeString(m[2])
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(bits) // memory order
		stated[oracle.Dtype(m[1])] = bits
	}
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	for _, d := range []oracle.Dtype{oracle.F32, oracle.F64, oracle.BF16, oracle.F16, oracle.FP8E4M3, oracle.FP8E5M2} {
		want := stated[d]
		if len(want) != d.Size() {
			t.Errorf("railhead.h states %x for %s, which has %d bytes", want, d, d.Size())
			continue
		}
		if !slices.Equal(oracle.NaN(d), want) {
			t.Errorf("%s: the oracle has %x, railhead.h %x (bytes in memory order)", d, oracle.NaN(d), want)
		}
		send := slices.Repeat([]byte{0xff}, d.Size()) // a NaN of every type
		all(t, ranks, func(m member) error {
			recv := make([]byte, d.Size())
			if err := m.AllReduce(send, recv, 1, clientDtypes[d], client.Sum); err != nil {
				return err
			}
			if !slices.Equal(recv, want) {
				return fmt.Errorf("%s: the sum of NaNs is %x, railhead.h says %x (bytes in memory order)", d, recv, want)
			}
			return nil
		})
	}
}

// formMixedGroup makes a group whose rank r uses instruction set sets[r]. A rank reads the variable before it joins, so each rank begins
// when the one before it has joined.
func formMixedGroup(t *testing.T, s *server.Server, config client.CommConfig, sets []string) []member {
	t.Helper()
	config.World, config.Timeout = len(sets), patience
	ranks, errs := make([]member, len(sets)), make(chan error, len(sets))
	for r, set := range sets {
		ranks[r].session = connect(t, s)
		t.Setenv("RAILHEAD_ISA", set)
		mine := config
		mine.Rank = r
		go func() {
			var err error
			ranks[r].Comm, err = ranks[r].session.Init(mine)
			errs <- err
		}()
		if r < len(sets)-1 {
			eventually(t, fmt.Sprintf("rank %d has joined", r), func() bool { return ranksThatCame(t, s, config.Group) == r+1 })
		}
	}
	for range sets {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	return ranks
}

// mixtures are all pairs and triples of the sets, without those of equal sets. The ordinary run has of the triples those of three different sets.
func mixtures(t *testing.T, sets []string) (all [][]string) {
	t.Helper()
	twice := deep.On(t)
	for _, a := range sets {
		for _, b := range sets {
			if a != b {
				all = append(all, []string{a, b})
			}
			for _, c := range sets {
				if a != b && b != c && a != c || twice && (a != b || b != c) {
					all = append(all, []string{a, b, c})
				}
			}
		}
	}
	return all
}

func TestRanksWithDifferentInstructionSetsGetTheOraclesBits(t *testing.T) {
	s := startDaemon(t)
	sets := instructionSets(t, s)
	for _, algo := range []string{"oneshot", "twoshot", "pull"} {
		t.Setenv("RAILHEAD_ALGO", algo)
		for i, mixture := range mixtures(t, sets) {
			ranks := formMixedGroup(t, s, client.CommConfig{Group: fmt.Sprint("mixed ", algo, i), HeapBytes: 4 << 20}, mixture)
			windows := windowsOf(t, ranks, windowBytes)
			var operations []operation
			for _, d := range oracle.Dtypes() {
				for _, op := range oracle.Ops() {
					for _, k := range reducing {
						operations = append(operations, operation{kind: k, dtype: d, op: op, count: 1003, special: true, windows: true, all: true, seed: uint64(i)})
					}
				}
			}
			runAll(t, ranks, windows, operations, 0)
			all(t, ranks, finalize)
			all(t, ranks, closeSession)
		}
	}
}

// The experts' outputs have infinities and NaNs, and some weights are large.
func TestRanksWithDifferentInstructionSetsCombineToTheReferencesBits(t *testing.T) {
	s := startDaemon(t)
	sets := instructionSets(t, s)
	first := firstSeed(t)
	for i, mixture := range mixtures(t, sets) {
		p := drawEPPlayOf(t, len(mixture), uint64(first+i), 2)
		bytes, err := client.EPBufferSize(p.config, p.world)
		if err != nil {
			t.Fatal(err)
		}
		ranks := formMixedGroup(t, s, client.CommConfig{Group: fmt.Sprint("mixed play ", i), HeapBytes: bytes + 1<<20}, mixture)
		eps := makeEPs(t, ranks, p.config)
		playAll(t, fmt.Sprintf("%v, %s=%d, mixture %d", mixture, firstSeedVariable, first, i), p, ranks, eps)
		endEPs(t, ranks, eps)
	}
}

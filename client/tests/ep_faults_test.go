package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/wire"
	"railhead/server"
)

func faultConfig(mode client.EPMode) client.EPConfig {
	return client.EPConfig{Mode: mode, MaxTokensPerRank: 20, Hidden: 40, NumExperts: 9, TopK: 4, Dtype: client.F32, WireDtype: client.F32,
		CombineDtype: client.F32, DropDead: true}
}

var bothModes = []client.EPMode{client.EPLowLatency, client.EPHighThroughput}

// without is the same input with -1 in place of the experts of the ranks in lost, a mask.
func (in epInputs) without(c client.EPConfig, world int, lost uint64) epInputs {
	in.idx = append([]int32(nil), in.idx...)
	for r := range world {
		first, n := ownExperts(c.NumExperts, world, r)
		for i, e := range in.idx {
			if lost>>r&1 != 0 && int(e) >= first && int(e) < first+n {
				in.idx[i] = -1
			}
		}
	}
	return in
}

// copies counts the token copies to the ranks of the mask.
func (in epInputs) copies(c client.EPConfig, world int, mask uint64) (n uint64) {
	for token := range in.tokens {
		for r := range world {
			first, local := ownExperts(c.NumExperts, world, r)
			goes := false
			for _, e := range in.idx[token*c.TopK:][:c.TopK] {
				goes = goes || int(e) >= first && int(e) < first+local
			}
			if goes && mask>>r&1 != 0 {
				n++
			}
		}
	}
	return n
}

// flatRows has room for all rows that a rank can receive.
func flatRows(m member, ep *client.EP, c client.EPConfig) client.EPRows {
	local := ep.LocalExperts()
	rows := client.EPRows{Layout: client.EPFlat, Capacity: m.WorldSize() * c.MaxTokensPerRank * c.TopK, Offsets: make([]int64, local+1),
		Counts: make([]int32, local)}
	rows.X = make([]byte, 4*rows.Capacity*c.Hidden)
	return rows
}

// multiply is the experts: expert e multiplies its rows by e + 1.
func multiply(m member, c client.EPConfig, rows client.EPRows) []byte {
	first, _ := ownExperts(c.NumExperts, m.WorldSize(), m.Rank())
	for e, n := range rows.Counts {
		block := rows.X[4*c.Hidden*int(rows.Offsets[e]):][:4*c.Hidden*int(n)]
		for i := 0; i < len(block); i += 4 {
			x := math.Float32frombits(binary.LittleEndian.Uint32(block[i:]))
			binary.LittleEndian.PutUint32(block[i:], math.Float32bits(x*float32(first+e+1)))
		}
	}
	return rows.X
}

// survive runs a dispatch and a combine without the ranks of lost, a mask, and checks results and reports.
func survive(m member, ep *client.EP, c client.EPConfig, r *rand.Rand, lost uint64) error {
	in := exactInputs(r, c, r.IntN(c.MaxTokensPerRank+1))
	rows := flatRows(m, ep, c)
	d, err := ep.Dispatch(client.EPTokensIn{Tokens: in.tokens, X: in.x, Idx: in.idx, Weights: in.weights}, &rows)
	if err != nil {
		return err
	}
	out := make([]byte, len(in.x))
	report, err := d.Combine(client.EPSums{Y: multiply(m, c, rows), YDtype: client.F32, Out: out, OutDtype: client.F32})
	if err != nil {
		return err
	}
	copies := in.copies(c, m.WorldSize(), lost)
	if maskOf(report.LostRanks) != lost || report.LostCopies != copies || rows.Report.LostCopies != copies {
		return fmt.Errorf("reports have %d and %d lost copies, lost ranks %d; want %d, mask %#b", rows.Report.LostCopies, report.LostCopies,
			report.LostRanks, copies, lost)
	}
	return sameFloats(out, in.without(c, m.WorldSize(), lost).want(c))
}

func sameFloats(got, want []byte) error {
	for i := 0; i < len(want); i += 4 {
		g, w := math.Float32frombits(binary.LittleEndian.Uint32(got[i:])), math.Float32frombits(binary.LittleEndian.Uint32(want[i:]))
		if g != w {
			return fmt.Errorf("element %d is %g, want %g", i/4, g, w)
		}
	}
	return nil
}

func surviveRounds(ranks []member, eps []*client.EP, c client.EPConfig, rounds int, lost uint64) []error {
	return inParallel(len(ranks), func(i int) error {
		m := ranks[i]
		if lost>>m.Rank()&1 != 0 {
			return nil
		}
		r := rand.New(rand.NewPCG(uint64(m.Rank()), lost))
		for n := range rounds {
			if err := survive(m, eps[i], c, r, lost); err != nil {
				return fmt.Errorf("rank %d, round %d: %w", m.Rank(), n, err)
			}
		}
		return nil
	})
}

func lostSeries(group string, m member) string {
	return fmt.Sprintf(`railhead_ep_dropped_total{group="%s",rank="%d",reason="lost_copies"}`, group, m.Rank())
}

// lostInRounds is how many copies a rank loses in surviveRounds.
func lostInRounds(m member, c client.EPConfig, rounds int, lost uint64) (n uint64) {
	r := rand.New(rand.NewPCG(uint64(m.Rank()), lost))
	for range rounds {
		n += exactInputs(r, c, r.IntN(c.MaxTokensPerRank+1)).copies(c, m.WorldSize(), lost)
	}
	return n
}

// releaseLost runs a dispatch without a combine. The metrics must count its lost copies too.
func releaseLost(t testing.TB, s *server.Server, m member, ep *client.EP, group string, c client.EPConfig, lost uint64) error {
	series := lostSeries(group, m)
	before := scrape(t, s)[series]
	in := exactInputs(rand.New(rand.NewPCG(uint64(m.Rank()), 7)), c, c.MaxTokensPerRank)
	rows := flatRows(m, ep, c)
	d, err := ep.Dispatch(client.EPTokensIn{Tokens: in.tokens, X: in.x, Idx: in.idx, Weights: in.weights}, &rows)
	if err != nil {
		return err
	}
	if err := d.Release(); err != nil {
		return err
	}
	if got, want := scrape(t, s)[series]-before, in.copies(c, m.WorldSize(), lost); got != want || want == 0 {
		return fmt.Errorf("the metrics count %d lost copies of a released dispatch, want %d", got, want)
	}
	return nil
}

func makeEPs(t testing.TB, ranks []member, c client.EPConfig) []*client.EP {
	t.Helper()
	eps := make([]*client.EP, len(ranks))
	all(t, ranks, func(m member) (err error) {
		eps[m.Rank()], err = m.NewEP(c)
		return err
	})
	return eps
}

func TestDispatchesContinueWithoutARankThatAllOthersMask(t *testing.T) {
	s := startDaemon(t)
	for _, mode := range bothModes {
		group := fmt.Sprint("mask ", mode)
		ranks := formGroup(t, s, client.CommConfig{Group: group, World: 4})
		c := faultConfig(mode)
		c.DropDead = false // masking does not need it
		eps := makeEPs(t, ranks, c)
		noErrors(t, surviveRounds(ranks, eps, c, 5, 0))
		for r := range 3 {
			if err := eps[r].Mask(3); err != nil {
				t.Fatal(err)
			}
		}
		noErrors(t, surviveRounds(ranks, eps, c, 20, 1<<3))
		for _, m := range ranks[:3] {
			if got, want := scrape(t, s)[lostSeries(group, m)], lostInRounds(m, c, 20, 1<<3); got != want || want == 0 {
				t.Errorf("rank %d: the metrics count %d lost copies of combined dispatches, want %d", m.Rank(), got, want)
			}
		}
		noErrors(t, inParallel(3, func(i int) error { return releaseLost(t, s, ranks[i], eps[i], group, c, 1<<3) }))
		wantError(t, eps[1].Mask(1), wire.ResultInvalidArgument, "rank 1", "another one of 0..3")
		wantError(t, eps[1].Mask(4), wire.ResultInvalidArgument, "cannot mask rank 4")
		all(t, ranks, barrier) // the masked rank is still in the comm
		all(t, ranks, func(m member) error { return eps[m.Rank()].Destroy() })
		all(t, ranks, finalize)
	}
}

// Rank 0 masks rank 2 before its combine, rank 1 after its combine, and rank 2 releases the dispatch.
func TestOtherCollectivesWorkWhereverInADispatchARankIsMasked(t *testing.T) {
	s := startDaemon(t)
	c := smallEP
	for _, c.Mode = range bothModes {
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint("masked in a dispatch ", c.Mode), World: 3})
		eps := makeEPs(t, ranks, c)
		all(t, ranks, func(m member) error {
			// Each rank's token goes to the rank's own experts, so that no combine waits for another rank.
			own, ep := int32(2*m.Rank()), eps[m.Rank()]
			rows := flatRows(m, ep, c)
			d, err := ep.Dispatch(client.EPTokensIn{Tokens: 1, X: make([]byte, 32), Idx: []int32{own, own + 1}, Weights: []float32{1, 1}}, &rows)
			if err != nil {
				return err
			}
			combine := func() error {
				_, err := d.Combine(client.EPSums{Y: rows.X, YDtype: client.F32, Out: make([]byte, 32), OutDtype: client.F32})
				return err
			}
			switch m.Rank() {
			case 0:
				return errors.Join(ep.Mask(2), combine())
			case 1:
				return errors.Join(combine(), ep.Mask(2))
			default:
				return d.Release()
			}
		})
		all(t, ranks, barrier)
		all(t, ranks, func(m member) error { return eps[m.Rank()].Destroy() })
		all(t, ranks, finalize)
	}
}

// Closing a session counts as a death. The first death is in the abort word, the second only in the rank's lease.
func TestSurvivorsContinueAfterTwoDeathsWithoutWaitingForTheDeadAgain(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		for _, mode := range bothModes {
			ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint("deaths ", mode), World: 4})
			c := faultConfig(mode)
			eps := makeEPs(t, ranks, c)
			noErrors(t, surviveRounds(ranks, eps, c, 5, 0))
			var lost uint64
			for _, dead := range []int{2, 0} {
				if err := ranks[dead].session.Close(); err != nil {
					t.Fatal(err)
				}
				lost |= 1 << dead
				began := time.Now()
				// Not survive: a death found in this round may be missing in the dispatch's report.
				noErrors(t, together(ranks, func(m member) error {
					if lost>>m.Rank()&1 != 0 {
						return nil
					}
					return findOut(m, eps[m.Rank()], c)
				}))
				t.Logf("mode %d: the death of rank %d was found in %v", mode, dead, time.Since(began))
				if took := time.Since(began); took > patience/2 {
					t.Errorf("found after %v, close to the deadline", took)
				}
				noErrors(t, surviveRounds(ranks, eps, c, 1, lost))
				waited := waitedFor(t, s, fmt.Sprint("deaths ", mode), dead)
				noErrors(t, surviveRounds(ranks, eps, c, 50, lost))
				if again := waitedFor(t, s, fmt.Sprint("deaths ", mode), dead); again != waited || waited == "" {
					t.Errorf("mode %d: survivors waited for rank %d again:\n%s\n%s", mode, dead, waited, again)
				}
			}
			for _, r := range []int{1, 3} {
				wantError(t, ranks[r].Barrier(), wire.ResultRankDead, "rank 2 (pid")
				wantError(t, eps[r].Destroy(), wire.ResultRankDead, "rank 2 (pid")
				if err := ranks[r].Finalize(); err != nil {
					t.Error(err)
				}
				if err := ranks[r].session.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// findOut runs a dispatch and a combine, after which the rank knows the deaths so far.
func findOut(m member, ep *client.EP, c client.EPConfig) error {
	in := exactInputs(rand.New(rand.NewPCG(1, 1)), c, c.MaxTokensPerRank)
	rows := flatRows(m, ep, c)
	d, err := ep.Dispatch(client.EPTokensIn{Tokens: in.tokens, X: in.x, Idx: in.idx, Weights: in.weights}, &rows)
	if err != nil {
		return err
	}
	_, err = d.Combine(client.EPSums{Y: rows.X, YDtype: client.F32, Out: make([]byte, len(in.x)), OutDtype: client.F32})
	return err
}

// waitedFor returns the lines of /metrics with the waits for a rank.
func waitedFor(t testing.TB, s *server.Server, group string, rank int) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(metrics(t, s)) {
		if strings.Contains(line, "wait") && strings.Contains(line, fmt.Sprintf("%q", group)) && strings.Contains(line, fmt.Sprintf("peer=%q", fmt.Sprint(rank))) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// HT mode, with a chunk for each row: rank 2 has announced 7 rows and sent 4 chunks when it dies.
func TestRowsThatADeadRankAnnouncedButDidNotSendAreZero(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 3, HeapBytes: 16 << 20})
	c := client.EPConfig{Mode: client.EPHighThroughput, MaxTokensPerRank: 7, Hidden: 65536, NumExperts: 3, TopK: 1, Dtype: client.F32,
		WireDtype: client.F32, CombineDtype: client.F32, DropDead: true}
	eps := makeEPs(t, ranks, c)
	in := epInputs{tokens: 7, x: bytes.Repeat([]byte{0, 0, 128, 63}, 7*c.Hidden), idx: make([]int32, 7)} // ones, all to rank 0
	d, err := eps[2].DispatchSend(client.EPTokensIn{Tokens: in.tokens, X: in.x, Idx: in.idx})
	if err != nil {
		t.Fatal(err)
	}
	if err := ranks[2].session.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, d.Release(), wire.ResultInvalidHandle, "ep_release")
	noErrors(t, inParallel(2, func(r int) error {
		rows := client.EPRows{Layout: client.EPFlat, Capacity: 10, X: bytes.Repeat([]byte{7}, 10*4*c.Hidden), Counts: make([]int32, 1),
			Offsets: make([]int64, 2), SourceRank: make([]int32, 10), SourceToken: make([]int32, 10)}
		tokens := (1 - r) * 2 // rank 0 has two: for the experts of ranks 0 and 2
		d, err := eps[r].Dispatch(client.EPTokensIn{Tokens: tokens, X: in.x, Idx: []int32{0, 2}}, &rows)
		if err != nil {
			return err
		}
		if r == 0 {
			if err := checkMissing(rows, c); err != nil {
				return err
			}
		}
		out := make([]byte, tokens*4*c.Hidden)
		report, err := d.Combine(client.EPSums{Y: rows.X, YDtype: client.F32, Out: out, OutDtype: client.F32})
		if err != nil {
			return err
		}
		// Rank 1 sent nothing to the dead rank and expected only its counts, so it need not report it as lost.
		if maskOf(report.LostRanks) != 1<<2 && r == 0 || report.LostCopies != uint64(tokens/2) {
			return fmt.Errorf("rank %d: %d copies lost with ranks %d", r, report.LostCopies, report.LostRanks)
		}
		if tokens == 0 {
			return nil
		}
		return sameFloats(out, append(bytes.Clone(in.x[:4*c.Hidden]), make([]byte, 4*c.Hidden)...))
	}))
}

func checkMissing(rows client.EPRows, c client.EPConfig) error {
	if rows.Rows != 8 || rows.Counts[0] != 8 || rows.Tokens != 5 {
		return fmt.Errorf("%d rows, %d of the expert, %d tokens; want 8, 8 and the 5 that arrived", rows.Rows, rows.Counts[0], rows.Tokens)
	}
	for row := range 9 {
		wantRank, wantToken, value := int32(2), int32(row-1), []byte{0, 0, 128, 63}
		switch {
		case row == 0:
			wantRank, wantToken = 0, 0
		case row == 8: // after the last row
			wantRank, wantToken, value = 0, 0, []byte{7, 7, 7, 7}
		case row > 4:
			wantRank, wantToken, value = -1, -1, make([]byte, 4)
		}
		if rows.SourceRank[row] != wantRank || rows.SourceToken[row] != wantToken {
			return fmt.Errorf("row %d is token %d of rank %d", row, rows.SourceToken[row], rows.SourceRank[row])
		}
		if !bytes.Equal(rows.X[row*4*c.Hidden:][:4*c.Hidden], bytes.Repeat(value, c.Hidden)) {
			return fmt.Errorf("row %d begins with %v", row, rows.X[row*4*c.Hidden:][:8])
		}
	}
	return nil
}

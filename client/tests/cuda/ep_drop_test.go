package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

// dropConfig has two experts on each of three ranks.
var dropConfig = func() client.EPConfig {
	c := layerConfig
	c.NumExperts, c.DropDead = 6, true
	return c
}()

var htDropConfig = inHT(dropConfig)

// survived checks the results of a dispatch and its combine without the lost ranks: a token's x times the weights of the experts of the others.
func (l *layer) survived(lost ...int) error {
	d, c := l.Dispatched.Report(), l.Sum.Report()
	if d.Result != wire.ResultOK || c.Result != wire.ResultOK || !slices.Equal(d.LostRanks, lost) || !slices.Equal(c.LostRanks, lost) {
		return fmt.Errorf("reports %+v and %+v, want lost ranks %v", d, c, lost)
	}
	copies := uint64(0)
	for t := range l.Config.MaxTokensPerRank {
		sum, to := float32(0), map[int]bool{}
		for k := range l.Config.TopK {
			expert := int(l.Idx[t*l.Config.TopK+k])
			if expert < 0 {
				continue
			}
			if slices.Contains(lost, expert/2) {
				to[expert/2] = true
			} else {
				sum += l.Weights[t*l.Config.TopK+k]
			}
		}
		copies += uint64(len(to))
		for h := range l.Config.Hidden {
			at := 4 * (t*l.Config.Hidden + h)
			x, got := math.Float32frombits(binary.LittleEndian.Uint32(l.X[at:])), math.Float32frombits(binary.LittleEndian.Uint32(l.Out[at:]))
			if got != x*sum {
				return fmt.Errorf("token %d: element %d is %g, want %g * %g without ranks %v", t, h, got, sum, x, lost)
			}
		}
	}
	if d.LostCopies != copies || c.LostCopies != copies {
		return fmt.Errorf("reports %+v and %+v, want %d lost copies", d, c, copies)
	}
	return nil
}

func (l *layer) masked(want ...int) error {
	got, err := l.EP.Masked()
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("masked ranks %v, want %v", got, want)
	}
	return err
}

// Rank 2 does not come. The others drop it after their deadline, and go on at once; the comm is not broken.
func TestALateRankIsDropped(t *testing.T) {
	t.Parallel() // it waits
	calls := []lateCalls{{dropConfig, false}, {dropConfig, true}, {htDropConfig, false}, {htDropConfig, true}}
	rand.Shuffle(len(calls), func(i, k int) { calls[i], calls[k] = calls[k], calls[i] })
	for _, c := range deep.First(t, 1, calls) {
		t.Run(fmt.Sprintf("mode %d, two phases %t", c.config.Mode, c.twoPhases), func(t *testing.T) { dropLate(t, c.config, c.twoPhases) })
	}
}

type lateCalls struct {
	config    client.EPConfig
	twoPhases bool
}

func dropLate(t *testing.T, c client.EPConfig, twoPhases bool) {
	const deadline = 2 * soon // ranks 0 and 1 must not be late, on a busy machine either
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3, Timeout: deadline})
	layers := newLayers(t, ranks, c, 2)
	each(t, ranks, func(r rank) error {
		l := layers[r.Rank()][0]
		return errors.Join(l.Both(twoPhases), r.wait(), l.survived(), l.masked())
	})
	began := time.Now()
	each(t, ranks[:2], func(r rank) error {
		l := layers[r.Rank()][1]
		if err := errors.Join(l.Both(twoPhases), r.waitFor(4*deadline)); err != nil {
			return err
		}
		d := l.Dispatched.Report()
		if d.Result != wire.ResultOK || !slices.Equal(d.LostRanks, []int{2}) {
			return fmt.Errorf("rank %d: %+v", r.Rank(), d)
		}
		return l.masked(2)
	})
	if took := time.Since(began); took < deadline {
		t.Errorf("rank 2 was dropped after %v, before the deadline", took)
	}
	began = time.Now()
	each(t, ranks[:2], func(r rank) error {
		for n := range 5 {
			l := layers[r.Rank()][n%2]
			l.Fill(rand.New(rand.NewPCG(uint64(n), uint64(r.Rank()))))
			if err := errors.Join(l.Both(twoPhases), r.wait(), l.survived(2)); err != nil {
				return err
			}
		}
		return nil
	})
	if took := time.Since(began); took > deadline {
		t.Errorf("dispatches without rank 2 took %v", took)
	}
	each(t, ranks, func(r rank) error {
		return errors.Join(r.allReduce(r.alloc(t, 400)), r.wait(), layers[r.Rank()][0].EP.Destroy(), r.Finalize())
	})
}

// waitFor is wait with another patience.
func (r rank) waitFor(patience time.Duration) error {
	return errors.Join(r.stream.Synchronize(patience), r.wait())
}

// A child. It replays and calls, with a buffer of each mode in turn, until a rank is lost, then goes on with the others, and prints what it has seen.
func TestChildSurvivesInDispatches(t *testing.T) {
	r := childRank(t)
	var layers []*layer
	var graphs []*graph
	for _, c := range []client.EPConfig{dropConfig, htDropConfig} {
		ep, err := r.NewEP(c)
		if err != nil {
			t.Fatal(err)
		}
		l := newLayer(t, r, ep, c)
		l.Fill(rand.New(rand.NewPCG(1, uint64(r.Rank()))))
		layers, graphs = append(layers, l), append(graphs, r.capture(t, func() error { return l.Both(r.Rank()%2 == 0) }))
	}
	var lacking [2]int   // dispatches of each buffer since it lacks the rank
	for n := range 500 { // the same number on all ranks: one that ends is lost too
		if n == 5 {
			fmt.Println("replays")
		}
		l := layers[n%2]
		run := func() error { return graphs[n%2].exec.Launch(r.stream) }
		if n%3 == 2 {
			run = func() error { return l.Both(n%4 < 2) }
		}
		if err := errors.Join(run(), r.stream.Synchronize(patience)); err != nil {
			t.Fatal(err)
		}
		d, c := l.Dispatched.Report(), l.Sum.Report()
		if d.Result != wire.ResultOK || c.Result != wire.ResultOK {
			t.Fatalf("%+v, %+v", d, c)
		}
		if len(d.LostRanks) == 0 {
			continue // the death may fall into this one: what it gives is between the two
		}
		if lacking == [2]int{} {
			fmt.Println("goes on")
		}
		if lacking[n%2]++; lacking[n%2] > 1 {
			if err := errors.Join(l.survived(1), l.masked(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	status, err := r.Status()
	if min(lacking[0], lacking[1]) < 2 {
		t.Fatalf("no rank was lost: %+v", status)
	}
	if err != nil || status.Result != wire.ResultRankDead {
		t.Errorf("after the death: %+v, %v", status, err)
	}
	for i, g := range graphs {
		g.end()
		wantError(t, layers[i].EP.Destroy(), wire.ResultRankDead, "has died")
	}
	_ = r.Finalize()
}

func TestTheOtherRanksGoOnWithoutARankThatIsKilledDuringDispatches(t *testing.T) {
	t.Parallel()
	killOneOf(t, "TestChildSurvivesInDispatches", func(t *testing.T, c harness.Child, _ string) error {
		c.Line(t, "goes on")
		return nil
	})
}

// A rank dies, and another one then leaves the broken group. No kernel waits for either of them.
func TestARankThatLeavesAGroupBrokenByADeathIsNotAwaited(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	layers := newLayers(t, ranks, dropConfig, 1)
	each(t, ranks, func(r rank) error {
		return errors.Join(layers[r.Rank()][0].Both(false), r.wait())
	})
	if err := errors.Join(ranks[1].session.Close(), ranks[2].Finalize()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	l := layers[0][0]
	if err := errors.Join(l.Both(false), ranks[0].stream.Synchronize(patience), l.survived(1, 2), l.masked(1, 2)); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > patience/4 {
		t.Errorf("it took %v, the deadline is %v", took, patience)
	}
	_ = ranks[0].Finalize()
}

// An abort is no death: it ends the waits of buffers that survive deaths too.
func TestAnAbortEndsADispatchThatSurvivesDeaths(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	layers := newLayers(t, ranks, dropConfig, 1)
	if err := errors.Join(layers[0][0].Dispatch(true), ranks[1].Abort()); err != nil {
		t.Fatal(err)
	}
	wantError(t, ranks[0].wait(), wire.ResultAborted, "rank 1 (pid", "rh_comm_abort")
	wantReport(t, layers[0][0].Dispatched.Report(), wire.ResultAborted, "rank 1 (pid")
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

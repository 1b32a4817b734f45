package tests

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

func TestBuffersAndRoutingsOfGraphsCannotBeDestroyed(t *testing.T) {
	t.Parallel()
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		if err := route(layers, true); err != nil {
			return err
		}
		eager := *l
		if err := eager.Dispatch(false); err != nil {
			return err
		}
		var captured error
		g := r.capture(t, func() error {
			captured = eager.Combine(false)
			return l.Both(false)
		})
		err := errors.Join(
			refused("the capture of a call on an eager dispatch", captured, invalid, "ep_combine", "was not captured"),
			refused("destroy of the buffer", l.EP.Destroy(), wire.ResultBusy, "ep_destroy", "captured graphs"),
			refused("destroy of the routing", l.Routing.Destroy(), wire.ResultBusy, "ep_routing_destroy", "captured graphs"),
			eager.Combine(false), r.wait())
		size, sizeErr := g.Size()
		if size != 3 { // dispatch, experts, combine: the refused call is not captured
			err = errors.Join(err, fmt.Errorf("%d calls were captured, want 3", size))
		}
		// A driver may release what a graph kept after the graph was destroyed: a destroy waits for that.
		released := make(chan struct{})
		time.AfterFunc(50*time.Millisecond, func() {
			defer close(released)
			g.end()
		})
		err = errors.Join(err, sizeErr, l.Routing.Destroy())
		<-released
		return errors.Join(err, l.EP.Destroy())
	})
}

func TestReplaysAfterFinalizeAreRefused(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		g := r.capture(t, func() error { return l.Both(false) })
		if err := errors.Join(g.exec.Launch(r.stream), r.wait(), l.Check(1), r.Finalize(), g.exec.Launch(r.stream)); err != nil {
			return err
		}
		return refused("a replay after finalize", r.wait(), ended, "has been finalized")
	})
}

func TestALateRankBreaksAReplayOrIsDropped(t *testing.T) {
	t.Parallel() // it waits
	for _, drops := range []bool{false, true} {
		c := layerConfig
		c.Mode, c.DropDead = client.EPLowLatency, drops
		ranks := formOnStreams(t, client.CommConfig{Group: fmt.Sprint("late ", drops), World: 3, HeapBytes: 8 << 20, Timeout: time.Second})
		layers := newLayers(t, ranks, c, 1)
		eachRank(t, ranks, func(r onStreams) error {
			l := layers[r.Rank()][0]
			err := route([]*layer{l}, false)
			g := r.capture(t, func() error { return l.Both(false) })
			if r.Rank() == 2 {
				return errors.Join(err, g.exec.Launch(r.stream), r.wait())
			}
			if err := errors.Join(err, g.exec.Launch(r.stream), r.wait(), l.Check(1), g.exec.Launch(r.stream)); err != nil {
				return err
			}
			err = r.wait()
			if !drops {
				return errors.Join(refused("a replay without rank 2", err, wire.ResultTimeout, "rank 2"), l.Handle.Release(),
					refused("the report of that replay", &client.Error{Result: l.Dispatched.Report().Result, Message: l.Dispatched.Report().Message}, wire.ResultTimeout, "rank 2"))
			}
			if d := l.Dispatched.Report(); d.Result != wire.ResultOK || len(d.LostRanks) != 1 || d.LostRanks[0] != 2 {
				return fmt.Errorf("report %+v", d)
			}
			return errors.Join(err, g.exec.Launch(r.stream), r.wait())
		})
	}
}

// Of the test below. The victim launches fewer replays than the others, so they cannot complete theirs before it is killed.
const (
	replaysVictim = 1
	replaysMissed = 10
	replaysBefore = 10 // "replays" is printed
)

// A child of the test below. It prints "replays" while it replays, then its error and the report of the last replay.
func TestChildReplaysDispatches(t *testing.T) {
	r := childRank(t)
	c := layerConfig
	c.Mode, c.DropDead = client.EPHighThroughput, os.Getenv(childDrops) != ""
	ep, err := r.NewEP(c)
	if err != nil {
		t.Fatal(err)
	}
	l := newLayer(r, ep, c)
	if err := route([]*layer{l}, false); err != nil {
		t.Fatal(err)
	}
	g := r.capture(t, func() error { return l.Both(false) })
	launch := func(n int) {
		for range n {
			if err := g.exec.Launch(r.stream); err != nil {
				t.Fatal(err)
			}
		}
	}
	launch(replaysBefore)
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("replays")
	n := replaysAfter(t)
	if r.Rank() == replaysVictim {
		n -= replaysMissed
	}
	launch(n)
	err = r.wait()
	if r.Rank() == replaysVictim {
		time.Sleep(patience) // it is killed
	}
	harness.PrintEnd(err)
	report := l.Dispatched.Report()
	fmt.Printf("report %s %v %d\n", report.Result, report.LostRanks, report.Dispatch)
}

// replaysAfter is how many replays are launched after "replays".
func replaysAfter(t *testing.T) int { return deep.Rounds(t, 2000, 50_000) }

// childDrops is the environment variable for RH_EP_DEAD_DROP.
const childDrops = "RAILHEAD_TEST_EP_DROPS"

func TestARankKilledDuringReplaysIsDroppedOrNamed(t *testing.T) {
	for _, drops := range []string{"", "yes"} {
		children := startChildren(t, "TestChildReplaysDispatches", 3, childDrops+"="+drops)
		killDuringReplays(t, children, replaysVictim)
		for i, c := range children {
			if i == replaysVictim {
				continue
			}
			// All replays have run, the last one without the victim.
			want := fmt.Sprintf("ok [%d] %d", replaysVictim, replaysBefore+replaysAfter(t))
			if drops == "" {
				wantNamed(t, c, children, replaysVictim)
				want = "rank_dead"
			}
			if said := c.Line(t, "report "); !strings.HasPrefix(said, want) {
				t.Errorf("drops %q: the last report of rank %d is %q, want %q", drops, i, said, want)
			}
		}
	}
}

package tests

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/internal/wire"
)

func TestWhatGraphsUseCannotBeDestroyedBeforeThem(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		if err := route(layers, true); err != nil {
			return err
		}
		eager := *l
		if err := eager.dispatch(false); err != nil {
			return err
		}
		var captured error
		g := r.capture(t, func() error {
			captured = eager.combine(false)
			return l.both(false)
		})
		err := errors.Join(
			refused("the capture of a call on an eager dispatch", captured, invalid, "ep_combine", "was not captured"),
			refused("destroy of the buffer", l.ep.Destroy(), wire.ResultBusy, "ep_destroy", "captured graphs"),
			refused("destroy of the routing", l.routing.Destroy(), wire.ResultBusy, "ep_routing_destroy", "captured graphs"),
			eager.combine(false), r.wait())
		size, sizeErr := g.Size()
		if size != 3 { // dispatch, experts, combine: what was refused is not in it
			err = errors.Join(err, fmt.Errorf("%d calls were captured", size))
		}
		g.end()
		return errors.Join(err, sizeErr, l.routing.Destroy(), l.ep.Destroy())
	})
}

func TestAGraphThatOutlivesItsCommDoesNothing(t *testing.T) {
	onLayers(t, 1, layerConfig, func(r onStreams, layers []*layer) error {
		l := layers[0]
		g := r.capture(t, func() error { return l.both(false) })
		if err := errors.Join(g.exec.Launch(r.stream), r.wait(), l.check(1), r.Finalize(), g.exec.Launch(r.stream)); err != nil {
			return err
		}
		return refused("a replay after finalize", r.wait(), ended, "has been finalized")
	})
}

func TestALateRankBreaksAReplayOfDispatchOrIsLeftOut(t *testing.T) {
	for _, drops := range []bool{false, true} {
		c := layerConfig
		c.Mode, c.DropDead = client.EPLowLatency, drops
		ranks := formOnStreams(t, client.CommConfig{Group: fmt.Sprint("late ", drops), World: 3, HeapBytes: 8 << 20, Timeout: 500 * time.Millisecond})
		layers := newLayers(t, ranks, c, 1)
		eachRank(t, ranks, func(r onStreams) error {
			l := layers[r.Rank()][0]
			err := route([]*layer{l}, false)
			g := r.capture(t, func() error { return l.both(false) })
			if r.Rank() == 2 {
				return errors.Join(err, g.exec.Launch(r.stream), r.wait())
			}
			if err := errors.Join(err, g.exec.Launch(r.stream), r.wait(), l.check(1), g.exec.Launch(r.stream)); err != nil {
				return err
			}
			err = r.wait()
			if !drops {
				return errors.Join(refused("a replay without rank 2", err, wire.ResultTimeout, "rank 2"), l.handle.Release(),
					refused("its report", &client.Error{Result: l.dispatched.Report().Result, Message: l.dispatched.Report().Message}, wire.ResultTimeout, "rank 2"))
			}
			if d := l.dispatched.Report(); d.Result != wire.ResultOK || len(d.LostRanks) != 1 || d.LostRanks[0] != 2 {
				return fmt.Errorf("report %+v", d)
			}
			return errors.Join(err, g.exec.Launch(r.stream), r.wait())
		})
	}
}

// A rank of the test below: says when it replays, and what came of the last replay.
func TestARankThatReplaysDispatches(t *testing.T) {
	socket, rank := os.Getenv("RAILHEAD_TEST_EP_REPLAYS"), 0
	if socket == "" {
		t.Skip("it is a process of another test")
	}
	if _, err := fmt.Sscan(os.Getenv("RANK"), &rank); err != nil {
		t.Fatal(err)
	}
	session, err := client.Connect(socket, patience)
	if err != nil {
		t.Fatal(err)
	}
	comm, err := session.Init(client.CommConfig{Group: "ep killed", Rank: rank, World: 3, Timeout: patience, HeapBytes: 8 << 20, Device: threads.Kind()})
	if err != nil {
		t.Fatal(err)
	}
	r := onStreams{member{comm, session}, newStream(t)}
	c := layerConfig
	c.Mode, c.DropDead = client.EPHighThroughput, os.Getenv("RAILHEAD_TEST_EP_DROPS") != ""
	ep, err := r.NewEP(c)
	if err != nil {
		t.Fatal(err)
	}
	l := newLayer(r, ep, c)
	if err := route([]*layer{l}, false); err != nil {
		t.Fatal(err)
	}
	g := r.capture(t, func() error { return l.both(false) })
	launch := func(n int) {
		for range n {
			if err := g.exec.Launch(r.stream); err != nil {
				t.Fatal(err)
			}
		}
	}
	launch(10)
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("replays")
	launch(100000) // far more than there is time for
	err = r.wait()
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Printf("ended %s %s\n", e.Result, e.Message)
	} else if err != nil {
		t.Fatal(err)
	}
	report := l.dispatched.Report()
	fmt.Printf("report %s %v %d\n", report.Result, report.LostRanks, report.Dispatch)
}

func TestARankThatIsKilledInTheMiddleOfAReplayIsLeftOutOrNamed(t *testing.T) {
	for _, drops := range []string{"", "yes"} {
		s := startDaemon(t)
		ranks := make([]*exec.Cmd, 3)
		lines := make([]*bufio.Scanner, len(ranks))
		for i := range ranks {
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestARankThatReplaysDispatches$")
			c.Env = append(os.Environ(), "RAILHEAD_TEST_EP_REPLAYS="+s.SocketPath(), "RAILHEAD_TEST_EP_DROPS="+drops, fmt.Sprint("RANK=", i))
			c.Stderr = os.Stderr
			out, err := c.StdoutPipe()
			if err == nil {
				err = c.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			ranks[i], lines[i] = c, bufio.NewScanner(out)
			t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		}
		next := func(i int, prefix string) string {
			for lines[i].Scan() {
				if text, ok := strings.CutPrefix(lines[i].Text(), prefix+" "); ok {
					return text
				}
				if lines[i].Text() == prefix {
					return ""
				}
			}
			t.Fatalf("drops %q: rank %d ended without a line of %q", drops, i, prefix)
			return ""
		}
		for i := range ranks {
			next(i, "replays")
		}
		const victim = 1
		if err := ranks[victim].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for i := range ranks {
			if i == victim {
				continue
			}
			want := "ok [1] 100010" // all replays have run, the last one without rank 1
			if drops == "" {
				if said := next(i, "ended"); !strings.HasPrefix(said, "rank_dead ") || !strings.Contains(said, "rank 1 (pid") {
					t.Errorf("rank %d ended with %q", i, said)
				}
				want = "rank_dead"
			}
			if said := next(i, "report"); !strings.HasPrefix(said, want) {
				t.Errorf("drops %q: the last report of rank %d is %q", drops, i, said)
			}
		}
	}
}

package tests

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
	"railhead/internal/wire"
	"railhead/server/flight"
)

// replaying launches a graph of collectives once on the last rank and twice on the others, which then wait for the last rank.
func replaying(t *testing.T, config client.CommConfig) (ranks []onStreams) {
	t.Helper()
	ranks = formOnStreams(t, config)
	last := config.World - 1
	for _, r := range ranks {
		buf := threads.Alloc(4000)
		g := r.capture(t, func() error { return errors.Join(r.allReduce(buf), r.on().Barrier(), r.allReduce(buf)) })
		for i := 0; i < 2; i++ {
			if i == 1 && r.Rank() == last {
				break
			}
			if err := g.exec.Launch(r.stream); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, r := range ranks[:last] {
		eventually(t, "the other ranks wait in their second replay", func() bool {
			st, err := r.Status()
			return err == nil && st.Operation == 4 && waitingIn(t, r.member, "all_reduce", 1<<last)
		})
	}
	return ranks
}

func TestAnAbortEndsAReplay(t *testing.T) {
	ranks := replaying(t, client.CommConfig{World: 3, HeapBytes: 8 << 20})
	if err := ranks[2].Abort(); err != nil {
		t.Fatal(err)
	}
	for _, r := range ranks[:2] {
		wantError(t, r.wait(), wire.ResultAborted, fmt.Sprintf("rank %d of group", r.Rank()), "all_reduce #4", "rank 2 (pid", "rh_comm_abort")
		wantError(t, r.allReduce(threads.Alloc(4)), wire.ResultAborted, "rank 2 (pid") // refused before it is queued
		st, err := r.Status()
		if err != nil || st.Result != wire.ResultAborted || st.Culprit != 2 || st.Operation != 4 {
			t.Errorf("status of rank %d: %+v, %v", r.Rank(), st, err)
		}
		if err := r.Finalize(); err != nil {
			t.Errorf("finalize of rank %d: %v", r.Rank(), err)
		}
	}
}

// Two replays on a stream fail for different causes. The stream tells the first, once.
func TestAStreamTellsTheFirstOfItsFailures(t *testing.T) {
	s := startDaemon(t)
	config := func(group string) client.CommConfig {
		return client.CommConfig{Group: group, World: 1, HeapBytes: 8 << 20, Device: threads.Kind()}
	}
	aborted := withStreams(t, formGroup(t, s, config("aborted")))[0]
	finalized := onStreams{formGroup(t, s, config("finalized"))[0], aborted.stream}
	buf := threads.Alloc(4000)
	first := aborted.capture(t, func() error { return aborted.allReduce(buf) })
	second := finalized.capture(t, func() error { return finalized.allReduce(buf) })
	if err := errors.Join(aborted.Abort(), finalized.Finalize(), first.exec.Launch(aborted.stream), second.exec.Launch(aborted.stream)); err != nil {
		t.Fatal(err)
	}
	wantError(t, aborted.wait(), wire.ResultAborted, "rh_comm_abort")
	if err := aborted.wait(); err != nil {
		t.Errorf("a failure is told twice: %v", err)
	}
}

func TestTheDeadlineOfAReplayNamesTheLateRank(t *testing.T) {
	t.Parallel() // it waits
	ranks := replaying(t, client.CommConfig{World: 3, HeapBytes: 8 << 20, Timeout: soon})
	for _, r := range ranks[:2] {
		wantError(t, r.wait(), wire.ResultTimeout, "rank 2 (pid", "did not arrive in all_reduce", "waiting for rank 2")
	}
}

// A child of the test below. It prints "replays" in its second replay, then its error.
func TestChildReplaysAllReduces(t *testing.T) {
	r := childRank(t)
	buf := threads.Alloc(1 << 20)
	g := r.capture(t, func() error {
		for range 20 {
			if err := r.allReduce(buf); err != nil {
				return err
			}
		}
		return nil
	})
	for range 500 { // takes far longer than the test
		if err := g.exec.Launch(r.stream); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the second replay", func() bool {
		st, err := r.Status()
		return err != nil || st.Operation > 20
	})
	fmt.Println("replays")
	harness.PrintEnd(r.wait())
}

func TestTheOtherRanksNameARankKilledDuringReplays(t *testing.T) {
	children := startChildren(t, "TestChildReplaysAllReduces", 3)
	const victim = 1
	killDuringReplays(t, children, victim)
	killed := time.Now()
	for i, c := range children {
		if i != victim {
			wantNamed(t, c, children, victim)
		}
	}
	if took := time.Since(killed); took > patience/4 {
		t.Errorf("the other ranks failed after %v, their deadline is %v", took, patience)
	}
}

func TestAWindowOfACapturedGraphCannotBeFreed(t *testing.T) {
	t.Parallel()
	ranks := formOnStreams(t, client.CommConfig{World: 2, HeapBytes: 16 << 20})
	const count = 1000
	windows := make([]*client.Window, 2)
	graphs := make([]*graph, 2)
	eachRank(t, ranks, func(r onStreams) (err error) {
		i := r.Rank()
		if _, err = r.AllocWindow(4096); err != nil { // used by no graph
			return err
		}
		windows[i], err = r.AllocWindow(4 * count)
		return err
	})
	for i, r := range ranks {
		buf, err := windows[i].Local()
		if err != nil {
			t.Fatal(err)
		}
		graphs[i] = r.capture(t, func() error { return errors.Join(r.allReduce(buf), r.allReduce(threads.Alloc(4))) })
	}
	for i, r := range ranks {
		wantError(t, windows[i].Free(), wire.ResultBusy, fmt.Sprintf("window_free: rank %d", i), "the window of 4000 bytes at offset", "1 calls")
		if st, err := r.Status(); err != nil || st.Operation != 2 {
			t.Errorf("rank %d: the refused call counts as an operation: %+v, %v", i, st, err)
		}
	}
	eachRank(t, ranks, func(r onStreams) error { // the window is still mapped
		return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait())
	})
	for i, g := range graphs { // the exec alone also keeps the window
		if err := errors.Join(g.Destroy(), ranks[i].wait()); err != nil {
			t.Fatal(err)
		}
		wantError(t, windows[i].Free(), wire.ResultBusy, "captured graphs")
		if err := g.exec.Destroy(); err != nil {
			t.Fatal(err)
		}
		g.ended = true
	}
	eachRank(t, ranks, func(r onStreams) error { return windows[r.Rank()].Free() })
}

// Finalize ends the membership. The mappings stay until the last graph is destroyed.
func TestMappingsStayAfterFinalizeUntilTheGraphsAreDestroyed(t *testing.T) {
	s := startDaemon(t)
	nothingLeaks(t, func() {
		sessions := make([]*client.Session, 2)
		ranks := make([]onStreams, 2)
		for i := range ranks {
			session, err := client.Connect(s.SocketPath(), patience)
			if err != nil {
				t.Fatal(err)
			}
			stream, err := threads.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			sessions[i], ranks[i] = session, onStreams{member{nil, session}, stream}
		}
		noErrors(t, inParallel(2, func(i int) (err error) {
			ranks[i].Comm, err = sessions[i].Init(client.CommConfig{
				Group: "graphs", Rank: i, World: 2, Timeout: patience, HeapBytes: 8 << 20, Device: threads.Kind(),
			})
			return err
		}))
		graphs := make([]*graph, 2)
		eachRank(t, ranks, func(r onStreams) error {
			w, err := r.AllocWindow(4096)
			if err != nil {
				return err
			}
			buf, err := w.Local()
			if err != nil {
				return err
			}
			graphs[r.Rank()] = r.capture(t, func() error { return r.allReduce(buf) })
			if err := graphs[r.Rank()].exec.Launch(r.stream); err != nil {
				return err
			}
			return r.Finalize() // waits for the launch
		})
		for i, r := range ranks {
			if err := errors.Join(r.wait(), sessions[i].Close()); err != nil {
				t.Fatal(err)
			}
			wantError(t, r.on().Barrier(), wire.ResultInvalidHandle, "finalized")
			if err := graphs[i].exec.Launch(r.stream); err != nil {
				t.Fatal(err)
			}
			wantError(t, r.wait(), wire.ResultInvalidHandle, "all_reduce", fmt.Sprintf("rank %d of group", i), "has been finalized", "nothing was done")
		}
		if now := harness.CountResources(t); now.Mappings == 0 {
			t.Error("nothing is mapped while graphs use it")
		}
		for i, r := range ranks {
			graphs[i].end()
			if err := r.stream.Destroy(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The comm's stream waits for an event of another group, in which a rank is late.
func TestFinalizeFailsIfQueuedWorkMissesTheDeadline(t *testing.T) {
	deep.Only(t) // it waits
	t.Parallel()
	others := formOnStreams(t, client.CommConfig{Group: "late", World: 2, HeapBytes: 8 << 20})
	r := formOnStreams(t, client.CommConfig{Group: "waits", World: 1, HeapBytes: 8 << 20, Timeout: time.Second})[0]
	event := newEvent(t)
	if err := errors.Join(others[0].allReduce(threads.Alloc(400)), event.Record(others[0].stream), r.stream.Wait(event), r.on().Barrier()); err != nil {
		t.Fatal(err)
	}
	wantError(t, r.Finalize(), wire.ResultTimeout, "rank 0 of group \"waits\"", "did not arrive in finalize")
	if err := others[1].Abort(); err != nil {
		t.Fatal(err)
	}
	wantError(t, r.wait(), wire.ResultInvalidHandle, "barrier", "has been finalized")
}

func TestTheFlightRecordHasTheGraphAndTheNumberOfEachReplay(t *testing.T) {
	s := startDaemon(t)
	const world, launches = 2, 5
	ranks := withStreams(t, formGroup(t, s, client.CommConfig{Group: "numbers", World: world, HeapBytes: 8 << 20, Device: threads.Kind()}))
	eachRank(t, ranks, func(r onStreams) error {
		buf := threads.Alloc(400)
		g := r.capture(t, func() error { return errors.Join(r.allReduce(buf), r.on().Barrier(), r.allReduce(buf)) })
		for range launches {
			if err := errors.Join(g.exec.Launch(r.stream), r.on().Barrier()); err != nil {
				return err
			}
		}
		return r.wait()
	})
	inOrder := []string{"all_reduce", "barrier", "all_reduce", "barrier"}
	for _, rank := range traceOf(t, s, "numbers", world) {
		if len(rank.Records) != 4*launches {
			t.Errorf("%d records, want %d", len(rank.Records), 4*launches)
		}
		for i, rec := range rank.Records {
			want := uint64(i + 1)
			if rec.Sequence != want || rec.Collective != want || rec.Operation != inOrder[i%4] || rec.State != flight.Done {
				t.Errorf("record %d: %+v", i, rec)
			}
			captured, replay, graph := i%4+1, uint32(i/4+1), rank.Records[0].Graph
			if i%4 == 3 { // the eager barrier
				captured, replay, graph = 0, 0, 0
			}
			if rec.Captured != captured || rec.Replay != replay || rec.Graph != graph || rec.Stream == 0 || rank.Records[0].Graph == 0 {
				t.Errorf("record %d: %+v; want number %d of replay %d of graph %d", i, rec, captured, replay, graph)
			}
		}
	}
}

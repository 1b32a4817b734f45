package tests

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

// soon is the deadline of groups in which a rank is late: long enough to start all ranks on a busy machine.
const soon = 3 * time.Second

// waitingIn reports whether a rank is in the operation and waits for exactly the ranks of the mask.
func waitingIn(t testing.TB, m member, operation string, mask uint64) bool {
	t.Helper()
	st, err := m.Status()
	if err != nil {
		t.Fatal(err)
	}
	return st.OperationName == operation && maskOf(st.WaitingFor) == mask
}

// maskOf has bit r set for each rank r.
func maskOf(ranks []int) (mask uint64) {
	for _, r := range ranks {
		mask |= 1 << r
	}
	return mask
}

// operations returns calls of the data path by name. In each of them ranks 0 to 2 of four wait for rank 3.
func operations() map[string]func(m member) error {
	b := func() []byte { return make([]byte, 4*400) }
	return map[string]func(m member) error{
		"all_gather":     func(m member) error { return m.AllGather(b(), b(), 100, client.F32) },
		"reduce_scatter": func(m member) error { return m.ReduceScatter(b(), b(), 100, client.F32, client.Sum) },
		"all_to_all":     func(m member) error { return m.AllToAll(b(), b(), 100, client.F32) },
		"broadcast":      func(m member) error { return m.Broadcast(b(), b(), 100, client.F32, 3) },
		"scatter":        func(m member) error { return m.Scatter(b(), b(), 100, client.F32, 3) },
		"recv":           func(m member) error { return m.Recv(b(), 100, client.F32, 3) },
		"send": func(m member) error { // more than a pipe's capacity
			large := make([]byte, 1<<20)
			return m.Send(large, len(large), client.U8, 3)
		},
		"barrier": barrier,
		"all_reduce": func(m member) error {
			b := make([]byte, 400)
			return m.AllReduce(b, b, 100, client.F32, client.Sum)
		},
	}
}

func TestAbortWakesAllWaitingRanksAndNamesItsRank(t *testing.T) {
	s := startDaemon(t)
	for name, operation := range operations() {
		ranks := formGroup(t, s, client.CommConfig{Group: "abort " + name, World: 4})
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for r := range 3 {
			wg.Go(func() { errs[r] = operation(ranks[r]) })
		}
		for r := range 3 {
			eventually(t, "ranks 0 to 2 wait for rank 3", func() bool { return waitingIn(t, ranks[r], name, 1<<3) })
		}
		began := time.Now()
		if err := ranks[3].Abort(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if took := time.Since(began); took > patience/2 {
			t.Errorf("%s: the ranks woke after %v, close to their deadline", name, took)
		}
		for r, err := range errs {
			wantError(t, err, wire.ResultAborted, fmt.Sprintf("rank %d of group", r), name+" #1", "rank 3 (pid", "rh_comm_abort",
				"waiting for rank 3", "finalize this comm")
		}
		// Later calls return the same error on all ranks, even after another rank has aborted too. Finalize does not wait.
		if err := ranks[0].Abort(); err != nil {
			t.Fatal(err)
		}
		for r := range ranks {
			if r != 3 { // rank 3 cannot send to or receive from itself here
				wantError(t, operation(ranks[r]), wire.ResultAborted, fmt.Sprintf("rank %d of group", r), "rank 3 (pid")
			}
			_, err := ranks[r].AllocWindow(4096)
			wantError(t, err, wire.ResultAborted, "rank 3 (pid")
			if err := ranks[r].Finalize(); err != nil {
				t.Errorf("finalize of rank %d: %v", r, err)
			}
		}
		all(t, formGroup(t, s, client.CommConfig{Group: "abort " + name, World: 4}), barrier) // the name is free again
	}
}

// A running daemon would also wake the waiting rank.
func TestARankThatBreaksTheGroupWakesTheOthersWithoutADaemon(t *testing.T) {
	for _, c := range []struct {
		end    func(m member) error
		result wire.Result
	}{
		{func(m member) error { return m.Abort() }, wire.ResultAborted},
		{func(m member) error { return m.session.Close() }, wire.ResultRankDead},
	} {
		s := startDaemon(t)
		ranks := formGroup(t, s, client.CommConfig{World: 2})
		s.Close()
		done := make(chan error, 1)
		go func() { done <- ranks[0].Barrier() }()
		eventually(t, "rank 0 waits for rank 1", func() bool { return waitingIn(t, ranks[0], "barrier", 1<<1) })
		began := time.Now()
		if err := c.end(ranks[1]); err != nil {
			t.Fatal(err)
		}
		wantError(t, <-done, c.result, "barrier #1", "rank 1 (pid")
		if took := time.Since(began); took > patience/2 {
			t.Errorf("%s: woke after %v, close to its deadline", c.result, took)
		}
		// Finalize of a broken group waits for neither ranks nor the daemon.
		if err := ranks[0].Finalize(); err != nil {
			t.Errorf("%s: finalize: %v", c.result, err)
		}
	}
}

func TestAbortWakesRanksThatWaitForTheDaemon(t *testing.T) {
	s := startDaemon(t)
	o := ownMemfd(t, page)
	defer o.Release()
	for name, operation := range map[string]func(m member) error{
		"window_alloc":    func(m member) error { _, err := m.AllocWindow(1 << 16); return err },
		"window_register": func(m member) error { _, err := m.Register(o.Config()); return err },
		"finalize":        finalize,
	} {
		group := "abort " + name
		ranks := formGroup(t, s, client.CommConfig{Group: group, World: 2})
		done := make(chan error, 1)
		go func() { done <- operation(ranks[0]) }()
		eventually(t, "the daemon waits for rank 1", func() bool { return daemonSays(t, s, group).WaitingIn == name })
		if err := ranks[1].Abort(); err != nil {
			t.Fatal(err)
		}
		wantError(t, <-done, wire.ResultAborted, name, "rank 1", "called rh_comm_abort")
	}
}

func TestTheDeadlineNamesTheRanksThatDidNotCall(t *testing.T) {
	t.Parallel() // it waits
	s := startDaemon(t)
	inParallel(2, func(i int) error {
		name := []string{"barrier", "all_reduce"}[i]
		operation := operations()[name]
		ranks := formGroup(t, s, client.CommConfig{Group: "late " + name, World: 5, Timeout: soon})
		for r, err := range together(ranks[:3], operation) {
			wantError(t, err, wire.ResultTimeout, fmt.Sprintf("rank %d of group", r), name+" #1", "rank 3 (pid",
				"did not arrive in "+name+" before the deadline (timeout_ms 3000)", "waiting for ranks 3 and 4")
			checkStatus(t, ranks[r], client.Status{
				Result: wire.ResultTimeout, Culprit: 3, Operation: 1, WaitingFor: []int{3, 4}, OperationName: name,
				CulpritOperation: name, Algorithm: map[string]string{"barrier": "none", "all_reduce": "oneshot"}[name],
				Why: map[string]string{"barrier": "none", "all_reduce": "default"}[name],
			})
		}
		for _, late := range ranks[3:] {
			wantError(t, operation(late), wire.ResultTimeout, "rank 3 (pid", "did not arrive in "+name)
		}
		return nil
	})
}

// checkStatus compares a rank's status with want. Of a broken group it compares neither message nor reporter.
func checkStatus(t *testing.T, m member, want client.Status) {
	t.Helper()
	got, err := m.Status()
	if err != nil {
		t.Fatal(err)
	}
	if want.Result != wire.ResultOK {
		if !strings.Contains(got.Message, fmt.Sprintf("rank %d", want.Culprit)) {
			t.Errorf("message: %s", got.Message)
		}
		want.Message = got.Message
		want.Reporter = got.Reporter
	}
	if want.OperationName == "all_reduce" {
		want.Bytes = 400
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("status %+v, want %+v", got, want)
	}
}

func TestTheDaemonNamesARankThatMissesASetUpCall(t *testing.T) {
	t.Parallel() // it waits
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 3, Timeout: soon})
	errs := together(ranks[:2], func(m member) error { _, err := m.AllocWindow(1 << 16); return err })
	for _, err := range errs {
		wantError(t, err, wire.ResultTimeout, "window_alloc", "rank 2 did not arrive")
	}
	// Calls of the data path then name the same rank, and the daemon as the reporter.
	for _, err := range together(ranks, barrier) {
		wantError(t, err, wire.ResultTimeout, "rank 2 (pid", "did not arrive in window_alloc", "the daemon found")
	}
	checkStatus(t, ranks[2], client.Status{
		Result: wire.ResultTimeout, Culprit: 2, OperationName: "none", CulpritOperation: "window_alloc", Algorithm: "none", Why: "none",
	})
}

func TestTheOtherRanksNameARankWhoseSessionWasClosed(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 3})
	errs := make(chan error, 2)
	for _, m := range ranks[:2] {
		go func() { errs <- m.Barrier() }()
	}
	for _, m := range ranks[:2] {
		eventually(t, "ranks 0 and 1 wait for rank 2", func() bool { return waitingIn(t, m, "barrier", 1<<2) })
	}
	if err := ranks[2].session.Close(); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprintf("rank 2 (pid %d)", os.Getpid())
	for range 2 {
		wantError(t, <-errs, wire.ResultRankDead, pid, "died or closed its session between operations", "waiting for rank 2")
	}
	wantError(t, ranks[2].Barrier(), wire.ResultInvalidHandle, "barrier")
}

func TestStatusOfAWorkingGroupCountsOperations(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	checkStatus(t, ranks[0], client.Status{Culprit: -1, Reporter: -1, OperationName: "none", CulpritOperation: "none", Algorithm: "none", Why: "none"})
	for range 3 {
		all(t, ranks, operations()["all_reduce"])
	}
	all(t, ranks, barrier)
	for _, m := range ranks {
		checkStatus(t, m, client.Status{Culprit: -1, Reporter: -1, Operation: 4, OperationName: "none", CulpritOperation: "none", Algorithm: "oneshot", Why: "default"})
	}
}

func TestTheMessageListsManyLateRanks(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 64})
	done := make(chan error, 32)
	var mask uint64
	for r, m := range ranks {
		if r%2 == 0 {
			go func() { done <- m.Barrier() }()
		} else {
			mask |= 1 << r
		}
	}
	for r := 0; r < 64; r += 2 {
		eventually(t, "the even ranks wait for the odd ones", func() bool {
			st, err := ranks[r].Status()
			return err == nil && maskOf(st.WaitingFor)&mask == mask
		})
	}
	if err := ranks[63].Abort(); err != nil {
		t.Fatal(err)
	}
	for range 32 {
		wantError(t, <-done, wire.ResultAborted, "waiting for ranks 1, 3, 5, 7, 9,", ", 57, 59, 61 and 63.")
	}
}

func TestTheMessageListsConsecutiveRanksAsARange(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 64})
	done := make(chan error, 1)
	go func() { done <- ranks[2].Barrier() }()
	eventually(t, "rank 2 waits for all others", func() bool { return waitingIn(t, ranks[2], "barrier", ^uint64(1<<2)) })
	if err := ranks[63].Abort(); err != nil {
		t.Fatal(err)
	}
	wantError(t, <-done, wire.ResultAborted, "waiting for ranks 0, 1 and 3-63.")
	wantError(t, ranks[0].Barrier(), wire.ResultAborted, "after 0 operations: rank 63 (pid")
}

func TestCollectivesContinueWithoutTheDaemon(t *testing.T) {
	deep.Only(t) // each call waits seconds for a daemon
	t.Parallel()
	s := startDaemon(t)
	ranks, late := formGroup(t, s, client.CommConfig{World: 3}), connect(t, s)
	s.Close()
	refused := make(chan error, 1)
	go func() { // at the same time, because each call waits seconds for a daemon
		_, err := late.Init(client.CommConfig{Group: "more", Rank: 0, World: 1})
		refused <- err
	}()
	steps := []step{{dtype: "f32", count: 1000}, {barrier: true}, {dtype: "bf16", count: 77}}
	checkSteps(t, ranks, steps, 0, 11)
	for r, err := range together(ranks, func(m member) error { _, err := m.AllocWindow(4096); return err }) {
		wantError(t, err, wire.ResultDaemonLost, "window_alloc", fmt.Sprintf("rank %d", r), "closed the connection", "no daemon at")
	}
	checkSteps(t, ranks, steps, 0, 12)
	for r, err := range together(ranks, finalize) {
		wantError(t, err, wire.ResultDaemonLost, "finalize", fmt.Sprintf("rank %d", r), "daemon")
	}
	wantError(t, ranks[0].Finalize(), wire.ResultInvalidHandle)
	wantError(t, <-refused, wire.ResultDaemonLost, "comm_init", "rank 0", "connection", "keeps trying")
}

// An abort breaks only the group of its comm. The parent group and the other groups of the split continue to work.
func TestAnAbortBreaksNoOtherGroupOfASplit(t *testing.T) {
	s := startDaemon(t)
	for _, aborted := range []string{"parent", "child"} {
		parents := formGroup(t, s, client.CommConfig{Group: "abort of a " + aborted, World: 4})
		children := make([]*client.Comm, len(parents))
		all(t, parents, func(m member) (err error) {
			children[m.Rank()], err = m.Split(m.Rank()/2, 0)
			return err
		})
		of := map[string]func(m member) *client.Comm{
			"parent": func(m member) *client.Comm { return m.Comm },
			"child":  func(m member) *client.Comm { return children[m.Rank()] },
		}
		if err := of[aborted](parents[0]).Abort(); err != nil {
			t.Fatal(err)
		}
		wantError(t, of[aborted](parents[1]).Barrier(), wire.ResultAborted, "rank 0 (pid")
		other := map[string]string{"parent": "child", "child": "parent"}[aborted]
		all(t, parents, func(m member) error { return of[other](m).Barrier() })
	}
}

package tests

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/wire"
	"railhead/server"
)

// patience is far beyond what anything here takes on a busy machine: reaching it means a hang.
const patience = harness.Patience

var (
	startDaemon   = harness.StartDaemon
	eventually    = harness.Eventually
	nothingLeaks  = harness.NothingLeaks
	askDaemon     = harness.AskDaemon
	daemonSays    = harness.DaemonSays
	ranksThatCame = harness.RanksThatCame
)

func connect(t testing.TB, s *server.Server) *client.Session {
	t.Helper()
	session, err := client.Connect(s.SocketPath(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// member is a rank with the session it came by.
type member struct {
	*client.Comm
	session *client.Session
}

// formGroup makes config.World ranks of a group, each with a session of its own. They end with the test.
func formGroup(t testing.TB, s *server.Server, config client.CommConfig) []member {
	t.Helper()
	ranks, errs := tryGroup(t, s, config, func(c *client.CommConfig) {})
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	return ranks
}

// tryGroup lets every rank change its config and returns what each one got.
func tryGroup(t testing.TB, s *server.Server, config client.CommConfig, change func(*client.CommConfig)) ([]member, []error) {
	t.Helper()
	if config.Group == "" {
		config.Group = fmt.Sprintf("%.60s", t.Name())
	}
	if config.Timeout == 0 {
		config.Timeout = patience
	}
	ranks := make([]member, config.World)
	for r := range ranks {
		ranks[r].session = connect(t, s)
	}
	errs := inParallel(len(ranks), func(r int) (err error) {
		mine := config
		mine.Rank = r
		change(&mine)
		ranks[r].Comm, err = ranks[r].session.Init(mine)
		return err
	})
	return ranks, errs
}

// inParallel calls f(0)..f(n-1) at the same time and returns what each returned.
func inParallel(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

// together makes all ranks call f at the same time.
func together(ranks []member, f func(m member) error) []error {
	return inParallel(len(ranks), func(r int) error { return f(ranks[r]) })
}

// all is together where every rank is to succeed.
func all(t testing.TB, ranks []member, f func(m member) error) {
	t.Helper()
	for r, err := range together(ranks, f) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func barrier(m member) error  { return m.Barrier() }
func finalize(m member) error { return m.Finalize() }

// wantError holds an error to a result and to words of its message.
func wantError(t testing.TB, err error, result wire.Result, words ...string) {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) {
		t.Errorf("got %v, want an error with result %s", err, result)
		return
	}
	if e.Result != result {
		t.Errorf("result %s, want %s: %s", e.Result, result, e.Message)
	}
	for _, w := range words {
		if !strings.Contains(e.Message, w) {
			t.Errorf("the message lacks %q: %s", w, e.Message)
		}
	}
}

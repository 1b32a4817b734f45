package tests

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/internal/await"
	"railhead/server"
)

const patience = await.Patience

var (
	startDaemon   = harness.StartDaemon
	eventually    = await.True
	nothingLeaks  = harness.NothingLeaks
	inParallel    = harness.InParallel
	wantError     = harness.WantError
	refused       = harness.Refused
	missing       = harness.Missing
	encode        = harness.Encode
	name          = harness.Name
	memfd         = harness.Memfd
	mapOwned      = harness.MapOwned
	ownMemfd      = harness.OwnMemfd
	askDaemon     = harness.AskDaemon
	daemonSays    = harness.DaemonSays
	ranksThatCame = harness.RanksThatCame
)

type owned = harness.Owned

const page = harness.Page

// concurrentOnlyInCpp skips a test with the race detector, which sees only Go. In these long tests Go code forms groups, as in all tests, and
// then computes; what ranks do concurrently is C++, which the tests in programs run with ThreadSanitizer.
func concurrentOnlyInCpp(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("the race detector does not see C++")
	}
}

func connect(t testing.TB, s *server.Server) *client.Session {
	t.Helper()
	session, err := client.Connect(s.SocketPath(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// member is a rank with its session.
type member struct {
	*client.Comm
	session *client.Session
}

// formGroup makes a group of config.World ranks, each with its own session. They end with the test.
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

// tryGroup calls Init for every rank, with the config as changed for that rank, and returns each rank's error.
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

// together calls f for all ranks concurrently.
func together(ranks []member, f func(m member) error) []error {
	return inParallel(len(ranks), func(r int) error { return f(ranks[r]) })
}

// all calls f for all ranks concurrently and stops the test if one fails.
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

func barrier(m member) error      { return m.Barrier() }
func finalize(m member) error     { return m.Finalize() }
func closeSession(m member) error { return m.session.Close() }

// noErrors stops the test if one of the results of inParallel or together is an error.
func noErrors(t rapid.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
}

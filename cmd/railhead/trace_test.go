package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/await"
	"railhead/server"
	"railhead/server/flight"
)

// daemonWithGroups has a group "a" of two ranks, of whom rank 1 waits in a barrier until finish, and a group "b" of one.
func daemonWithGroups(t *testing.T) (socket string, finish func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "rh.sock")
	s, err := server.Start(server.Config{SocketPath: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	join := func(group string, rank, world int) (*client.Session, *client.Comm, error) {
		sess, err := client.Connect(socket, await.Patience)
		if err != nil {
			return nil, nil, err
		}
		c, err := sess.Init(client.CommConfig{Group: group, Rank: rank, World: world, Timeout: await.Patience, HeapBytes: 1 << 20})
		return sess, c, err
	}
	waited := make(chan error, 1)
	go func() {
		_, c, err := join("a", 1, 2)
		if err == nil {
			err = c.AllReduce(make([]byte, 8), make([]byte, 8), 4, client.BF16, client.Sum)
		}
		if err == nil {
			err = c.Barrier()
		}
		waited <- err
	}()
	_, first, err := join("a", 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.AllReduce(make([]byte, 8), make([]byte, 8), 4, client.BF16, client.Sum); err != nil {
		t.Fatal(err)
	}
	_, alone, err := join("b", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := alone.Barrier(); err != nil {
		t.Fatal(err)
	}
	return socket, func() {
		if err := first.Barrier(); err != nil {
			t.Error(err)
		}
		select {
		case err := <-waited:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(await.Patience):
			t.Error("rank 1 hangs")
		}
	}
}

func TestTraceDumpShowsEveryRanksOperations(t *testing.T) {
	socket, finish := daemonWithGroups(t)
	env := []string{"RAILHEAD_SOCKET=" + socket}
	var text string
	await.True(t, "rank 1 is in the barrier", func() bool {
		status, stdout, stderr := railhead(t, env, "trace", "dump")
		if status != 0 {
			t.Fatalf("status %d: %s", status, stderr)
		}
		text = stdout
		return strings.Contains(text, "barrier") && strings.Contains(text, "running")
	})
	for _, want := range []string{`group "a" #1, 2 ranks`, `group "b" #1, 1 ranks`, "all_reduce", "bf16", "oneshot"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	status, stdout, stderr := railhead(t, env, "trace", "dump", "--group", "a", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var dumps map[string]flight.Dump
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&dumps); err != nil || len(dumps) != 2 {
		t.Fatalf("%v: %s", err, stdout)
	}
	if n := len(dumps["0"].Entries); n != 1 {
		t.Fatalf("%d entries of rank 0", n)
	}
	e := dumps["1"].Entries
	if len(e) != 2 || e[0].State != "completed" || e[0].ProfilingName != "nccl:all_reduce" || e[0].InputSizes[0][0] != 4 || e[1].State != "started" {
		t.Errorf("rank 1: %+v", e)
	}
	// The time is the wall clock's.
	if age := time.Since(time.Unix(0, e[0].TimeCreatedNS)); age < 0 || age > await.Patience {
		t.Errorf("it began %v ago", age)
	}
	finish()
}

func TestTraceDumpRefusesInvalidFlags(t *testing.T) {
	socket, finish := daemonWithGroups(t)
	defer finish()
	for _, c := range []struct {
		status int
		words  string
		args   []string
	}{
		{cli.Usage, "no command", []string{"trace"}},
		{cli.Usage, "--last 0", []string{"trace", "dump", "--last", "0"}},
		{cli.Usage, `choose one of the groups with --group: "a", "b"`, []string{"trace", "dump", "--json"}},
		{cli.Failed, `no group "c" has a flight record`, []string{"trace", "dump", "--group", "c"}},
		{cli.NoDaemon, "no daemon answers", []string{"trace", "dump", "--socket", socket + "/no/x"}},
	} {
		status, _, stderr := railhead(t, []string{"RAILHEAD_SOCKET=" + socket}, c.args...)
		if status != c.status || !strings.Contains(stderr, c.words) {
			t.Errorf("%v: status %d, want %d with %q: %s", c.args, status, c.status, c.words, stderr)
		}
	}
}

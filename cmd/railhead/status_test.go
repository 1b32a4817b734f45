package main

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"railhead/server"
	"railhead/server/flight"
	"railhead/server/membership"
)

func TestStatusSaysOfRegisteredWindowsWhyTheyAreStaged(t *testing.T) {
	var out strings.Builder
	printStatus(&out, server.Status{Groups: []membership.GroupInfo{{Name: "g", Registered: []membership.RegionInfo{
		{Number: 1, Bytes: 4096, Shared: true},
		{Number: 3, Bytes: 12, Reason: "rank 2: malloc\x1b[2J"}, // the rank's own words, whatever they do to a terminal
	}}}})
	for _, want := range []string{
		"  registered window 1, 4096 bytes: shared\n", `  registered window 3, 12 bytes: staged: "rank 2: malloc\x1b[2J"` + "\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

func TestStatusSaysHowUnevenTheLoadOfExpertsIs(t *testing.T) {
	for _, c := range []struct {
		moe  *membership.MoEInfo
		want string
	}{
		{&membership.MoEInfo{Tokens: 128, Copies: 500, Dropped: 2, Experts: 4, Busiest: 3, MaxLoad: 600, AvgLoad: 240},
			"  MoE: 128 tokens, 500 copies, 2 dropped; of 4 experts 3 is the busiest, with 600 copies, 2.50 times the average\n"},
		{&membership.MoEInfo{Experts: 4}, "  MoE: 0 tokens, 0 copies, 0 dropped\n"},
		{nil, ""},
	} {
		var out strings.Builder
		printStatus(&out, server.Status{Groups: []membership.GroupInfo{{Name: "g", MoE: c.moe}}})
		if !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "MoE") != (c.want != "") {
			t.Errorf("%+v: no line %q in\n%s", c.moe, c.want, out.String())
		}
	}
}

func TestAnAnswerThatIsTooLongIsNoAnswer(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", server.AdminSocketBeside(filepath.Join(dir, "rh.sock")))
	if err != nil {
		t.Fatal(err)
	}
	daemon := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, maxAnswerBytes+1))
	})}
	go func() { _ = daemon.Serve(l) }()
	t.Cleanup(func() { _ = daemon.Close() })
	for _, command := range [][]string{{"status"}, {"trace", "dump"}} {
		status, stdout, stderr := run(t, []string{"RAILHEAD_SOCKET=" + filepath.Join(dir, "rh.sock")}, command...)
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, "more than 64 MiB; ask for less") {
			t.Errorf("%v: status %d, %d bytes on stdout, stderr %q", command, status, len(stdout), stderr)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// statusWith is of one group of two ranks.
func statusWith(v *flight.Verdict, age *int64) server.Status {
	return server.Status{Groups: []membership.GroupInfo{{
		Name: "g", Incarnation: 1, State: membership.Ready, WorldSize: 2, Health: v,
		Ranks: []membership.RankInfo{{Rank: 0, PID: 1, Operation: "barrier", AgeMS: age}, {Rank: 1, PID: 2, Operation: "none"}},
	}}}
}

package status

import (
	"strings"
	"testing"
	"time"

	"railhead/internal/wire"
	"railhead/server"
	"railhead/server/flight"
	"railhead/server/membership"
)

func TestStatusSaysOfRegisteredWindowsWhyTheyAreStaged(t *testing.T) {
	var out strings.Builder
	printStatus(&out, server.Status{Groups: []membership.GroupInfo{{Name: "g", Registered: []membership.RegionInfo{
		{Number: 1, Bytes: 4096, Shared: true},
		{Number: 3, Bytes: 12, Reason: "rank 2: malloc\x1b[2J"}, // a rank's text may have a terminal escape
	}}}})
	for _, want := range []string{
		"  registered window 1, 4096 bytes: shared\n", `  registered window 3, 12 bytes: staged: "rank 2: malloc\x1b[2J"` + "\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q in\n%s", want, out.String())
		}
	}
}

func TestStatusSaysWhatMemoryWindowsAreAndWhoSharesAGPU(t *testing.T) {
	window := func(memory wire.MemoryKind, bytes uint64) (w membership.WindowInfo) {
		w.Memory, w.Bytes = memory, bytes
		return w
	}
	var out strings.Builder
	printStatus(&out, server.Status{Groups: []membership.GroupInfo{{
		Name: "g", Incarnation: 1, State: membership.Ready, WorldSize: 3, Reproducible: true, Device: wire.DeviceCUDA, WindowBytes: 70,
		Windows:    []membership.WindowInfo{window(wire.MemoryCPU, 10), window(wire.MemoryCUDA, 40), window(wire.MemoryCUDA, 20)},
		Registered: []membership.RegionInfo{{Number: 1, Bytes: 4096, Memory: wire.MemoryCUDA, Shared: true}},
		Ranks:      []membership.RankInfo{{Rank: 0, GPU: "GPU-b"}, {Rank: 1, GPU: "GPU-a"}, {Rank: 2, GPU: "GPU-b"}},
	}}})
	for _, want := range []string{
		"group \"g\" #1: ready, 3 ranks on cuda, 70 bytes in 3 windows",
		"\n  60 of these bytes in 2 windows are cuda memory, the kernels' scratch included\n  GPU-a: ranks [1]\n  GPU-b: ranks [0 2]\n",
		"\n  registered window 1, 4096 bytes of cuda memory: shared\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestStatusSaysHowUnevenTheLoadOfExpertsIs(t *testing.T) {
	for _, c := range []struct {
		moe  *membership.MoEInfo
		want string
	}{
		{&membership.MoEInfo{Tokens: 128, Copies: 500, Dropped: 2, Experts: 4, Busiest: 3, MaxLoad: 600, AvgLoad: 240},
			"  MoE: 128 tokens, 500 copies, 2 dropped; busiest of 4 experts: 3 with 600 copies, 2.50 times the average\n"},
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

// statusWith is of one group of two ranks.
func statusWith(v *flight.Verdict, age *int64) server.Status {
	return server.Status{Groups: []membership.GroupInfo{{
		Name: "g", Incarnation: 1, State: membership.Ready, WorldSize: 2, Health: v,
		Ranks: []membership.RankInfo{{Rank: 0, PID: 1, Operation: "barrier", AgeMS: age}, {Rank: 1, PID: 2, Operation: "none"}},
	}}}
}

func TestStatusSaysWhoIsBehind(t *testing.T) {
	var out strings.Builder
	age := int64(7000)
	v := flight.Judge([]flight.Rank{
		{Rank: 0, Here: true, Op: wire.OpBarrier, Sequence: 4, Collective: 4, WaitingFor: 2, Since: 1},
		{Rank: 1, Here: true, Sequence: 3, Collective: 3, Since: 1},
	}, int64(9*time.Second)+1, 5*time.Second)
	printStatus(&out, statusWith(&v, &age))
	for _, want := range []string{
		`group "g" #1: ready, 2 ranks, 0 bytes in 0 windows; stalled`,
		"  stalled for 9s in barrier, collective 4; rank 1 is behind: it has not called any operation since #3 ended 9s ago\n",
		"7s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	printStatus(&out, statusWith(&flight.Verdict{State: flight.Idle, AgeMS: &age}, &age))
	if !strings.Contains(out.String(), "windows; idle for 7s\n") {
		t.Errorf("%s", out.String())
	}
}

func TestStatusSaysHowManyProcessesAreNotWatched(t *testing.T) {
	const words = "sessions of processes in another pid namespace"
	for n, want := range map[int]bool{0: false, 2: true} {
		var out strings.Builder
		var s server.Status
		s.Daemon.Unwatched = n
		printStatus(&out, s)
		if strings.Contains(out.String(), words) != want {
			t.Errorf("%d sessions are not watched: %s", n, out.String())
		}
	}
}

func TestStatusShowsLiveGroupsBeforeBrokenOnes(t *testing.T) {
	var out strings.Builder
	printStatus(&out, server.Status{
		Groups: []membership.GroupInfo{
			{Name: "dead", State: membership.Broken}, {Name: "works", State: membership.Ready}, {Name: "dead too", State: membership.Broken},
			{Name: "forms", State: membership.Forming},
		},
		Ended: []membership.GroupInfo{{Name: "over"}},
	})
	at := 0
	for _, name := range []string{"works", "forms", "dead", "dead too", "over"} {
		i := strings.Index(out.String()[at:], `group "`+name+`"`)
		if i < 0 {
			t.Fatalf("no %q after byte %d of\n%s", name, at, out.String())
		}
		at += i
	}
}

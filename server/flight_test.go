package server

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/group"
	"railhead/server/membership"
)

func tracesOf(t testing.TB, s *Server, group string) []flight.Trace {
	t.Helper()
	r := adminGet(t, s, "/v1/trace?group="+url.QueryEscape(group))
	var out flight.Traces
	if err := json.Unmarshal([]byte(r.body), &out); err != nil || r.status != http.StatusOK {
		t.Fatalf("/v1/trace: status %d, %v: %.500s", r.status, err, r.body)
	}
	return out.Traces
}

func healthIs(h flight.Health) func(membership.GroupInfo) bool {
	return func(g membership.GroupInfo) bool { return g.Health != nil && g.Health.State == h }
}

// ranksIn lists who is behind and who waits.
func ranksIn(v *flight.Verdict) string {
	var behind, waiting []int
	for _, b := range v.Behind {
		behind = append(behind, b.Rank)
	}
	for _, w := range v.Waiting {
		waiting = append(waiting, w.Rank)
	}
	return fmt.Sprint(behind, waiting)
}

func TestAStoppedRankIsNamedAsTheOneBehind(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	const stopped = 1
	ranks := startRanks(t, s, "stopped", 3, await.Never)
	loopAll(t, ranks)
	awaitGroup(t, s, "stopped", "works", healthIs(flight.OK))
	if err := syscall.Kill(ranks[stopped].pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g := awaitGroup(t, s, "stopped", "is stalled", healthIs(flight.Stalled))
	v := g.Health
	if ranksIn(v) != "[1] [0 2]" || v.Operation != "all_reduce" || v.AgeMS == nil || *v.AgeMS < group.StallAfter.Milliseconds() {
		t.Fatalf("the verdict is %+v", v)
	}
	if b := v.Behind[0]; b.How != flight.Unresponsive || b.Sequence == 0 || b.AgeMS == nil {
		t.Errorf("rank 1: %+v", b)
	}
	for _, w := range v.Waiting {
		if w.Operation != "all_reduce" || fmt.Sprint(w.WaitingFor) != "[1]" || w.AgeMS == nil {
			t.Errorf("a rank that waits: %+v", w)
		}
	}
	wantStalledByRank(t, s, "stopped", stopped)
	if st := statusOf(t, s); st.Health != flight.Stalled {
		t.Errorf("the daemon's groups are %s", st.Health)
	}
	if r := adminGet(t, s, "/readyz?verbose"); r.status != 200 || !strings.Contains(r.body, `1 stalled`) || !strings.Contains(r.body, "rank 1 is behind: its process is stopped") {
		t.Errorf("/readyz is %d: %s", r.status, r.body)
	}
	if err := syscall.Kill(ranks[stopped].pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitGroup(t, s, "stopped", "works again", healthIs(flight.OK))
	await.Until(t, func() string {
		if v := labelled(scrape(t, s)["railhead_group_stalled_seconds"], "stopped"); v != 0 {
			return fmt.Sprintf("railhead_group_stalled_seconds is %v while the group works", v)
		}
		return ""
	})
}

// wantStalledByRank checks that the metrics name a stalled group, and that the time for which its rank keeps others waiting grows.
func wantStalledByRank(t *testing.T, s *Server, name string, late int) {
	t.Helper()
	lateness := func(rank int) float64 {
		return labelled(scrape(t, s)["railhead_arrival_lateness_seconds"], strconv.Itoa(rank))
	}
	if stalled := labelled(scrape(t, s)["railhead_group_stalled_seconds"], name); stalled < group.StallAfter.Seconds() {
		t.Errorf("stalled for %v s, want %v at least", stalled, group.StallAfter)
	}
	before := lateness(late) // begins a moment after the group's time, when a rank waits for this one
	if before < group.StallAfter.Seconds()/2 {
		t.Errorf("rank %d late for %v s, want about %v", late, before, group.StallAfter)
	}
	if n := lateness((late + 1) % 3); n >= group.StallAfter.Seconds() {
		t.Errorf("a rank that waits is late for %v s", n)
	}
	await.Until(t, func() string {
		if now := lateness(late); now <= before {
			return fmt.Sprintf("rank %d was late for %v s, and now for %v s", late, before, now)
		}
		return ""
	})
}

func TestARankThatDoesNotCallIsNamedAsTheOneBehindAndTheAgesAreTold(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "late", HeapBytes: mebibyte}, 3)
	g := awaitGroup(t, s, "late", "is idle", healthIs(flight.Idle))
	if g.Health.AgeMS != nil {
		t.Errorf("before the first operation: %d ms", *g.Health.AgeMS)
	}
	mustEach(t, ranks, "all_reduce", reduceOnce)
	if g = awaitGroup(t, s, "late", "is idle", healthIs(flight.Idle)); g.Health.AgeMS == nil {
		t.Errorf("after the first operation: %+v", g.Health)
	}
	wait := background(ranks[:2], func(r *rank) error { return r.comm.Barrier() })
	// The group is stalled once one rank has waited for that long; the other may have called later.
	g = awaitGroup(t, s, "late", "is stalled, with every rank's age", func(g membership.GroupInfo) bool {
		return healthIs(flight.Stalled)(g) && !slices.ContainsFunc(g.Ranks, func(r membership.RankInfo) bool {
			return r.AgeMS == nil || *r.AgeMS < group.StallAfter.Milliseconds()
		})
	})
	v := g.Health
	if ranksIn(v) != "[2] [0 1]" || v.Operation != "barrier" || v.Collective != 2 || v.Behind[0].How != flight.NotCalled || v.Behind[0].Sequence != 1 {
		t.Errorf("the verdict is %+v", v)
	}
	for _, r := range g.Ranks {
		want := uint64(2)
		if r.Rank == 2 {
			want = 1
		}
		if r.Collective != want {
			t.Errorf("rank %d: %+v", r.Rank, r)
		}
	}
	mustEach(t, ranks[2:], "barrier", func(r *rank) error { return r.comm.Barrier() })
	for _, err := range wait() {
		if err != nil {
			t.Error(err)
		}
	}
	// In a set-up call it is the daemon that waits.
	wait = background(ranks[1:], func(r *rank) error { _, err := r.comm.AllocWindow(4096); return err })
	v = awaitGroup(t, s, "late", "is stalled", healthIs(flight.Stalled)).Health
	if ranksIn(v) != "[0] [1 2]" || v.Operation != "window_alloc" {
		t.Errorf("in a set-up call: %+v", v)
	}
	mustEach(t, ranks[:1], "window_alloc", func(r *rank) error { _, err := r.comm.AllocWindow(4096); return err })
	for _, err := range wait() {
		if err != nil {
			t.Error(err)
		}
	}
	end(t, ranks)
}

func TestTheRecordsOfAKilledRankOutliveItAndItsGroup(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const victim = 2
	ranks := startRanks(t, s, "traced", 3, await.Never)
	loopAll(t, ranks)
	ranks[victim].kill()
	for r, p := range ranks {
		if r != victim {
			p.answer()
		}
	}
	g := awaitGroup(t, s, "traced", "is broken", is(membership.Broken))
	if h := g.Health; h.State != flight.Broken || h.Culprit == nil || *h.Culprit != victim || h.Text != g.Cause {
		t.Errorf("its health is %+v", h)
	}
	traces := tracesOf(t, s, "traced")
	if len(traces) != 1 || traces[0].Ended || traces[0].Name != "traced" || len(traces[0].Ranks) != 3 {
		t.Fatalf("%+v", traces)
	}
	var last [3]flight.Record
	for r, rt := range traces[0].Ranks {
		if len(rt.Records) == 0 {
			t.Fatalf("no record of rank %d", r)
		}
		last[r] = rt.Records[len(rt.Records)-1]
		if l := last[r]; l.Operation != "all_reduce" || l.Bytes != 400 || l.Dtype != "f32" || l.Reduction != "sum" || l.EnqueuedNS == 0 {
			t.Errorf("rank %d: %+v", r, l)
		}
	}
	for _, r := range []int{0, 1} {
		// The group may have broken between two of its operations.
		if last[r].State != flight.Aborted && last[r].State != flight.Done || last[r].DoneNS < last[r].EnqueuedNS {
			t.Errorf("the survivor %d: %+v", r, last[r])
		}
	}
	for r, p := range ranks {
		if r != victim {
			p.must(order{Do: "finalize"})
			p.must(order{Do: "close"})
		}
	}
	awaitEmpty(t, s)
	traces = tracesOf(t, s, "traced")
	if len(traces) != 1 || !traces[0].Ended {
		t.Fatalf("after the group: %+v", traces)
	}
	for r, rt := range traces[0].Ranks {
		if n := len(rt.Records); n == 0 || n > group.EndedRecords || rt.Records[n-1] != last[r] {
			// A survivor's finalize of a broken group is not recorded.
			t.Errorf("after the group: %d records of rank %d, the last is %+v, want %+v", n, r, rt.Records[n-1], last[r])
		}
	}
}

func TestTracesOfEndedGroupsAreBounded(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i := range group.MaxTraces + 3 {
		ranks := formed(t, s, client.CommConfig{Group: fmt.Sprint("g", i), HeapBytes: mebibyte}, 1)
		mustEach(t, ranks, "barrier", func(r *rank) error { return r.comm.Barrier() })
		end(t, ranks)
	}
	awaitEmpty(t, s)
	traces := tracesOf(t, s, "")
	if len(traces) != group.MaxTraces || traces[0].Name != "g3" {
		t.Errorf("%d traces, the first of %q", len(traces), traces[0].Name)
	}
}

func TestARingThatHasWrappedHoldsTheNewestOperations(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "wraps", HeapBytes: mebibyte}, 2)
	const calls = wire.FlightRecords + 100
	mustEach(t, ranks, "barriers", func(r *rank) error {
		for range calls {
			if err := r.comm.Barrier(); err != nil {
				return err
			}
		}
		return nil
	})
	for _, rt := range tracesOf(t, s, "wraps")[0].Ranks {
		if len(rt.Records) != wire.FlightRecords {
			t.Fatalf("rank %d: %d records", rt.Rank, len(rt.Records))
		}
		for i, r := range rt.Records {
			if want := uint64(calls - wire.FlightRecords + 1 + i); r.Sequence != want || r.Collective != want || r.State != flight.Done {
				t.Fatalf("rank %d: record %d is %+v", rt.Rank, i, r)
			}
			if i > 0 && r.EnqueuedNS < rt.Records[i-1].EnqueuedNS {
				t.Fatalf("rank %d: operation %d began before the one before it", rt.Rank, r.Sequence)
			}
		}
	}
	end(t, ranks)
}

// Ranks overwrite their rings while the daemon reads. All fields of a record follow from the number of its collective, so the test
// detects a torn record.
func TestRecordsThatAreReadWhileRanksWorkAreNeverTorn(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "torn", HeapBytes: mebibyte}, 2)
	var stop atomic.Bool
	var calls [2]atomic.Uint64
	count := func(n uint64) int { return int(n%13 + 1) }
	wait := background(ranks, func(r *rank) error {
		buf := make([]byte, 1024)
		// Both must make the same number of calls: in each, rank 0 says whether it is the last.
		for n := uint64(1); ; n++ {
			if r.comm.Rank() == 0 && stop.Load() {
				buf[0] = 1
			}
			if err := r.comm.AllReduce(buf, buf, count(n), client.U8, client.Max); err != nil {
				return err
			}
			if calls[r.comm.Rank()].Store(n); buf[0] == 1 {
				return nil
			}
		}
	})
	read := 0
	for calls[0].Load() < 3*wire.FlightRecords || read < 1000 { // a busy machine answers few requests in that many calls
		for _, trace := range tracesOf(t, s, "torn") {
			for _, rt := range trace.Ranks {
				for _, r := range rt.Records {
					read++
					if r.Sequence != r.Collective || r.Bytes != uint64(count(r.Collective)) || r.Operation != "all_reduce" || r.Dtype != "u8" || r.Reduction != "max" {
						t.Fatalf("a torn record of rank %d: %+v", rt.Rank, r)
					}
					if r.State == flight.Done && (r.DoneNS == 0 || r.Algorithm == "") {
						t.Fatalf("a torn end of rank %d: %+v", rt.Rank, r)
					}
				}
			}
		}
	}
	stop.Store(true)
	for _, err := range wait() {
		if err != nil {
			t.Error(err)
		}
	}
	end(t, ranks)
}

func TestNothingThatRanksWriteIntoTheirLinesAndRecordsHarmsTheDaemon(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "hostile", HeapBytes: mebibyte}, 2)
	random := rand.New(rand.NewPCG(1, 2))
	m := mapped(t, openControl(t, groupOf(t, s, "hostile")))
	parts := wire.PartsOf(2)
	for round := range 50 {
		askCore(t, s, func(*core) {
			for r := range ranks {
				for off := parts.Lines.At(r) + wire.SeqOffset; off < parts.Lines.At(r+1); off += 8 {
					atomic.StoreUint64(m.Word64(off), random.Uint64()>>(random.Uint64()%64))
				}
				for slot := range wire.FlightRecords {
					first := parts.Flights.At(r) + uint64(slot*wire.FlightWords)*8
					for w := range uint64(wire.FlightWords) {
						atomic.StoreUint64(m.Word64(first+8*w), random.Uint64()>>(random.Uint64()%64))
					}
					if round%2 == 0 {
						atomic.StoreUint64(m.Word64(first), random.Uint64()/wire.FlightRecords*wire.FlightRecords+uint64(slot))
					}
				}
			}
		})
		statusOf(t, s)
		tracesOf(t, s, "hostile")
		if r := adminGet(t, s, "/readyz"); r.status != 200 {
			t.Fatalf("/readyz is %d: %s", r.status, r.body)
		}
	}
	for _, r := range ranks {
		_ = r.session.Close()
	}
	awaitEmpty(t, s)
}

func TestTraceRefusesNumbersOutOfRange(t *testing.T) {
	t.Parallel()
	s := startWithTCP(t)
	for _, last := range []string{"0", "-1", "1025", "x", ""} {
		wantJSONError(t, last, adminGet(t, s, "/v1/trace?last="+last), 400, "invalid_argument", "1 to 1024")
	}
	if r := adminGet(t, s, "/v1/trace?group=nobody"); r.status != 200 || !strings.Contains(r.body, `"traces":[]`) {
		t.Errorf("of no group: %d: %s", r.status, r.body)
	}
	for _, e := range endpoints(s) {
		if r := request(t, e.client, http.MethodGet, e.url+"/v1/trace"); (r.status == 200) != e.groups {
			t.Errorf("%s: /v1/trace is %d", e.what, r.status)
		}
	}
}

// clockTolerance, in ns, is far above the error of a time stamp, and far below the error of a wrong rate or unit.
const clockTolerance = 5_000_000

func newest(t testing.TB, s *Server, group string, rank int) flight.Record {
	t.Helper()
	records := tracesOf(t, s, group)[0].Ranks[rank].Records
	if len(records) == 0 {
		t.Fatalf("no record of rank %d", rank)
	}
	return records[len(records)-1]
}

// monotonic is the clock of the flight records, ns.
func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return t.Nano()
}

func TestTimesOfRecordsAreThoseOfTheMonotonicClock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "clock", HeapBytes: mebibyte}, 1)
	// Long enough for the rate to be known and the clock to be read again several times.
	for began := time.Now(); time.Since(began) < 400*time.Millisecond; time.Sleep(7 * time.Millisecond) {
		before := monotonic()
		mustEach(t, ranks, "barrier", func(r *rank) error { return r.comm.Barrier() })
		after := monotonic()
		if r := newest(t, s, "clock", 0); r.EnqueuedNS < before-clockTolerance || r.DoneNS > after+clockTolerance || r.DoneNS < r.EnqueuedNS-clockTolerance {
			t.Fatalf("an operation between %d and %d: %+v", before, after, r)
		}
	}
	end(t, ranks)
}

func TestTheRecordSaysWhoCameLastAndWhen(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "arrivals", HeapBytes: mebibyte}, 3)
	for what, call := range map[string]func(c *client.Comm) error{
		"barrier": func(c *client.Comm) error { return c.Barrier() },
		"gather": func(c *client.Comm) error {
			return c.Gather(make([]byte, 4), make([]byte, 12), 4, client.U8, 0)
		},
	} {
		wait := background(ranks[:2], func(r *rank) error { return call(r.comm) })
		awaitGroup(t, s, "arrivals", "waits for rank 2 alone", func(g membership.GroupInfo) bool { return fmt.Sprint(g.Ranks[0].WaitingFor) == "[2]" })
		before := monotonic()
		mustEach(t, ranks[2:], what, func(r *rank) error { return call(r.comm) })
		for _, err := range wait() {
			if err != nil {
				t.Error(err)
			}
		}
		r := newest(t, s, "arrivals", 0)
		if r.Operation != what || r.LastRank != 2 || r.LastArrivalNS < before-clockTolerance || r.FirstArrivalNS > r.LastArrivalNS || r.DoneNS < r.LastArrivalNS-clockTolerance {
			t.Errorf("rank 2 called %s after %d: %+v", what, before, r)
		}
	}
	end(t, ranks)
}

func TestMetricsTellWhichRankComesLate(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "skewed", HeapBytes: mebibyte}, 3)
	mustEach(t, ranks, "barriers", func(r *rank) error {
		for range 10 {
			if r.comm.Rank() == 1 {
				time.Sleep(20 * time.Millisecond)
			}
			if err := r.comm.Barrier(); err != nil {
				return err
			}
		}
		return nil
	})
	families := parseMetrics(t, adminGet(t, s, "/metrics").body)
	lateness := map[string]float64{}
	for _, m := range families["railhead_arrival_lateness_seconds"].GetMetric() {
		lateness[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	// How late depends on how busy the machine is.
	if len(lateness) != 3 || lateness["1"] <= 0 {
		t.Errorf("lateness %v", lateness)
	}
	for _, m := range families["railhead_groups_by_health"].GetMetric() {
		want := 0.
		if m.GetLabel()[0].GetValue() == string(flight.Idle) {
			want = 1
		}
		if m.GetGauge().GetValue() != want {
			t.Errorf("%v", m)
		}
	}
	end(t, ranks)
}

func TestWithoutAFlightRecordStatusHasOperationsButNoAges(t *testing.T) {
	t.Setenv("RAILHEAD_FLIGHT_RECORD", "off")
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "off", HeapBytes: mebibyte}, 2)
	mustEach(t, ranks, "all_reduce", reduceOnce)
	for _, rt := range tracesOf(t, s, "off")[0].Ranks {
		if len(rt.Records) != 0 {
			t.Errorf("rank %d: %+v", rt.Rank, rt.Records)
		}
	}
	g := awaitGroup(t, s, "off", "is idle", healthIs(flight.Idle))
	for _, r := range g.Ranks {
		if r.Sequence != 1 || r.AgeMS != nil {
			t.Errorf("%+v", r)
		}
	}
	end(t, ranks)
	t.Setenv("RAILHEAD_FLIGHT_RECORD", "of")
	bad := join(t, s, client.CommConfig{Group: "off", Rank: 0, World: 1})
	wantError(t, "rank 0", bad[0].err, wire.ResultInvalidArgument, "RAILHEAD_FLIGHT_RECORD=of", "on or off")
}

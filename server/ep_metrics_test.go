package server

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/metrics"
	"railhead/symm"
)

// controlOf maps the control segment that a raw client was given.
func controlOf(t testing.TB, r *rawClient) *symm.Mapping {
	t.Helper()
	return mapped(t, opened(t, r.control, r.joined.ControlBytes))
}

// openControl is the control segment of a group. The daemon runs in this process, so its descriptor is found here.
func openControl(t testing.TB, g membership.GroupInfo) *symm.Segment {
	t.Helper()
	var fd int
	for _, d := range descriptors(fmt.Sprintf("memfd:railhead-control:%d ", g.ID)) {
		if _, err := fmt.Sscan(d, &fd); err == nil {
			return opened(t, fd, wire.ControlBytes(g.WorldSize))
		}
	}
	t.Fatalf("this process has no control segment of group %q", g.Name)
	return nil
}

func opened(t testing.TB, fd int, bytes uint64) *symm.Segment {
	t.Helper()
	segment, err := symm.OpenSegment("opened by a test", dup(t, fd), bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = segment.Release() })
	return segment
}

func mapped(t testing.TB, segment *symm.Segment) *symm.Mapping {
	t.Helper()
	m, err := segment.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unmap() })
	return m
}

func dup(t testing.TB, fd int) int {
	t.Helper()
	d, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// count stores a rank's counters as the rank does: words, and only those that are not 0.
func count(t testing.TB, m *symm.Mapping, world, rank int, c *wire.EPCounters) {
	t.Helper()
	b, err := binary.Append(nil, binary.LittleEndian, c)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(b); at += 8 {
		if v := binary.LittleEndian.Uint64(b[at:]); v != 0 {
			atomic.StoreUint64(m.Word64(wire.PartsOf(world).Counters.At(rank)+uint64(at)), v)
		}
	}
}

// epScraped returns the metrics of MoE, by name and label values, in the order of the labels' names.
func epScraped(t testing.TB, s *Server) map[string]float64 {
	t.Helper()
	r := adminGet(t, s, "/metrics")
	if r.status != 200 {
		t.Fatalf("/metrics is %d: %.500s", r.status, r.body)
	}
	out := map[string]float64{}
	for name, f := range parseMetrics(t, r.body) {
		short, ok := strings.CutPrefix(name, "railhead_ep_")
		for _, m := range f.Metric {
			key := short
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			if ok {
				out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return out
}

func TestMetricsTellWhatEachRankHasCountedOfMoE(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := rawGroup(t, s, "moe", 2)
	m := controlOf(t, ranks[0])
	first := wire.EPCounters{
		Dispatches: 1, Combines: 2, Tokens: 3, Copies: 4, FlagBytes: 5, InvalidIds: 6, DuplicateIds: 7, ExcessTokens: 8, NonFinite: 9,
		OverCapacity: 10, LostCopies: 11, Experts: 3,
	}
	first.PayloadBytes[0], first.PayloadBytes[1], first.HeaderBytes[1], first.WaitNS[1] = 20, 21, 22, 1_500_000_000
	first.PayloadBytes[2], first.WaitNS[63] = 99, 99 // beyond the ranks of this group
	first.Routed[0], first.Routed[2], first.Received[0] = 30, 31, 32
	first.Routed[3], first.Received[2047] = 99, 99 // beyond the experts
	count(t, m, 2, 0, &first)
	second := wire.EPCounters{Dispatches: 1, Experts: 3}
	second.Routed[2], second.Received[2], second.HeaderBytes[0] = 40, 41, 42
	count(t, m, 2, 1, &second)

	want := map[string]float64{
		"groups_left_out":        0,
		"dispatches_total moe 0": 1, "combines_total moe 0": 2, "tokens_total moe 0": 3, "copies_total moe 0": 4, "flag_bytes_total moe 0": 5,
		"dispatches_total moe 1": 1, "combines_total moe 1": 0, "tokens_total moe 1": 0, "copies_total moe 1": 0, "flag_bytes_total moe 1": 0,
		// group, rank, reason
		"dropped_total moe 0 invalid_ids": 6, "dropped_total moe 0 duplicate_ids": 7, "dropped_total moe 0 excess_tokens": 8,
		"dropped_total moe 0 non_finite": 9, "dropped_total moe 0 over_capacity": 10, "dropped_total moe 0 lost_copies": 11,
		// group, kind, peer, rank
		"bytes_total moe payload 0 0": 20, "bytes_total moe payload 1 0": 21, "bytes_total moe header 1 0": 22, "bytes_total moe header 0 1": 42,
		"wait_seconds_total moe 1 0": 1.5,
		// expert, group
		"expert_tokens_total 0 moe": 30, "expert_tokens_total 1 moe": 0, "expert_tokens_total 2 moe": 71,
		"expert_rows_total 0 moe 0": 32, "expert_rows_total 2 moe 1": 41,
	}
	if got := epScraped(t, s); !maps.Equal(got, want) {
		t.Errorf("scraped\n%v, want\n%v", got, want)
	}

	summary := membership.MoEInfo{Tokens: 3, Copies: 4, Dropped: 51, Experts: 3, Busiest: 2, MaxLoad: 71, AvgLoad: 101. / 3}
	g := awaitGroup(t, s, "moe", "works", is(membership.Ready))
	if g.MoE == nil || math.Abs(g.MoE.AvgLoad-summary.AvgLoad) > 1e-9 {
		t.Fatalf("/v1/groups has %+v", g.MoE)
	}
	if g.MoE.AvgLoad = summary.AvgLoad; *g.MoE != summary {
		t.Errorf("/v1/groups has %+v, want %+v", *g.MoE, summary)
	}

	second.Tokens, second.Routed[1] = 50, 51
	count(t, m, 2, 1, &second)
	want["tokens_total moe 1"], want["expert_tokens_total 1 moe"] = 50, 51
	if got := epScraped(t, s); !maps.Equal(got, want) {
		t.Errorf("later scraped\n%v, want\n%v", got, want)
	}
}

func TestAGroupThatUsesNoMoEHasNoSeriesOfItAndAScrapeCostsItNoMemory(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "dense", HeapBytes: mebibyte}, 2)
	mustEach(t, ranks, "all_reduce", reduceOnce)
	held := func() uint64 {
		bytes, err := openControl(t, groupOf(t, s, "dense")).Committed()
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	before := held()
	for range 2 {
		if got := epScraped(t, s); len(got) != 1 || got["groups_left_out"] != 0 {
			t.Errorf("scraped %v", got)
		}
		if g := statusOf(t, s).Groups[0]; g.MoE != nil {
			t.Errorf("/v1/groups has %+v", g.MoE)
		}
	}
	if now := held(); now != before || now == 0 {
		t.Errorf("the control segment had %d bytes of memory, has %d", before, now)
	}
	end(t, ranks)
}

func TestOfGroupsWithOneNameTheNewestIsCounted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	old := rawGroup(t, s, "moe", 2)
	count(t, controlOf(t, old[0]), 2, 0, &wire.EPCounters{Experts: 1, Tokens: 1})
	old[1].close()
	awaitGroup(t, s, "moe", "is broken", is(membership.Broken))
	if got := epScraped(t, s); got["tokens_total moe 0"] != 1 {
		t.Errorf("a broken group: %v", got)
	}
	next := rawGroup(t, s, "moe", 2)
	count(t, controlOf(t, next[0]), 2, 0, &wire.EPCounters{Experts: 1, Tokens: 2})
	for range 16 { // whatever the order in which the daemon reads them
		if got := epScraped(t, s); got["tokens_total moe 0"] != 2 {
			t.Fatalf("with a broken group of the same name: %v", got)
		}
	}
}

func TestRunsThatNobodyHasNamedShareALabelAndTheNewestIsCounted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i, name := range []string{"run-0123456789abcdef", "run-fedcba9876543210"} {
		count(t, controlOf(t, rawGroup(t, s, name, 1)[0]), 1, 0, &wire.EPCounters{Experts: 1, Tokens: uint64(i) + 1})
	}
	if got := epScraped(t, s); got["tokens_total run 0"] != 2 {
		t.Errorf("scraped %v", got)
	}
	for _, f := range scrape(t, s) {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if strings.HasPrefix(l.GetValue(), "run-") {
					t.Errorf("%s has the label %v", f.GetName(), l)
				}
			}
		}
	}
}

func TestCountersOfAGroupAreStillToldByTheNextDaemon(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "rh.sock")
	s := startConfig(t, Config{SocketPath: socket})
	r := rawGroup(t, s, "moe", 1)[0]
	c := wire.EPCounters{Experts: 4, Tokens: 7}
	c.Routed[3] = 8
	count(t, controlOf(t, r), 1, 0, &c)
	want := epScraped(t, s)
	control := os.NewFile(uintptr(dup(t, r.control)), "control")
	defer func() { _ = control.Close() }()
	s.Close()

	s = startConfig(t, Config{SocketPath: socket})
	again := dialHello(t, s)
	again.back(0, 1, control)
	expect[*wire.Reannounced](again)
	if got := epScraped(t, s); !maps.Equal(got, want) || got["expert_tokens_total 3 moe"] != 8 {
		t.Errorf("scraped %v, want %v", got, want)
	}
}

func TestNothingThatRanksWriteIntoTheirCountersHarmsAScrape(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const world = 2
	m := controlOf(t, rawGroup(t, s, "hostile", world)[0])
	random := rand.New(rand.NewPCG(3, 4))
	fill := func(value func() uint64) {
		counters := wire.PartsOf(world).Counters
		for at := counters.Offset; at < counters.At(world); at += 8 {
			atomic.StoreUint64(m.Word64(at), value())
		}
	}
	for range 10 {
		fill(func() uint64 { return random.Uint64() >> (random.Uint64() % 64) })
		for key, v := range epScraped(t, s) {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Fatalf("%s is %v", key, v)
			}
		}
	}
	fill(func() uint64 { return math.MaxUint64 })
	statusOf(t, s)
	got, experts := epScraped(t, s), 0
	for key, v := range got {
		if expert, ok := strings.CutPrefix(key, "expert_tokens_total "); ok {
			experts++
			if n, err := strconv.Atoi(strings.Fields(expert)[0]); err != nil || n >= wire.MaxExperts || v != 2*float64(math.MaxUint64) {
				t.Fatalf("%s is %v", key, v)
			}
		}
	}
	if experts != wire.MaxExperts {
		t.Errorf("%d experts, the counters have room for %d", experts, wire.MaxExperts)
	}
}

func TestAGroupWithMoreSeriesThanAScrapeHasRoomForIsLeftOutAlone(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const world = metrics.MaxEPSeries/wire.MaxExperts + 1
	m := controlOf(t, rawGroup(t, s, "vast", world)[0])
	c := wire.EPCounters{Experts: wire.MaxExperts}
	for e := range c.Received {
		c.Received[e] = 1
	}
	for r := range world {
		count(t, m, world, r, &c)
	}
	count(t, controlOf(t, rawGroup(t, s, "small", 1)[0]), 1, 0, &wire.EPCounters{Experts: 1, Tokens: 7})
	got := epScraped(t, s)
	if got["groups_left_out"] != 1 || got["tokens_total small 0"] != 7 {
		t.Errorf("%v groups are left out, the small one: %v", got["groups_left_out"], got["tokens_total small 0"])
	}
	for key := range got {
		if strings.Contains(key, "vast") {
			t.Fatalf("the group has %s", key)
		}
	}
}

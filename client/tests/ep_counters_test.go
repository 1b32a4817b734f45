package tests

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"railhead/alltoall"
	"railhead/client"
	"railhead/server"
)

// metrics is the text of the daemon's /metrics.
func metrics(t testing.TB, s *server.Server) string {
	t.Helper()
	reply, done := askDaemon(t, s, "/metrics")
	defer done()
	body, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s, %v", reply.Status, err)
	}
	return string(body)
}

// scrape returns the daemon's metrics by name and labels.
func scrape(t testing.TB, s *server.Server) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for line := range strings.Lines(metrics(t, s)) {
		at := strings.LastIndexByte(line, ' ')
		if n, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); err == nil && at > 0 {
			all[line[:at]] = uint64(n)
		}
	}
	return all
}

// models has the shapes of well-known models.
var models = map[string]client.EPConfig{
	"deepseek-v3":     {Hidden: 7168, NumExperts: 256, TopK: 8, WireDtype: client.FP8E4M3},
	"kimi-k2":         {Hidden: 7168, NumExperts: 384, TopK: 8, WireDtype: client.FP8E4M3, Scale: client.EPScaleUE8M0},
	"qwen3-30b-a3b":   {Hidden: 2048, NumExperts: 128, TopK: 8, WireDtype: client.FP8E4M3},
	"gpt-oss-120b":    {Hidden: 2880, NumExperts: 128, TopK: 4, WireDtype: client.BF16},
	"mixtral-8x7b":    {Hidden: 4096, NumExperts: 8, TopK: 2, WireDtype: client.BF16},
	"mixtral-8x7b ht": {Mode: client.EPHighThroughput, Hidden: 4096, NumExperts: 8, TopK: 2, WireDtype: client.FP8E4M3},
}

func TestCountersEqualTheReferenceAndHeadersAreAtMostFivePercent(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	for name, c := range models {
		const world = 4
		if c.Mode == 0 {
			c.Mode = client.EPLowLatency
		}
		c.Dtype, c.CombineDtype, c.MaxTokensPerRank = client.BF16, client.BF16, 6
		p := playOf(t, c, world, 2)
		p.script = []epStep{{"dispatch", 0}, {"send", 1}, {"recv", 1}, {"combine", 0}, {"combine", 1}}
		ranks, eps := newEPs(t, s, name, p)
		playAll(t, name, p, ranks, eps)
		checkCounters(t, name, p, scrape(t, s))
		for rank, ep := range eps {
			total, local, err := ep.Load()
			wantTotal, wantLocal := p.loads()
			if err != nil || same("total", total, wantTotal) != nil || same("local", local, wantLocal[rank]) != nil {
				t.Errorf("%s: load of rank %d: %v", name, rank, err)
			}
		}
		endEPs(t, ranks, eps)
	}
}

// loads returns each expert's token copies over all rounds: those of all ranks, and those sent by each rank.
func (p *epPlay) loads() (total []uint64, local [][]uint64) {
	total = make([]uint64, len(p.placement.Rank))
	for rank := range p.world {
		local = append(local, make([]uint64, len(total)))
		for i := range p.rounds {
			for e, n := range p.rounds[i].sent[rank].Routing.Loads(p.placement) {
				total[e] += n
				local[rank][e] += n
			}
		}
	}
	return total, local
}

func checkCounters(t testing.TB, group string, p *epPlay, got map[string]uint64) {
	t.Helper()
	check := func(want uint64, format string, args ...any) uint64 {
		t.Helper()
		name := fmt.Sprintf(format, args...)
		if got[name] != want {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
		return got[name]
	}
	var least, headers uint64
	for rank := range p.world {
		var copies, tokens uint64
		payload, header := make([]uint64, p.world), make([]uint64, p.world)
		for i := range p.rounds {
			routing := p.rounds[i].sent[rank].Routing
			tokens += uint64(len(routing.Copies))
			mine := routing.Traffic(p.placement)
			for peer := range p.world {
				copies += mine.Copies[peer]
				payload[peer] += mine.Payload[peer] + p.rounds[i].sent[peer].Routing.Traffic(p.placement).Partials[rank]
				header[peer] += mine.Headers[peer]
				least += mine.Payload[peer]
			}
		}
		for peer := range p.world {
			check(payload[peer], `railhead_ep_bytes_total{group="%s",kind="payload",peer="%d",rank="%d"}`, group, peer, rank)
			headers += check(header[peer], `railhead_ep_bytes_total{group="%s",kind="header",peer="%d",rank="%d"}`, group, peer, rank)
		}
		check(copies, `railhead_ep_copies_total{group="%s",rank="%d"}`, group, rank)
		check(tokens, `railhead_ep_tokens_total{group="%s",rank="%d"}`, group, rank)
		check(2, `railhead_ep_dispatches_total{group="%s",rank="%d"}`, group, rank)
		check(2, `railhead_ep_combines_total{group="%s",rank="%d"}`, group, rank)
	}
	if headers*20 > least || least == 0 {
		t.Errorf("%s: %d bytes of headers for %d bytes of tokens", group, headers, least)
	}
	total, _ := p.loads()
	for e, n := range total {
		check(n, `railhead_ep_expert_tokens_total{expert="%d",group="%s"}`, e, group)
		check(n, `railhead_ep_expert_rows_total{expert="%d",group="%s",rank="%d"}`, e, group, p.placement.Rank[e])
	}
}

func TestTheSameInputGivesTheSameBytesInEveryBufferAndMode(t *testing.T) {
	concurrentOnlyInCpp(t)
	s := startDaemon(t)
	p := drawEPPlay(t, 3, 6)
	if p.world < 2 {
		t.Fatal("the seed draws a world of 1, which would test nothing")
	}
	var first [][]byte
	for i, mode := range []client.EPMode{client.EPLowLatency, client.EPHighThroughput, client.EPLowLatency} {
		p.config.Mode = mode
		bytes, err := client.EPBufferSize(p.config, p.world)
		if err != nil {
			t.Fatal(err)
		}
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint("same ", i), World: p.world, HeapBytes: 2*bytes + 1<<20})
		for range 2 {
			for rank, player := range playAll(t, fmt.Sprint(mode), p, ranks, makeEPs(t, ranks, p.config)) {
				if len(first) <= rank {
					first = append(first, player.record)
				}
				if err := same("results", player.record, first[rank]); err != nil {
					t.Errorf("mode %d, rank %d: %v", mode, rank, err)
				}
			}
		}
		all(t, ranks, finalize)
	}
}

func TestFP8TokensAreWithinTheErrorBound(t *testing.T) {
	s := startDaemon(t)
	for i, c := range epWithFP8() {
		if c.Dtype == client.FP8E4M3 {
			continue // not quantised
		}
		c.Hidden = 300
		p := playOf(t, c, 1, 0)
		ranks, eps := newEPs(t, s, fmt.Sprint("bound ", i), p)
		x := drawNumbers(rand.New(rand.NewPCG(9, uint64(i))), c.Dtype, 4*c.Hidden)
		rows := client.EPRows{Layout: client.EPTokens, Capacity: 4, X: make([]byte, 4*c.Hidden), Scales: make([]byte, 4*p.ref.ScaleBytes())}
		d, err := eps[0].Dispatch(client.EPTokensIn{Tokens: 4, X: x, Idx: []int32{0, -1, 1, 2, 3, 4, 5, 0}}, &rows)
		if err != nil {
			t.Fatal(err)
		}
		checkFP8(t, &p.ref, floatsOf(c.Dtype, x), floatsOf(client.FP8E4M3, rows.X), rows.Scales)
		if err := d.Release(); err != nil {
			t.Fatal(err)
		}
		endEPs(t, ranks, eps)
	}
}

// checkFP8 checks alltoall's bound for the error of each element: max(2^-4 |x|, 2^-10 scale) (1 + 2^-18).
func checkFP8(t testing.TB, ref *alltoall.Config, x, got []float32, scales []byte) {
	t.Helper()
	columns, each := ref.ScaleColumns(), ref.ScaleBytes()/ref.ScaleColumns()
	for i := range x {
		at := (i/ref.Hidden*columns + i%ref.Hidden/alltoall.ScaleBlock) * each
		scale := scaleOf(ref.ScaleFormat, scales[at:][:each])
		value, is := float64(x[i]), float64(got[i])*scale
		if off := math.Abs(is - value); off > max(math.Abs(value)/16, scale/1024)*(1+1.0/(1<<18)) {
			t.Errorf("element %d of token %d: %g became %g, with scale %g", i%ref.Hidden, i/ref.Hidden, value, is, scale)
			return
		}
	}
}

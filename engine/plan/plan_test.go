package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

func forcing(t interface{ Fatal(...any) }, text string) tuner.Forcing {
	f, err := tuner.ParseForcing(text, Algorithms())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func request(t *testing.T, world int, text string) Request {
	r := Request{World: world, Forcing: forcing(t, text), Reproducible: true, Channels: 1}
	for i := range world {
		r.Order = append(r.Order, i)
	}
	return r
}

// text writes a plan as "oneshot:default<16384 twoshot:default".
func text(p *wire.Plan) string {
	var parts []string
	for _, c := range p.Choice[:p.Count] {
		s := fmt.Sprintf("%s:%s", wire.Algo(c.Algo), c.Why)
		if c.BelowBytes != math.MaxUint64 {
			s += fmt.Sprintf("<%d", c.BelowBytes)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

func table(entries ...tuner.Entry) *tuner.Table {
	return &tuner.Table{Version: tuner.TableVersion, Fingerprint: "test", Entries: entries}
}

func ranges(r ...any) (out []tuner.Range) {
	for i := 0; i < len(r); i += 2 {
		out = append(out, tuner.Range{FromBytes: uint64(r[i].(int)), Algorithm: r[i+1].(string)})
		if i > 0 {
			out[len(out)-2].ToBytes = out[len(out)-1].FromBytes
		}
	}
	return out
}

func TestPlans(t *testing.T) {
	tuned := table(
		tuner.Entry{Collective: "allreduce", WorldSize: 4, Memory: "any", Ranges: ranges(0, "oneshot", 4096, "ring", 1<<20, "twoshot")},
		tuner.Entry{Collective: "allreduce", WorldSize: 4, Memory: "window", Ranges: ranges(0, "oneshot", 8192, "pull", 1<<20, "ring")},
	)
	unforced := "only" // why an all-to-all copies by one-shot
	if len(wire.OpAllToAll.Algorithms()) > 2 {
		unforced = "default"
	}
	for _, c := range []struct {
		what             string
		world            int
		forcing          string
		anyOrder         bool
		table            *tuner.Table
		index            int
		copied, zeroCopy string
	}{
		{"defaults", 4, "", false, nil, wire.PlanAllReduce, "oneshot:default<16384 twoshot:default", "auto:none<32768 pull:default"},
		{"two ranks are never two-shot", 2, "auto", false, nil, wire.PlanAllReduce, "oneshot:default", "auto:none<32768 pull:default"},
		{"an all-gather's size is that of all parts", 4, "", false, nil, wire.PlanAllGather, "oneshot:default", "auto:none<131072 pull:default"},
		{"an operation that only copies", 4, "", false, nil, wire.PlanAllToAll, "oneshot:" + unforced, "auto:none<32768 pull:default"},
		{"no zero-copy form", 4, "", false, nil, wire.PlanBroadcast, "pipe:default", "auto:none"},
		{"measured", 4, "", false, tuned, wire.PlanAllReduce, "oneshot:tuned<4096 ring:tuned<1048576 twoshot:tuned", "auto:none<8192 pull:tuned<1048576 auto:none"},
		{"measured with other worlds", 3, "", false, tuned, wire.PlanAllReduce, "oneshot:default<16384 twoshot:default", "auto:none<32768 pull:default"},
		{"measured, but forbidden", 4, "^ring", false, tuned, wire.PlanAllReduce,
			"oneshot:tuned<4096 oneshot:default<16384 twoshot:default<1048576 twoshot:tuned", "auto:none<8192 pull:tuned<1048576 pull:default"},
		{"the default is forbidden", 4, "^twoshot,pull", false, nil, wire.PlanAllReduce, "oneshot:default<16384 oneshot:forced", "auto:none"},
		{"forced", 4, "ring", false, tuned, wire.PlanAllReduce, "ring:forced", "auto:none"},
		{"forced, but not an algorithm of this operation", 4, "tree", false, nil, wire.PlanAllToAll, "oneshot:" + unforced, "auto:none<32768 pull:default"},
		{"only pull", 4, "pull", false, nil, wire.PlanAllReduce, "oneshot:not_zero_copy<16384 twoshot:not_zero_copy", "pull:forced"},
		{"pull alone is forced", 4, "pull", false, nil, wire.PlanReduceScatter, "oneshot:not_zero_copy", "pull:forced"},
		{"a tree is not mixed with others", 4, "tree,oneshot", false, nil, wire.PlanAllReduce, "oneshot:forced", "auto:none"},
		{"nor is a classic ring", 4, "ring,oneshot", true, nil, wire.PlanAllReduce, "oneshot:forced", "auto:none"},
		{"a classic ring alone", 4, "ring", true, nil, wire.PlanAllReduce, "ring:forced", "auto:none"},
		{"a measured chain is no classic ring", 4, "", true, tuned, wire.PlanAllReduce,
			"oneshot:tuned<4096 oneshot:default<16384 twoshot:default<1048576 twoshot:tuned", "auto:none<8192 pull:tuned<1048576 pull:default"},
	} {
		r := request(t, c.world, c.forcing)
		r.Reproducible, r.Table = !c.anyOrder, c.table
		p, err := Make(r)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if got := text(&p.Copied[c.index]); got != c.copied {
			t.Errorf("%s: copied: got %s, want %s", c.what, got, c.copied)
		}
		if got := text(&p.ZeroCopy[c.index]); got != c.zeroCopy {
			t.Errorf("%s: between windows: got %s, want %s", c.what, got, c.zeroCopy)
		}
	}
}

// With more ranks than processors, waits make fewer polls before they yield, a turn in which other ranks run is longer, and on a busy
// processor waits sleep at once.
func TestPlansSayHowRanksWait(t *testing.T) {
	for cpus, polls := range map[int]uint32{1: 8, 2: 8, 3: 8, 4: 64, 5: 64} {
		r := request(t, 4, "")
		r.CPUs = cpus
		p, err := Make(r)
		if err != nil {
			t.Fatal(err)
		}
		if p.PollsPerTurn != polls {
			t.Errorf("4 ranks, %d processors: %d polls a turn, want %d", cpus, p.PollsPerTurn, polls)
		}
		sharing := map[int]uint32{1: 4, 2: 2, 3: 2, 4: 1, 5: 1}[cpus] // ranks of a processor
		if p.LongTurnNS != sharing*1_000_000 || (p.BusySpinNS == 0) != (sharing > 1) || p.BusyNS != BusyNS || p.BusyMostNS != BusyMostNS {
			t.Errorf("4 ranks, %d processors: a turn is long from %d ns on, the processor busy for %d to %d ns, waits then spin for %d ns",
				cpus, p.LongTurnNS, p.BusyNS, p.BusyMostNS, p.BusySpinNS)
		}
		if p.RecheckNS != RecheckNS || p.EPDeathCheckNS != EPDeathCheckNS || p.EPWaiterDeadlines != EPWaiterDeadlines ||
			p.EPStreamAboveBytes != EPStreamAboveBytes/4 {
			t.Errorf("waits every %d and %d ns, %d deadlines, streams above %d bytes: not the constants of this package", p.RecheckNS,
				p.EPDeathCheckNS, p.EPWaiterDeadlines, p.EPStreamAboveBytes)
		}
	}
}

func TestATurnIsLongAfter4MsHoweverManyRanksShareAProcessor(t *testing.T) {
	if got := LongTurnNS(64, 2); got != 4_000_000 {
		t.Errorf("64 ranks on 2 processors: %d ns", got)
	}
}

func TestWrongRequestsAreErrors(t *testing.T) {
	for what, spoil := range map[string]func(*Request){
		"no ranks":                 func(r *Request) { r.World, r.Order = 0, nil },
		"a ring that is too short": func(r *Request) { r.Order = r.Order[1:] },
		"a rank twice":             func(r *Request) { r.Order[0] = 1 },
		"an unknown rank":          func(r *Request) { r.Order[0] = 4 },
		"no channel":               func(r *Request) { r.Channels = 0 },
		"too many channels":        func(r *Request) { r.Channels = wire.MaxChannels + 1 },
		"too many ranges": func(r *Request) {
			var many []any
			for i := range wire.MaxChoices + 1 {
				many = append(many, i*100_000, []string{"oneshot", "ring"}[i%2])
			}
			r.Table = table(tuner.Entry{Collective: "allreduce", WorldSize: 4, Memory: "any", Ranges: ranges(many...)})
		},
	} {
		r := request(t, 4, "")
		spoil(&r)
		if _, err := Make(r); err == nil || !strings.Contains(err.Error(), "plan: ") {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// For any forced algorithms and any table, a plan covers all sizes, has a forbidden algorithm only if no other can run, and never mixes
// orders of addition.
func TestPlansCoverAllSizesWithAllowedAlgorithmsOfOneOrder(t *testing.T) {
	names := Algorithms()["allreduce"]
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, len(names)-1, rapid.ID).Draw(t, "algorithms")
		f, err := tuner.ParseForcing("allreduce:"+rapid.SampledFrom([]string{"", "^"}).Draw(t, "how")+strings.Join(list, ","), Algorithms())
		if err != nil {
			t.Fatal(err)
		}
		r := Request{World: rapid.IntRange(2, 64).Draw(t, "world"), Forcing: f, Reproducible: rapid.Bool().Draw(t, "reproducible"), Channels: 1}
		r.Order = rapid.Permutation(identity(r.World)).Draw(t, "order")
		var measured []any
		for i := range rapid.IntRange(1, 5).Draw(t, "ranges") {
			measured = append(measured, i*10_000, rapid.SampledFrom(names).Draw(t, "measured"))
		}
		r.Table = table(tuner.Entry{Collective: "allreduce", WorldSize: r.World, Memory: rapid.SampledFrom([]tuner.Memory{tuner.AnyMemory, tuner.InWindows}).Draw(t, "memory"),
			Ranges: ranges(measured...)})
		p, err := Make(r)
		if err != nil {
			t.Fatal(err)
		}
		orders := map[bool]bool{}
		allowed := map[string]bool{}
		for _, a := range f.Allowed("allreduce") {
			allowed[a] = true
		}
		for _, size := range []uint64{0, 1, 9_999, 10_000, 16 << 10, 32 << 10, 45_000, 1 << 40, math.MaxUint64} {
			a, why := Choose(&p.Copied[wire.PlanAllReduce], size)
			if a == wire.AlgoAuto || a.Windows() || !allowed[a.String()] && why != wire.WhyNotZeroCopy {
				t.Fatalf("%d bytes: %s (%s), allowed are %v", size, a, why, allowed)
			}
			orders[a.Adds() == wire.OwnOrder || a.Adds() == wire.ChainOrder && !r.Reproducible] = true
			if z, _ := Choose(&p.ZeroCopy[wire.PlanAllReduce], size); z != wire.AlgoAuto && (!z.Windows() || !allowed[z.String()]) {
				t.Fatalf("%d bytes between windows: %s", size, z)
			} else if z != wire.AlgoAuto {
				orders[false] = true
			}
		}
		if len(orders) > 1 {
			t.Fatalf("%s: orders of addition are mixed: %s, %s", f, text(&p.Copied[0]), text(&p.ZeroCopy[0]))
		}
	})
}

func TestEveryCollectiveHasAnAlgorithmThatCopiesAndOthersHaveTheTunersName(t *testing.T) {
	for _, c := range collectives {
		copies := 0
		for _, a := range c.algorithms() {
			if a.Windows() && a.String() != tuner.WindowAlgorithm {
				t.Errorf("%s: %s runs between windows, the tuner calls such a one %s", c.name(), a, tuner.WindowAlgorithm)
			} else if !a.Windows() {
				copies++
			}
		}
		if fallback := c.fallback(); len(fallback) != copies || copies == 0 {
			t.Errorf("%s: falls back to %v", c.name(), fallback)
		}
	}
}

func identity(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

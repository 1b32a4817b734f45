package group

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"railhead/engine/plan"
	"railhead/engine/topo"
	"railhead/engine/tuner"
	"railhead/internal/gpus"
	"railhead/internal/wire"
	"railhead/server/membership"
)

var noLog = slog.New(slog.DiscardHandler)

func thisMachine(t *testing.T) string {
	t.Helper()
	g, err := gpus.ReadMachine()
	if err != nil {
		t.Fatal(err)
	}
	return g.Fingerprint()
}

// saved writes a table of this machine, right or wrong, into a directory of its own.
func saved(t *testing.T, ranges []tuner.Range) (dir string) {
	t.Helper()
	return savedEntries(t, tuner.Entry{Collective: "allreduce", WorldSize: 3, Memory: tuner.AnyMemory, Ranges: ranges})
}

func savedEntries(t *testing.T, entries ...tuner.Entry) (dir string) {
	t.Helper()
	dir = t.TempDir()
	table := tuner.Table{Version: tuner.TableVersion, Fingerprint: thisMachine(t), Entries: entries}
	raw, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, table.Fingerprint+".json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func allReducePlan(t *testing.T, p *planner) *wire.Plan {
	t.Helper()
	plans, err := p.plansOf(membership.CreateGroup{World: 3, Forcing: "auto", Reproducible: true, CPUs: make([]wire.CPUMask, 3)})
	if err != nil {
		t.Fatal(err)
	}
	return &plans[0].Copied[wire.PlanAllReduce]
}

func TestATableOfThisMachineDecides(t *testing.T) {
	dir := saved(t, []tuner.Range{{FromBytes: 0, ToBytes: 1000, Algorithm: "twoshot"}, {FromBytes: 1000, Algorithm: "ring"}})
	p := newPlanner(dir, noLog)
	chosen := allReducePlan(t, p)
	if a, why := plan.Choose(chosen, 999); a != wire.AlgoTwoshot || why != wire.WhyTuned {
		t.Errorf("999 bytes: %s (%s)", a, why)
	}
	if a, why := plan.Choose(chosen, 1000); a != wire.AlgoRing || why != wire.WhyTuned {
		t.Errorf("1000 bytes: %s (%s)", a, why)
	}
	if i := p.info(); i.Entries != 1 || i.Refused != "" || i.Fingerprint == "" {
		t.Errorf("got %+v", i)
	}
}

func TestAnUnusableTableIsReportedAndIgnored(t *testing.T) {
	var many []tuner.Range
	for i := range tuner.MaxRanges + 1 {
		many = append(many, tuner.Range{FromBytes: uint64(i) * 100, ToBytes: uint64(i+1) * 100, Algorithm: []string{"ring", "oneshot"}[i%2]})
	}
	many[len(many)-1].ToBytes = 0
	torn := saved(t, []tuner.Range{{Algorithm: "ring"}})
	if err := os.WriteFile(filepath.Join(torn, thisMachine(t)+".json"), []byte(`{"version": 2, "finger`), 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{torn: "railhead tune", saved(t, many): "measure fewer sizes", t.TempDir(): ""} {
		p := newPlanner(dir, noLog)
		if i := p.info(); i.Entries != 0 || !strings.Contains(i.Refused, want) || (want == "") != (i.Refused == "") {
			t.Errorf("%s: got %+v, want %q", dir, i, want)
		}
		if a, why := plan.Choose(allReducePlan(t, p), 1000); a != wire.AlgoOneshot || why != wire.WhyDefault {
			t.Errorf("%s: %s (%s)", dir, a, why)
		}
	}
}

func TestNoisyEntriesAreUsedWithAWarningOnlyIfMarked(t *testing.T) {
	entry := tuner.Entry{Collective: "allreduce", WorldSize: 3, Memory: tuner.AnyMemory, Spread: 0.84, Gain: 1214, Ranges: []tuner.Range{{Algorithm: "ring"}}}
	for _, marked := range []bool{false, true} {
		entry.Noisy = marked
		var text bytes.Buffer
		p := newPlanner(savedEntries(t, entry), slog.New(slog.NewTextHandler(&text, nil)))
		a, why := plan.Choose(allReducePlan(t, p), 1000)
		i := p.info()
		if marked {
			if a != wire.AlgoRing || why != wire.WhyTuned || i.Entries != 1 || i.Noisy != 1 || i.Refused != "" {
				t.Errorf("marked: %s (%s), %+v", a, why, i)
			}
			if !strings.Contains(text.String(), "level=WARN") || !strings.Contains(text.String(), "--allow-noisy") {
				t.Errorf("marked: %s", &text)
			}
			continue
		}
		if a != wire.AlgoOneshot || why != wire.WhyDefault || i.Entries != 0 || !strings.Contains(i.Refused, "84 %") {
			t.Errorf("not marked: %s (%s), %+v", a, why, i)
		}
		if !strings.Contains(text.String(), "level=ERROR") || !strings.Contains(text.String(), "--allow-noisy") {
			t.Errorf("not marked: %s", &text)
		}
	}
}

func TestRingsFollowWhereRanksMayRun(t *testing.T) {
	f, err := os.Open("../../engine/topo/testdata/pcie-two-socket.xml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	g, err := topo.ReadXML(f)
	if err != nil {
		t.Fatal(err)
	}
	on := func(cpu int) (m wire.CPUMask) {
		m[cpu/64] |= 1 << (cpu % 64)
		return m
	}
	p := &planner{machine: &gpus.Machine{Graph: g}}
	apart := false // whether a CPU of the other package was found
	for cpu := 1; cpu < 256 && !apart; cpu++ {
		apart = slices.Equal(p.order([]wire.CPUMask{on(0), on(cpu), on(0), on(cpu)}), []int{0, 2, 1, 3})
	}
	if !apart {
		t.Error("ranks pinned to two packages in turn: no ring puts neighbours together")
	}
	if got := p.order(make([]wire.CPUMask, 4)); !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Errorf("ranks with unknown affinity: ring %v", got)
	}
	if got := (&planner{}).order([]wire.CPUMask{on(1), on(0)}); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("a machine that could not be read: ring %v", got)
	}
}

func TestAGroupOnCUDADevicesHasPlansOfTheCPUToo(t *testing.T) {
	p := &planner{}
	a := membership.CreateGroup{
		World: 2, Forcing: "oneshot", Reproducible: true, CPUs: make([]wire.CPUMask, 2), Device: wire.DeviceCUDA,
		GPUs: []membership.GPU{{UUID: wire.UUID{1}, Multiprocessors: 10}, {UUID: wire.UUID{1}, Multiprocessors: 10}},
	}
	plans, err := p.plansOf(a)
	if err != nil || len(plans) != 2 || plans[0].Device != wire.DeviceCPU || plans[1].Device != wire.DeviceCUDA {
		t.Fatalf("%d plans, %v", len(plans), err)
	}
	last := func(p *wire.Plan) wire.Choice { return p.Choice[p.Count-1] }
	if c := last(&plans[1].Copied[wire.PlanAllReduce]); wire.Algo(c.Algo) != wire.AlgoOneshot || c.Why != wire.WhyForced || c.Blocks != 5 {
		t.Errorf("on the GPUs: %+v", c)
	}
	if c := last(&plans[0].Copied[wire.PlanAllReduce]); c.Why == wire.WhyForced || c.Blocks != 0 {
		t.Errorf("on the CPUs: %+v", c)
	}
	if a.Forcing = "ring"; err == nil {
		if _, err = p.plansOf(a); err == nil || !strings.Contains(err.Error(), "there are copy, oneshot") {
			t.Errorf("an algorithm that GPUs do not have: %v", err)
		}
	}
	if _, err := checkForcing(wire.DeviceCUDA, "ring"); err == nil {
		t.Error("an algorithm that GPUs do not have is accepted")
	}
	if _, err := checkForcing(wire.DeviceCPU, "ring"); err != nil {
		t.Error(err)
	}
}

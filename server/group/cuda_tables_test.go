package group

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/gpus"
	"railhead/internal/wire"
	"railhead/server/membership"
)

// onOneGPU are ranks that share a GPU which NVML does not show.
func onOneGPU(ranks int) membership.CreateGroup {
	a := membership.CreateGroup{World: ranks, Forcing: "auto", Reproducible: true, CPUs: make([]wire.CPUMask, ranks), Device: wire.DeviceCUDA}
	for range ranks {
		a.GPUs = append(a.GPUs, membership.GPU{UUID: wire.UUID{1}, Multiprocessors: 132, Architecture: 90})
	}
	return a
}

func modelOf(t *testing.T, ranks int) string {
	t.Helper()
	machine, err := gpus.ReadMachine()
	if err != nil {
		t.Fatal(err)
	}
	members := make([]gpus.Member, ranks)
	for i := range members {
		members[i] = gpus.Member{UUID: wire.UUID{1}.String(), SM: 90, Multiprocessors: 132}
	}
	return gpus.GroupOf(&machine, members).Model
}

func TestATableOfCUDADevicesDecidesForItsModelAndNumberOfRanks(t *testing.T) {
	dir := t.TempDir()
	model := modelOf(t, 4)
	table := tuner.Table{Version: tuner.TableVersion, Fingerprint: tuner.CUDAPrefix + model, Entries: []tuner.Entry{{
		Collective: "allreduce", WorldSize: 4, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: "twoshot", Blocks: 7, Threads: 96}}}}}
	if err := table.Save(dir, plan.TableAlgorithms(wire.DeviceCUDA)); err != nil {
		t.Fatal(err)
	}
	p := newPlanner(dir, noLog)
	if i := p.info(); len(i.CUDA) != 1 || i.CUDA[0] != (CUDA{Fingerprint: table.Fingerprint, Entries: 1}) {
		t.Errorf("%+v", i.CUDA)
	}
	first := func(a membership.CreateGroup) wire.Choice {
		plans, err := p.plansOf(a)
		if err != nil {
			t.Fatal(err)
		}
		return plans[1].Copied[wire.PlanAllReduce].Choice[0]
	}
	if c := first(onOneGPU(4)); wire.Algo(c.Algo) != wire.AlgoTwoshot || c.Why != wire.WhyTuned || c.Blocks != 7 || c.Threads != 96 {
		t.Errorf("%+v", c)
	}
	other := onOneGPU(4)
	other.GPUs[3].UUID = wire.UUID{2} // three on one GPU, one on another
	small := onOneGPU(4)
	for i := range small.GPUs {
		small.GPUs[i].Multiprocessors = 100
	}
	for what, a := range map[string]membership.CreateGroup{"other ranks": onOneGPU(2), "other GPUs": other, "smaller GPUs": small} {
		if c := first(a); c.Why != wire.WhyDefault {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

func TestAnUnusableTableOfCUDADevicesIsReportedAndIgnored(t *testing.T) {
	dir := t.TempDir()
	name := tuner.CUDAPrefix + modelOf(t, 2)
	if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(`{"version": 2`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlanner(dir, noLog)
	if i := p.info(); len(i.CUDA) != 1 || i.CUDA[0].Fingerprint != name || !strings.Contains(i.CUDA[0].Refused, "railhead tune") {
		t.Errorf("%+v", i.CUDA)
	}
	if _, err := p.plansOf(onOneGPU(2)); err != nil {
		t.Error(err)
	}
}

// A table that comes with Railhead has three entries; the user has one of them, of another algorithm, and a collective of their own.
func TestAUsersEntriesComeBeforeThoseOfATableThatComesWithRailhead(t *testing.T) {
	dir := t.TempDir()
	model := modelOf(t, 2)
	entry := func(collective, algorithm string) tuner.Entry {
		return tuner.Entry{Collective: collective, WorldSize: 2, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: algorithm, Blocks: 7, Threads: 96}}}
	}
	user := tuner.Table{Version: tuner.TableVersion, Fingerprint: tuner.CUDAPrefix + model}
	user.Replace([]tuner.Entry{entry("allreduce", "oneshot"), entry("alltoall", "pipe")})
	if err := user.Save(dir, plan.TableAlgorithms(wire.DeviceCUDA)); err != nil {
		t.Fatal(err)
	}
	p := newPlanner(dir, noLog)
	p.cuda.shipped = func(fingerprint string) (*tuner.Table, error) {
		table := &tuner.Table{Version: tuner.TableVersion, Fingerprint: fingerprint}
		table.Replace([]tuner.Entry{entry("allreduce", "twoshot"), entry("broadcast", "pipe"), entry("allgather", "pipe")})
		return table, nil
	}
	for range 2 { // a later group has the same
		plans, err := p.plansOf(onOneGPU(2))
		if err != nil {
			t.Fatal(err)
		}
		for index, want := range map[int]wire.Algo{wire.PlanAllReduce: wire.AlgoOneshot, wire.PlanAllToAll: wire.AlgoPipe, wire.PlanBroadcast: wire.AlgoPipe, wire.PlanAllGather: wire.AlgoPipe} {
			if c := plans[1].Copied[index].Choice[0]; wire.Algo(c.Algo) != want || c.Why != wire.WhyTuned || c.Blocks != 7 {
				t.Errorf("plan %d: %+v, want %s", index, c, want)
			}
		}
	}
	if c := p.cuda.of(model); len(c.Entries) != 4 || len(p.cuda.byModel[model].Entries) != 2 {
		t.Errorf("%d entries, the user's %d", len(c.Entries), len(p.cuda.byModel[model].Entries))
	}
	p.cuda.shipped = func(string) (*tuner.Table, error) { return nil, errors.New("spoilt") }
	if c := p.cuda.of(model); c == nil || len(c.Entries) != 2 {
		t.Errorf("a spoilt table: %+v", c)
	}
}

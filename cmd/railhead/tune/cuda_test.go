package tune

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// cudaTuning is a tuning of two ranks that can run 66 blocks each, with the times of a function for each case of three rounds.
func cudaTuning(t *testing.T, ops string, timeUs func(c algoCase, round int, bytes uint64) float64) *tuning {
	t.Helper()
	p, err := planOf(&flags{ops: ops, ranks: "2", sizes: cli.Sweep{Min: "1K", Max: "1M", Factor: 4}}, wire.DeviceCUDA, 2)
	if err != nil {
		t.Fatal(err)
	}
	p.Blocks = []int{66}
	tune := newTuning(p, nil, nil, time.Second, io.Discard)
	tune.fingerprint = tuner.CUDAPrefix + "test"
	for round := 1; round <= minRounds; round++ {
		for c, sizes := range p.points() {
			for _, bytes := range sizes {
				ran := c.Algorithm
				if !c.timed() {
					ran = "oneshot"
				}
				tune.points = append(tune.points, point{algoCase: c, Round: round, Bytes: bytes, TimeUs: timeUs(c, round, bytes), Ran: ran})
			}
		}
	}
	return tune
}

// Two-shot with 512 threads a block is twice as fast as all others from 64 KiB on, pull with 128 threads three times from 256 KiB on. The default takes
// 100 us.
func someGrids(c algoCase, _ int, bytes uint64) float64 {
	switch {
	case c.Algorithm == "twoshot" && c.Threads == 512 && bytes >= 64<<10:
		return 50
	case c.Algorithm == "pull" && c.Threads == 128 && bytes >= 256<<10:
		return 33
	}
	return 100
}

func TestTheFastestAlgorithmsAndGridsOfGPUsAreChosen(t *testing.T) {
	tune := cudaTuning(t, "allreduce", someGrids)
	r, err := tune.report()
	if err != nil || len(r.Entries) != 2 || r.Rounds != minRounds || r.Spread != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	entries := r.tableEntries()
	table := &tuner.Table{Version: tuner.TableVersion, Fingerprint: tune.fingerprint, Entries: entries}
	if err := table.Check(plan.TableAlgorithms(wire.DeviceCUDA)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		memory    tuner.Memory
		size      uint64
		algorithm string
		threads   int
		gain      float64
	}{
		{tuner.AnyMemory, 1 << 10, "oneshot", 64, 1}, {tuner.AnyMemory, 16 << 10, "oneshot", 64, 1}, {tuner.AnyMemory, 64 << 10, "twoshot", 512, 2},
		{tuner.AnyMemory, 1 << 20, "twoshot", 512, 2}, {tuner.InWindows, 16 << 10, "oneshot", 64, 1}, {tuner.InWindows, 64 << 10, "twoshot", 512, 2},
		{tuner.InWindows, 256 << 10, "pull", 128, 100.0 / 33}, {tuner.InWindows, 1 << 20, "pull", 128, 100.0 / 33},
	} {
		ranges, _ := table.Ranges("allreduce", 2, c.memory)
		got, _ := tuner.RangeFor(ranges, c.size)
		if got.Algorithm != c.algorithm || got.Threads != c.threads {
			t.Errorf("%s, %d bytes: %+v, want %s with %d threads", c.memory, c.size, got, c.algorithm, c.threads)
		}
		e := r.Entries[slices.IndexFunc(r.Entries, func(e Entry) bool { return e.Memory == c.memory })]
		at := e.Sizes[slices.IndexFunc(e.Sizes, func(s Size) bool { return s.Bytes == c.size })]
		if at.Gain != c.gain || at.Default != "oneshot" {
			t.Errorf("%s, %d bytes: %+v, want a gain of %.2f", c.memory, c.size, at, c.gain)
		}
	}
	var text strings.Builder
	if err := r.write(&text); err != nil || !strings.Contains(text.String(), "pull 66x128") {
		t.Errorf("%v: %s", err, &text)
	}
}

// From 256 KiB on, buffers in no window are copied to windows, whatever the table says.
func TestSizesAtWhichSumsAreStagedKeepTheirDefault(t *testing.T) {
	tune := cudaTuning(t, "allreduce", someGrids)
	for i, p := range tune.points {
		if p.Memory == tuner.AnyMemory && p.Bytes >= 256<<10 {
			tune.points[i].Ran, tune.points[i].TimeUs = "pull", 40
		}
	}
	r, err := tune.report()
	if err != nil || len(r.Entries) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	table := &tuner.Table{Version: tuner.TableVersion, Fingerprint: tune.fingerprint, Entries: r.tableEntries()}
	if err := table.Check(plan.TableAlgorithms(wire.DeviceCUDA)); err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Entries {
		for _, at := range e.Sizes {
			staged := e.Memory == tuner.AnyMemory && at.Bytes >= 256<<10
			if staged != (at.Algorithm == "pull" && at.Default == "pull" && at.Gain == 1) {
				t.Errorf("%s, %d bytes: %+v", e.Memory, at.Bytes, at)
			}
		}
	}
}

// What the default ran, its time, that of the same algorithm with the default's grid, and that of the candidate.
func TestADefaultIsReplacedOnlyByWhatIsClearlyFaster(t *testing.T) {
	for _, c := range []struct {
		name                        string
		memory                      tuner.Memory
		ran                         string
		byDefault, usual, candidate float64
		chosen, want                string
	}{
		{"a gain of 4 %", tuner.AnyMemory, "oneshot", 100, 100, 96, "twoshot/2", "oneshot/0"},
		{"a gain of 25 %", tuner.AnyMemory, "oneshot", 100, 100, 80, "twoshot/2", "twoshot/2"},
		{"a loss", tuner.InWindows, "pull", 90, 90, 100, "oneshot/1", "pull/0"},
		{"a table that comes with Railhead has another grid", tuner.AnyMemory, "oneshot", 100, 130, 98, "twoshot/2", "twoshot/2"},
		{"copy engines in place of pull", tuner.InWindows, "copy", 50, 0, 100, "oneshot/1", "pull/0"},
		{"a copy that is faster than copy engines", tuner.InWindows, "copy", 200, 0, 100, "oneshot/1", "oneshot/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tune := cudaTuning(t, "allreduce", someGrids)
			s := setting{"allreduce", 2, c.memory}
			times, ran := map[pointKey][]float64{}, map[pointKey]string{}
			for _, size := range tune.plan.sizes(s) {
				key := pointKey{algoCase: algoCase{setting: s, Algorithm: defaultChoice}, bytes: size}
				times[key], ran[key] = []float64{c.byDefault}, c.ran
				for name, us := range map[string]float64{c.want: c.usual, c.ran + "/0": c.usual, c.chosen: c.candidate} {
					if v, err := tune.plan.variantOf(s, name); err == nil && us > 0 {
						for _, memory := range []tuner.Memory{tuner.AnyMemory, c.memory} {
							times[pointKey{algoCase: tune.plan.cudaCase(setting{"allreduce", 2, memory}, v, size), bytes: size}] = []float64{us}
						}
					}
				}
			}
			got := tune.unlessDefault(s, []tuner.Range{{Algorithm: c.chosen}}, []tuner.Range{{Algorithm: "oneshot/1"}}, times, ran)
			if len(got) != 1 || got[0].Algorithm != c.want || got[0].FromBytes != 0 || got[0].ToBytes != 0 {
				t.Errorf("%+v, want %s", got, c.want)
			}
		})
	}
}

// All sizes for any memory are staged: the table has an entry for windows only.
func TestAnEntryIsMadeOnlyOfWhatWasMeasured(t *testing.T) {
	tune := cudaTuning(t, "allreduce", someGrids)
	for i, p := range tune.points {
		if p.Memory == tuner.AnyMemory {
			tune.points[i].Ran = "pull"
		}
	}
	r, err := tune.report()
	if err != nil || len(r.Entries) != 1 || r.Entries[0].Memory != tuner.InWindows {
		t.Fatalf("%+v, %v", r, err)
	}
}

// Copy engines ran in place of pull from 256 KiB on. The entry has pull there, which does not keep them from running.
func TestCopyEnginesKeepThePlaceOfPull(t *testing.T) {
	tune := cudaTuning(t, "broadcast", func(c algoCase, _ int, _ uint64) float64 { return 100 })
	for i, p := range tune.points {
		if p.Memory == tuner.InWindows && p.Bytes >= 256<<10 && (p.Algorithm == "pull" || !p.timed()) {
			tune.points[i].Ran, tune.points[i].TimeUs = "copy", 50
		}
	}
	r, err := tune.report()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r.tableEntries() {
		if got, _ := tuner.AlgorithmFor(e.Ranges, 1<<20); e.Memory == tuner.InWindows && got != "pull" {
			t.Errorf("1 MiB: %s", got)
		}
	}
}

func TestTimesOfGPUsThatDifferBetweenRoundsAreDoubted(t *testing.T) {
	tune := cudaTuning(t, "allreduce", func(c algoCase, round int, bytes uint64) float64 {
		if c.Algorithm == "pull" && round > 1 {
			return 130
		}
		return someGrids(c, round, bytes)
	})
	r, err := tune.report()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Entries {
		if (e.Doubt != "") != (e.Memory == tuner.InWindows) {
			t.Errorf("%s: spread %.2f, %q", e.Memory, e.Spread, e.Doubt)
		}
	}
}

// A table that makes ranks measure a variant is valid, and has it for every size.
func TestTheTablesOfVariantsAreValid(t *testing.T) {
	tune := cudaTuning(t, allCollectives, someGrids)
	algorithms := map[string]bool{}
	for _, v := range tune.plan.allVariants() {
		table, err := tune.plan.table(v, tune.fingerprint)
		if err == nil {
			err = table.Check(plan.TableAlgorithms(wire.DeviceCUDA))
		}
		if err != nil || len(table.Entries) == 0 {
			t.Fatalf("%s: %v, %+v", v, err, table)
		}
		for _, e := range table.Entries {
			for _, r := range e.Ranges {
				if r.Algorithm != v.algorithm {
					t.Errorf("%s: %+v", v, e)
				}
				algorithms[e.Collective+" "+r.Algorithm] = true
			}
		}
	}
	for collective, all := range plan.TableAlgorithms(wire.DeviceCUDA) {
		for _, a := range all {
			if !algorithms[collective+" "+a] {
				t.Errorf("no variant measures %s by %s", collective, a)
			}
		}
	}
}

// No kernel is measured twice in a round, and every candidate of every size is.
func TestEachGridOfGPUsIsMeasuredOnce(t *testing.T) {
	tune := cudaTuning(t, allCollectives, someGrids)
	p := tune.plan
	points := p.points()
	for _, s := range p.cudaSettings() {
		for _, v := range p.variants(s) {
			for _, size := range p.sizes(s) {
				n := 0
				for _, of := range points[p.cudaCase(s, v, size)] {
					if of == size {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%s, %s, %d bytes: measured %d times", s, v, size, n)
				}
			}
		}
	}
}

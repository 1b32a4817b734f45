package tune

import (
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/tunetest"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/ncclstyle"
	"railhead/internal/wire"
)

func TestRanksGoUpToTheProcessors(t *testing.T) {
	for processors, want := range map[int][]int{1: {2}, 2: {2}, 3: {2}, 8: {2, 4, 8}, 48: {2, 4, 8, 16, 32}, 256: {2, 4, 8, 16, 32, 64}} {
		if got, err := parseRanks("", processors); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d processors: %v, %v; want %v", processors, got, err, want)
		}
	}
	if got, err := parseRanks("8,2,3", 2); err != nil || !slices.Equal(got, []int{2, 3, 8}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAPlanNeverHasAnAlgorithmThatAddsInAnotherOrder(t *testing.T) {
	flags := flags{ops: "allgather,allreduce,alltoall,broadcast,reducescatter", ranks: "2,3", sizes: cli.Sweep{Min: "1000", Max: "9000", Factor: 3}}
	plan, err := planOf(&flags, wire.DeviceCPU, runtime.NumCPU())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[algoCase]bool{}
	for _, c := range plan.cases(1) {
		if seen[c] || c.operation().Reduces() && c.Algorithm == "tree" || c.Algorithm == "pull" && c.Memory != tuner.InWindows {
			t.Errorf("%s", c)
		}
		seen[c] = true
		for _, size := range plan.sizes(c.setting) {
			op := c.operation()
			if size == 0 || op.Bytes(op.Count(size, dtype, c.Ranks), dtype, c.Ranks) != size {
				t.Errorf("%s: %d bytes cannot be measured", c, size)
			}
		}
	}
	if later := plan.cases(2); len(later) != len(seen)-2*tunetest.EntriesOfAll() {
		t.Errorf("%d cases, in the first round %d", len(later), len(seen))
	}
}

func TestAWrongElementOrAnotherAlgorithmFailsTheTune(t *testing.T) {
	plan, err := planOf(&smallFlags, wire.DeviceCPU, runtime.NumCPU())
	if err != nil {
		t.Fatal(err)
	}
	header := journalHeader{Fingerprint: "f", Plan: *plan}
	j, _, err := openJournal(filepath.Join(t.TempDir(), "f.journal"), header, false)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	tune := newTuning(plan, j, nil, time.Second, io.Discard)
	c := algoCase{setting: setting{"allreduce", 2, tuner.AnyMemory}, Algorithm: "twoshot"}
	row := func(algo string, wrong int64) ncclstyle.Row {
		return ncclstyle.Row{SizeBytes: 1024, Algo: algo, OutOfPlace: ncclstyle.Side{TimeUs: 1, Wrong: &wrong}}
	}
	if err := tune.take(c, 1, row("twoshot", 3)); err == nil || !strings.Contains(err.Error(), "3 elements of the result are wrong at 1024 bytes") {
		t.Error(err)
	}
	if err := tune.take(c, 1, row("oneshot", 0)); err == nil || !strings.Contains(err.Error(), "at 1024 bytes oneshot ran instead") {
		t.Error(err)
	}
	if len(tune.points) != 0 {
		t.Errorf("points %v", tune.points)
	}
	if err := tune.take(c, 1, row("twoshot", 0)); err != nil || len(tune.points) != 1 {
		t.Errorf("points %v, %v", tune.points, err)
	}
}

func TestTheRemainingTimeIsThatOfTheRounds(t *testing.T) {
	schedule, err := planOf(&smallFlags, wire.DeviceCPU, runtime.NumCPU())
	if err != nil {
		t.Fatal(err)
	}
	timed := time.Duration(2*len(plan.Interchangeable("allreduce")) - 1) // cases: pull only between windows, the others there and in any memory
	tune := newTuning(schedule, nil, nil, time.Second, io.Discard)
	tune.ran = 10
	for _, c := range []struct {
		round, runs int
		budget      time.Duration
		want        time.Duration
	}{
		{1, 5, 0, 10 * (5 + 2*timed)}, {3, 1, 0, 10}, {1, 5, time.Hour, 10 * (5 + 8*timed)}, {2, 7, 400 * time.Second, 300}, {9, 2, time.Hour, 20},
	} {
		// Ten runs in 100 s.
		if got := tune.left(100*time.Second, c.round, c.runs, int(timed), c.budget); got != c.want*time.Second {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestSizesAreNamedInTheirUnit(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0 B", 1: "1 B", 1000: "1000 B", 1024: "1 KiB", 1536: "1536 B", 65536: "64 KiB",
		1 << 24: "16 MiB", 1 << 52: "4096 TiB"} {
		if got := sizeName(bytes); got != want {
			t.Errorf("%d: %s, not %s", bytes, got, want)
		}
	}
}

func TestBetweenWindowsTheChoiceIsPullOrTheCopyOfAnyMemory(t *testing.T) {
	copies := []tuner.Range{{ToBytes: 4096, Algorithm: "oneshot"}, {FromBytes: 4096, ToBytes: 65536, Algorithm: "twoshot"}, {FromBytes: 65536, Algorithm: "ring"}}
	setting := setting{"allreduce", 4, tuner.InWindows}
	pull := func(below, from16K float64) func(uint64) float64 {
		return func(bytes uint64) float64 {
			if bytes < 16384 {
				return below
			}
			return from16K
		}
	}
	for _, c := range []struct {
		what   string
		pull   func(bytes uint64) float64 // us; the copying algorithm of any memory takes 10, the others 1
		ranges []tuner.Range
	}{
		{"never", pull(20, 20), copies},
		{"always", pull(5, 5), []tuner.Range{{Algorithm: "pull"}}},
		{"from a size on", pull(20, 5), []tuner.Range{
			{ToBytes: 4096, Algorithm: "oneshot"}, {FromBytes: 4096, ToBytes: 16384, Algorithm: "twoshot"}, {FromBytes: 16384, Algorithm: "pull"},
		}},
		{"up to a size", pull(5, 20), []tuner.Range{
			{ToBytes: 16384, Algorithm: "pull"}, {FromBytes: 16384, ToBytes: 65536, Algorithm: "twoshot"}, {FromBytes: 65536, Algorithm: "ring"},
		}},
	} {
		var measured []tuner.Measurement
		for bytes := uint64(1024); bytes <= 1<<20; bytes *= 2 {
			here, _ := tuner.AlgorithmFor(copies, bytes)
			for _, algorithm := range setting.algorithms() {
				m := tuner.Measurement{Algorithm: algorithm, Bytes: bytes, TimeUs: 1}
				switch algorithm {
				case here:
					m.TimeUs = 10
				case "pull":
					m.TimeUs = c.pull(bytes)
				}
				measured = append(measured, m)
			}
		}
		if got, err := rangesOf(setting, measured, copies); err != nil || !slices.Equal(got, c.ranges) {
			t.Errorf("pull is faster %s: %+v, %v; want %+v", c.what, got, err, c.ranges)
		}
	}
}

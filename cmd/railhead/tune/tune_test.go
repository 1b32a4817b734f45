package tune

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/tunetest"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/wire"
	"railhead/server"
)

// state is a directory for tables, which the command uses.
type state struct{ tunetest.State }

func newState(t *testing.T) state {
	t.Helper()
	s := tunetest.New(t)
	t.Setenv("XDG_STATE_HOME", s.Home)
	return state{s}
}

// tune runs the command here, which measures nothing if the journal is complete.
func (s state) tune(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out, errs strings.Builder
	cmd.SetArgs(append([]string{"--op", "allreduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-f", "4", "--time", "0s"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err := cmd.ExecuteContext(context.Background())
	if err == nil {
		return 0, out.String(), errs.String()
	}
	var e *cli.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v has no exit status", err)
	}
	return e.Status, out.String(), errs.String() + err.Error()
}

// smallFlags are those of small, as the command reads them.
var smallFlags = flags{ops: "allreduce", ranks: "2", sizes: cli.Sweep{Min: "1K", Max: "4K", Factor: 4}}

// journalOf writes a journal whose points have the times of a function, in us, for as many rounds as a tune has at least.
func (s state) journalOf(t *testing.T, flags flags, change func(*journalHeader), timeUs func(c algoCase, round int, bytes uint64) float64) {
	t.Helper()
	p, err := planOf(&flags, wire.DeviceCPU, runtime.NumCPU())
	if err != nil {
		t.Fatal(err)
	}
	header := journalHeader{Railhead: server.Version, Fingerprint: s.Fingerprint, Plan: *p}
	if change != nil {
		change(&header)
	}
	f, err := os.Create(s.Journal())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	enc := json.NewEncoder(f)
	err = enc.Encode(header)
	for round := 1; round <= minRounds; round++ {
		for _, c := range p.cases(round) {
			for _, bytes := range p.sizes(c.setting) {
				point := point{algoCase: c, Round: round, Bytes: bytes, TimeUs: timeUs(c, round, bytes), Ran: c.Algorithm}
				if !c.timed() {
					point.Ran = "oneshot"
				}
				if err == nil {
					err = enc.Encode(point)
				}
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// someTimes: from 16 KiB on two-shot is twice as fast in any memory; from 64 KiB on pull is faster by a quarter. Round 2 is an outlier.
func someTimes(c algoCase, round int, bytes uint64) float64 {
	us := float64(bytes) / 1024
	switch {
	case round == 2:
		return 100 * us
	case c.Algorithm == "twoshot" && bytes >= 16384 && c.Memory == tuner.AnyMemory:
		return us / 2
	case c.Algorithm == "pull" && bytes >= 65536:
		return us / 1.25
	case c.Algorithm == "oneshot":
		return us
	}
	return 1.01 * us
}

func TestTheTableFollowsFromTheMediansOfTheJournal(t *testing.T) {
	s := newState(t)
	other := tuner.Entry{Collective: "allgather", WorldSize: 2, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: "ring"}}}
	old := tuner.Entry{Collective: "allreduce", WorldSize: 2, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: "ring"}}}
	was := tuner.Table{Version: tuner.TableVersion, Fingerprint: s.Fingerprint, Entries: []tuner.Entry{other, old}}
	if err := was.Save(s.Dir, plan.Algorithms()); err != nil {
		t.Fatal(err)
	}
	flags := smallFlags
	flags.sizes.Max = "256K"
	s.journalOf(t, flags, nil, someTimes)
	status, stdout, stderr := s.tune(t, "-e", "256K")
	want := `collective  ranks  memory  from    algorithm  default  gain
allreduce   2      any     0 B     oneshot    oneshot  1.00
allreduce   2      any     16 KiB  twoshot    oneshot  2.00
allreduce   2      window  0 B     oneshot    oneshot  1.00
allreduce   2      window  16 KiB  twoshot    oneshot  0.99
allreduce   2      window  64 KiB  pull       oneshot  1.25
gain: time of the default / time of the algorithm, medians of 3 rounds, geometric mean over the sizes
half of the times vary by 0 % or more between rounds
saved in ` + filepath.Join(s.Dir, s.Fingerprint+".json") + "\n"
	if status != 0 || stdout != want || strings.Contains(stderr, "tune: round") || strings.Contains(stderr, "warning") {
		t.Fatalf("status %d, %s\n%s\nwant\n%s", status, stderr, stdout, want)
	}
	table := s.Table(t)
	if len(table.Entries) != 3 { // what was not measured stays
		t.Errorf("entries %+v", table.Entries)
	}
	if ranges, ok := table.Ranges("allreduce", 2, tuner.AnyMemory); !ok || !slices.Equal(ranges, []tuner.Range{
		{ToBytes: 16384, Algorithm: "oneshot"}, {FromBytes: 16384, Algorithm: "twoshot"},
	}) {
		t.Errorf("ranges %+v", ranges)
	}
	if got := s.Files(t); !slices.Equal(got, []string{".json"}) {
		t.Errorf("files %v", got)
	}
}

// busyTimes are the times of a tune with four ranks on two processors, beside three loops that never wait; testdata/busy.journal has its points.
// An algorithm that has been added since takes twice as long in two rounds of three as in the other.
func busyTimes(t *testing.T) func(algoCase, int, uint64) float64 {
	t.Helper()
	f, err := os.Open("testdata/busy.journal")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	times := map[pointKey]float64{}
	for d := json.NewDecoder(f); ; {
		var p point
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		times[pointKey{p.algoCase, p.Round, p.Bytes}] = p.TimeUs
	}
	return func(c algoCase, round int, bytes uint64) float64 {
		us, ok := times[pointKey{c, round, bytes}]
		if _, recorded := times[pointKey{c, 1, 1024}]; c.timed() && !recorded {
			return 1000 * float64(min(round, 2))
		}
		if !ok && c.timed() {
			t.Fatalf("no point of %s, round %d, %d bytes", c, round, bytes)
		}
		return max(us, 1) // of what is not timed, anything
	}
}

func TestMeasurementsThatCannotBeTrustedAreNotSavedUnlessAllowed(t *testing.T) {
	// One round takes twice as long in ordinary memory; the median over rounds 1, x and x is x times the least.
	spread := func(x float64) func(algoCase, int, uint64) float64 {
		return func(c algoCase, round int, _ uint64) float64 {
			if c.Memory == tuner.AnyMemory && round > 1 {
				return 100 * x
			}
			return 100
		}
	}
	// The default, oneshot, was interrupted at one size in all rounds.
	gain := func(x float64) func(algoCase, int, uint64) float64 {
		return func(c algoCase, _ int, bytes uint64) float64 {
			if c.Memory == tuner.AnyMemory && c.Algorithm == "oneshot" && bytes == 4096 {
				return 100 * x
			}
			return map[string]float64{"oneshot": 101}[c.Algorithm] + 100
		}
	}
	fourRanks := flags{ops: "allreduce", ranks: "4", sizes: cli.Sweep{Min: "1K", Max: "64K", Factor: 4}}
	for _, c := range []struct {
		name    string
		flags   flags
		args    []string
		times   func(algoCase, int, uint64) float64
		refused []string // nil: saved
		noisy   int      // of two entries
	}{
		{"alike", smallFlags, nil, spread(1), nil, 0},
		{"25 %", smallFlags, nil, spread(1.25), nil, 0},
		{"26 %", smallFlags, nil, spread(1.26), []string{`allreduce with 2 ranks in memory "any": half of its times vary by 26 %`, "at most 25 %"}, 1},
		{"84 %", smallFlags, nil, spread(1.84), []string{"84 %"}, 1},
		{"a gain of 50", smallFlags, nil, gain(50), nil, 0},
		{"a gain of 1214", smallFlags, nil, gain(1214), []string{`memory "any": at one size the default takes 1214 times as long`, "at most 50 times"}, 1},
		{"recorded on a busy machine", fourRanks, []string{"--ranks", "4", "-e", "64K"}, busyTimes(t),
			[]string{`allreduce with 4 ranks in memory "any": half of its times vary by `, `memory "window": half of its times vary by `, "at most 25 %"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newState(t)
			s.journalOf(t, c.flags, nil, c.times)
			status, stdout, stderr := s.tune(t, c.args...)
			if c.refused == nil {
				if status != 0 || strings.Contains(stderr, "warning") || s.Table(t).Noisy() != 0 {
					t.Errorf("status %d: %s", status, stderr)
				}
				return
			}
			for _, w := range append(c.refused, "not saved", "idle machine", "--force", "--time", "--allow-noisy") {
				if !strings.Contains(stderr, w) {
					t.Errorf("lacks %q: %s", w, stderr)
				}
			}
			if status != cli.Failed || !strings.HasSuffix(stdout, "\nnot saved\n") || !slices.Equal(s.Files(t), []string{".journal"}) {
				t.Errorf("status %d, files %v, %s", status, s.Files(t), stdout)
			}
			// Nothing is measured again.
			status, stdout, stderr = s.tune(t, append(c.args, "--allow-noisy")...)
			if status != 0 || !strings.Contains(stderr, "warning") || !strings.Contains(stderr, c.refused[0]) || strings.Contains(stderr, "tune: round") {
				t.Errorf("allowed: status %d: %s", status, stderr)
			}
			if n := s.Table(t).Noisy(); n != c.noisy || !strings.Contains(stdout, "\nsaved in ") || !slices.Equal(s.Files(t), []string{".json"}) {
				t.Errorf("allowed: %d noisy entries, files %v, %s", n, s.Files(t), stdout)
			}
		})
	}
}

// Entries that are measured anew on an idle machine lose their mark.
func TestGoodMeasurementsReplaceNoisyOnes(t *testing.T) {
	s := newState(t)
	s.journalOf(t, smallFlags, nil, func(_ algoCase, round int, _ uint64) float64 { return float64(round) })
	if status, _, stderr := s.tune(t, "--allow-noisy"); status != 0 || s.Table(t).Noisy() != 2 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	s.journalOf(t, smallFlags, nil, someTimes)
	if status, _, stderr := s.tune(t); status != 0 || s.Table(t).Noisy() != 0 || len(s.Table(t).Entries) != 2 {
		t.Errorf("status %d: %s", status, stderr)
	}
}

func TestATableThatCannotBeReadIsReplacedWithAWarning(t *testing.T) {
	s := newState(t)
	if err := os.WriteFile(filepath.Join(s.Dir, s.Fingerprint+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.journalOf(t, smallFlags, nil, someTimes)
	status, _, stderr := s.tune(t)
	if status != 0 || !strings.Contains(stderr, "warning: replacing a table") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if table := s.Table(t); len(table.Entries) != 2 {
		t.Errorf("entries %+v", table.Entries)
	}
}

// The journal of a run that failed before its first point has nothing to lose, so any other run replaces it.
func TestAJournalOfAnotherRunWithoutPointsIsReplaced(t *testing.T) {
	s := newState(t)
	s.journalOf(t, smallFlags, func(h *journalHeader) { h.Plan.ToBytes = 8192 }, someTimes)
	header := s.Lines()[0]
	if err := os.WriteFile(s.Journal(), []byte(header), 0o600); err != nil {
		t.Fatal(err)
	}
	want := headerOf(t, header)
	want.Plan.ToBytes = 4096
	j, points, err := openJournal(s.Journal(), want, false)
	if err != nil || len(points) != 0 {
		t.Fatalf("%d points, %v", len(points), err)
	}
	j.close()
	if lines := s.Lines(); len(lines) != 1 || !reflect.DeepEqual(headerOf(t, lines[0]), want) {
		t.Errorf("the journal has %q", lines)
	}
}

func TestAJournalOfAnotherRunIsRefusedUntilForced(t *testing.T) {
	s := newState(t)
	for name, c := range map[string]struct {
		change func(*journalHeader)
		want   string
	}{
		"machine":    {func(h *journalHeader) { h.Fingerprint = "1p-other" }, "on another machine, 1p-other"},
		"version":    {func(h *journalHeader) { h.Railhead = "0.0.0-old" }, "by version 0.0.0-old"},
		"sizes":      {func(h *journalHeader) { h.Plan.ToBytes = 8192 }, "with other flags"},
		"processors": {func(h *journalHeader) { h.Plan.Processors += 3 }, "with other flags"},
	} {
		s.journalOf(t, smallFlags, c.change, someTimes)
		before := s.Lines()
		status, stdout, stderr := s.tune(t)
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--force") {
			t.Errorf("%s: status %d, %s", name, status, stderr)
		}
		if !slices.Equal(s.Lines(), before) || !slices.Equal(s.Files(t), []string{".journal"}) {
			t.Errorf("%s: files %v, or the journal was changed", name, s.Files(t))
		}
	}
	header := headerOf(t, s.Lines()[0])
	header.Plan.Processors = 1
	j, points, err := openJournal(s.Journal(), header, true)
	if err != nil || len(points) != 0 {
		t.Fatalf("forced: %d points, %v", len(points), err)
	}
	j.close()
	if lines := s.Lines(); len(lines) != 1 || !reflect.DeepEqual(headerOf(t, lines[0]), header) {
		t.Errorf("forced: the journal has %q", lines)
	}
}

func TestAnInvalidLineOfTheJournalIsRefused(t *testing.T) {
	s := newState(t)
	s.journalOf(t, smallFlags, nil, someTimes)
	good := s.Lines()
	point := `{"collective":"allreduce","ranks":2,"memory":"any","algorithm":"ring","round":1,"bytes":1024,"time_us":1,"ran":"ring"}`
	for from, to := range map[string]string{
		`"time_us":1`: `"time_us":-1`, `"round":1`: `"round":10`, `"bytes":1024`: `"bytes":1000`, `"ran":"ring"`: `"ran":"oneshot"`,
		`"algorithm":"ring"`: `"algorithm":"tree"`, `"ranks":2`: `"ranks":4`, `"memory":"any"`: `"memory":""`, `{"collective"`: `{"more":1,"collective"`,
		`allreduce`: `allgather`, `{`: `nonsense`,
	} {
		bad := strings.Replace(point, from, to, 1)
		text := strings.Join(append(slices.Clone(good[:4]), bad+"\n"), "")
		if err := os.WriteFile(s.Journal(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := openJournal(s.Journal(), headerOf(t, good[0]), false)
		if err == nil || !strings.Contains(err.Error(), "line 5: ") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := os.WriteFile(s.Journal(), []byte(strings.Join(good[:4], "")+point+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j, points, err := openJournal(s.Journal(), headerOf(t, good[0]), false)
	if err != nil || len(points) != 4 {
		t.Fatalf("the valid line: %d points, %v", len(points), err)
	}
	j.close()
}

func headerOf(t *testing.T, line string) (h journalHeader) {
	t.Helper()
	if err := json.Unmarshal([]byte(line), &h); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestTwoTunesDoNotWriteIntoOneJournal(t *testing.T) {
	s := newState(t)
	s.journalOf(t, smallFlags, nil, someTimes)
	header := headerOf(t, s.Lines()[0])
	first, _, err := openJournal(s.Journal(), header, false)
	if err != nil {
		t.Fatal(err)
	}
	status, _, stderr := s.tune(t, "--force")
	if status != cli.Failed || !strings.Contains(stderr, "another `railhead tune`") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if err := first.remove(); err != nil {
		t.Fatal(err)
	}
	if got := s.Files(t); len(got) != 0 {
		t.Errorf("files %v", got)
	}
}

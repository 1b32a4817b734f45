package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"railhead/engine/plan"
	"railhead/engine/topo"
	"railhead/engine/tuner"
	"railhead/internal/ncclstyle"
	"railhead/server"
)

// tuneState is a directory for tables, and what names this machine's files in it.
type tuneState struct {
	env         []string
	dir         string
	fingerprint string
}

func newTuneState(t *testing.T) tuneState {
	t.Helper()
	g, err := topo.ReadMachine(os.DirFS("/"))
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	// With the race detector each of the many ranks would wait for a second before it ends.
	env := []string{"XDG_STATE_HOME=" + state, "GORACE=atexit_sleep_ms=0"}
	s := tuneState{env: env, dir: filepath.Join(state, "railhead", "tune"), fingerprint: g.Fingerprint()}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s tuneState) journal() string { return filepath.Join(s.dir, s.fingerprint+".journal") }

// files lists the directory.
func (s tuneState) files(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimPrefix(e.Name(), s.fingerprint))
	}
	return names
}

func (s tuneState) table(t *testing.T) *tuner.Table {
	t.Helper()
	table, err := tuner.LoadTable(s.dir, s.fingerprint, plan.Algorithms())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// lines are the whole lines of the journal; none while there is no journal.
func (s tuneState) lines() []string {
	raw, _ := os.ReadFile(s.journal())
	lines := strings.SplitAfter(string(raw), "\n")
	return lines[:len(lines)-1]
}

// small measures little: two sizes of one collective, in three rounds; long measures for some seconds, unless it goes on after
// three rounds and is not given the time.
var small = []string{"tune", "--op", "allreduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-f", "4", "--time", "0s"}
var long = []string{"tune", "--ranks", "2", "-b", "1K", "-e", "64K", "-f", "4", "--time", "1h"}

// settingsOfAll are the entries of one number of ranks: two of a collective, but for all-to-all, which copies in one way, and
// broadcast, which always copies.
const settingsOfAll = 2*5 - 2

func TestTuneMeasuresEveryAlgorithmAndSavesATable(t *testing.T) {
	s := newTuneState(t)
	status, stdout, stderr := run(t, s.env, "tune", "--ranks", "3", "-b", "1K", "-e", "4K", "-f", "4", "--time", "0s", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r tuneReport
	decodeStrict(t, stdout, &r)
	if r.Rounds != minTuneRounds || r.Fingerprint != s.fingerprint || len(r.Entries) != settingsOfAll {
		t.Errorf("%d rounds of %s, %d entries", r.Rounds, r.Fingerprint, len(r.Entries))
	}
	table := s.table(t)
	for _, e := range r.Entries {
		want := slices.Sorted(slices.Values(tuneSetting{e.Collective, e.WorldSize, e.Memory}.algorithms()))
		if len(e.Sizes) != 2 {
			t.Errorf("%s of %d in %s: %d sizes", e.Collective, e.WorldSize, e.Memory, len(e.Sizes))
		}
		for _, size := range e.Sizes {
			if got := slices.Sorted(maps.Keys(size.TimeUs)); !slices.Equal(got, want) {
				t.Errorf("%s of %d in %s: measured %v, not %v", e.Collective, e.WorldSize, e.Memory, got, want)
			}
			if chosen, _ := table.Choose(e.Collective, e.WorldSize, e.Memory, size.Bytes); chosen != size.Algorithm {
				t.Errorf("%s of %d in %s, %d bytes: the table has %q, the report %q", e.Collective, e.WorldSize, e.Memory, size.Bytes, chosen, size.Algorithm)
			}
			if size.Gain != size.TimeUs[size.Default]/size.TimeUs[size.Algorithm] || !(size.Gain > 0) {
				t.Errorf("%s of %d in %s: %+v", e.Collective, e.WorldSize, e.Memory, size)
			}
		}
	}
	if got := s.files(t); !slices.Equal(got, []string{".json"}) {
		t.Errorf("files %v", got)
	}
	if !strings.Contains(stderr, "round 1, run 2 of 32, about ") || !strings.Contains(stderr, "round 3, run 24 of 24, about ") {
		t.Errorf("no progress in\n%s", stderr)
	}
}

func TestATuneThatWasKilledGoesOnWhereItWas(t *testing.T) {
	s := newTuneState(t)
	c := start(t, s.env, long...)
	eventually(t, "some points of the journal", func() bool { return len(s.lines()) > 6 })
	ranks := children(c.cmd.Process.Pid)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if status := c.wait(t); status != 128+int(syscall.SIGKILL) {
		t.Fatalf("status %d: %s", status, c.stderr.String())
	}
	for rank, pid := range ranks {
		eventually(t, "a rank ends with the command", func() bool {
			env, err := os.ReadFile("/proc/" + itoa(pid) + "/environ") // empty of a zombie
			return err != nil || !strings.Contains(string(env), "RANK="+itoa(rank)+"\x00")
		})
	}
	before := s.lines()
	f, err := os.OpenFile(s.journal(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err1 := f.WriteString(`{"collective":"allreduce","ra`) // what a crash of the machine may leave
	if err := f.Close(); err1 != nil || err != nil {
		t.Fatal(err1, err)
	}
	if got := s.files(t); !slices.Equal(got, []string{".journal"}) {
		t.Errorf("files after the kill: %v", got)
	}
	status, stdout, stderr := run(t, s.env, append(long, "--time", "0s", "--json")...)
	if status != 0 || !strings.Contains(stderr, "going on after "+itoa(len(before)-1)+" points") {
		t.Fatalf("status %d: %s", status, stderr)
	}
	if strings.Contains(stderr, "round 1, run 1 of") {
		t.Errorf("it began again:\n%s", stderr)
	}
	var r tuneReport
	decodeStrict(t, stdout, &r)
	if len(r.Entries) != settingsOfAll || len(r.Entries[0].Sizes) != 4 || r.Rounds != minTuneRounds {
		t.Errorf("got %+v", r)
	}
	if got := s.files(t); !slices.Equal(got, []string{".json"}) {
		t.Errorf("files %v", got)
	}
}

func TestAnInterruptedTuneSavesNoTableAndSaysHowToGoOn(t *testing.T) {
	s := newTuneState(t)
	c := start(t, s.env, long...)
	eventually(t, "some points of the journal", func() bool { return len(s.lines()) > 3 })
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if status := c.wait(t); status != exitFailed || !strings.Contains(c.stderr.String(), "start again to go on") {
		t.Errorf("status %d: %s", status, c.stderr.String())
	}
	if got := s.files(t); !slices.Equal(got, []string{".journal"}) || c.stdout.String() != "" {
		t.Errorf("files %v, stdout %s", got, c.stdout.String())
	}
}

// smallFlags are those of small, as the command reads them.
var smallFlags = tuneFlags{ops: "allreduce", ranks: "2", minBytes: "1K", maxBytes: "4K", factor: 4}

// journalOf writes a journal whose points have the times of a function, in us, for as many rounds as a tune has at least.
func (s tuneState) journalOf(t *testing.T, flags tuneFlags, change func(*journalHeader), timeUs func(c tuneCase, round int, bytes uint64) float64) {
	t.Helper()
	p, err := planOf(&flags)
	if err != nil {
		t.Fatal(err)
	}
	header := journalHeader{Railhead: server.Version, Fingerprint: s.fingerprint, Plan: *p}
	if change != nil {
		change(&header)
	}
	f, err := os.Create(s.journal())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	enc := json.NewEncoder(f)
	err = enc.Encode(header)
	for round := 1; round <= minTuneRounds; round++ {
		for _, c := range p.cases(round) {
			for _, bytes := range p.sizes(c.tuneSetting) {
				point := tunePoint{tuneCase: c, Round: round, Bytes: bytes, TimeUs: timeUs(c, round, bytes), Ran: c.Algorithm}
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

// Two-shot is twice as fast from 16 KiB on, in ordinary memory; pull is faster by a quarter from 64 KiB on. One round in three is odd.
func someTimes(c tuneCase, round int, bytes uint64) float64 {
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
	s := newTuneState(t)
	other := tuner.Entry{Collective: "allgather", WorldSize: 2, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: "ring"}}}
	old := tuner.Entry{Collective: "allreduce", WorldSize: 2, Memory: tuner.AnyMemory, Ranges: []tuner.Range{{Algorithm: "ring"}}}
	was := tuner.Table{Version: tuner.TableVersion, Fingerprint: s.fingerprint, Entries: []tuner.Entry{other, old}}
	if err := was.Save(s.dir, plan.Algorithms()); err != nil {
		t.Fatal(err)
	}
	flags := smallFlags
	flags.maxBytes = "256K"
	s.journalOf(t, flags, nil, someTimes)
	status, stdout, stderr := run(t, s.env, append(small, "-e", "256K")...)
	want := `collective  ranks  memory  from    algorithm  by default  gain
allreduce   2      any     0 B     oneshot    oneshot     1.00
allreduce   2      any     16 KiB  twoshot    oneshot     2.00
allreduce   2      window  0 B     oneshot    oneshot     1.00
allreduce   2      window  16 KiB  twoshot    oneshot     0.99
allreduce   2      window  64 KiB  pull       oneshot     1.25
gain: the default's time over that of the algorithm, geometric mean of the sizes; medians of 3 rounds,
which differ by 0 %
saved in ` + filepath.Join(s.dir, s.fingerprint+".json") + "\n"
	if status != 0 || stdout != want || strings.Contains(stderr, "tune: round") || strings.Contains(stderr, "warning") {
		t.Fatalf("status %d, %s\n%s\nwant\n%s", status, stderr, stdout, want)
	}
	table := s.table(t)
	if len(table.Entries) != 3 { // what was not measured stays
		t.Errorf("entries %+v", table.Entries)
	}
	if ranges, ok := table.Ranges("allreduce", 2, tuner.AnyMemory); !ok || !slices.Equal(ranges, []tuner.Range{
		{ToBytes: 16384, Algorithm: "oneshot"}, {FromBytes: 16384, Algorithm: "twoshot"},
	}) {
		t.Errorf("ranges %+v", ranges)
	}
	if got := s.files(t); !slices.Equal(got, []string{".json"}) {
		t.Errorf("files %v", got)
	}
}

func TestWhatTunedSavesIsWhatRunsButNotWhileItMeasures(t *testing.T) {
	s := newTuneState(t)
	s.journalOf(t, smallFlags, nil, func(c tuneCase, _ int, _ uint64) float64 {
		if c.Algorithm == "twoshot" {
			return 1
		}
		return 2
	})
	if status, _, stderr := run(t, s.env, small...); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	status, stdout, stderr := run(t, s.env, "bench", "allreduce", "-b", "4K", "-e", "4K", "-n", "1", "--json")
	var b ncclstyle.Report
	decodeStrict(t, stdout, &b)
	if status != 0 || len(b.Rows) != 1 || b.Rows[0].Algo != "twoshot" || b.Rows[0].Why != "tuned" {
		t.Errorf("bench: status %d, %+v, %s", status, b, stderr)
	}
	status, stdout, stderr = run(t, s.env, append(small, "--json")...)
	var r tuneReport
	decodeStrict(t, stdout, &r)
	if status != 0 || r.Entries[0].Sizes[0].Default != "oneshot" {
		t.Errorf("tune: status %d, %+v, %s", status, r, stderr)
	}
}

func TestRoundsThatDifferAreAWarning(t *testing.T) {
	s := newTuneState(t)
	s.journalOf(t, smallFlags, nil, func(_ tuneCase, round int, bytes uint64) float64 { return float64(round) * float64(bytes) })
	status, stdout, stderr := run(t, s.env, small...)
	if status != 0 || !strings.Contains(stderr, "warning: half of the times differ by 100 %") || !strings.Contains(stdout, "which differ by 100 %") {
		t.Errorf("status %d, %s\n%s", status, stderr, stdout)
	}
}

func TestATableThatCannotBeReadIsReplacedWithAWarning(t *testing.T) {
	s := newTuneState(t)
	if err := os.WriteFile(filepath.Join(s.dir, s.fingerprint+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.journalOf(t, smallFlags, nil, someTimes)
	status, _, stderr := run(t, s.env, small...)
	if status != 0 || !strings.Contains(stderr, "warning: a new table takes the place") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if table := s.table(t); len(table.Entries) != 2 {
		t.Errorf("entries %+v", table.Entries)
	}
}

// A run that failed before its first point leaves nothing that another one could lose.
func TestAJournalOfAnotherRunWithoutPointsIsNoObstacle(t *testing.T) {
	s := newTuneState(t)
	s.journalOf(t, smallFlags, func(h *journalHeader) { h.Plan.ToBytes = 8192 }, someTimes)
	header := s.lines()[0]
	if err := os.WriteFile(s.journal(), []byte(header), 0o600); err != nil {
		t.Fatal(err)
	}
	want := headerOf(t, header)
	want.Plan.ToBytes = 4096
	j, points, err := openJournal(s.journal(), want, false)
	if err != nil || len(points) != 0 {
		t.Fatalf("%d points, %v", len(points), err)
	}
	j.close()
	if lines := s.lines(); len(lines) != 1 || !reflect.DeepEqual(headerOf(t, lines[0]), want) {
		t.Errorf("the journal has %q", lines)
	}
}

func TestAJournalOfAnotherRunIsRefusedUntilForced(t *testing.T) {
	s := newTuneState(t)
	for name, c := range map[string]struct {
		change func(*journalHeader)
		want   string
	}{
		"machine":    {func(h *journalHeader) { h.Fingerprint = "1p-other" }, "of another machine, 1p-other"},
		"version":    {func(h *journalHeader) { h.Railhead = "0.0.0-old" }, "of version 0.0.0-old"},
		"sizes":      {func(h *journalHeader) { h.Plan.ToBytes = 8192 }, "of other parameters"},
		"processors": {func(h *journalHeader) { h.Plan.Processors += 3 }, "of other parameters"},
	} {
		s.journalOf(t, smallFlags, c.change, someTimes)
		before := s.lines()
		status, stdout, stderr := run(t, s.env, small...)
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--force") {
			t.Errorf("%s: status %d, %s", name, status, stderr)
		}
		if !slices.Equal(s.lines(), before) || !slices.Equal(s.files(t), []string{".journal"}) {
			t.Errorf("%s: files %v, or the journal was changed", name, s.files(t))
		}
	}
	status, _, stderr := run(t, s.env, append(small, "--force")...)
	if status != 0 || strings.Contains(stderr, "going on") || !slices.Equal(s.files(t), []string{".json"}) {
		t.Errorf("--force: status %d, %s, files %v", status, stderr, s.files(t))
	}
}

func TestALineOfTheJournalThatMakesNoSenseIsRefused(t *testing.T) {
	s := newTuneState(t)
	s.journalOf(t, smallFlags, nil, someTimes)
	good := s.lines()
	point := `{"collective":"allreduce","ranks":2,"memory":"any","algorithm":"ring","round":1,"bytes":1024,"time_us":1,"ran":"ring"}`
	for from, to := range map[string]string{
		`"time_us":1`: `"time_us":-1`, `"round":1`: `"round":10`, `"bytes":1024`: `"bytes":1000`, `"ran":"ring"`: `"ran":"oneshot"`,
		`"algorithm":"ring"`: `"algorithm":"tree"`, `"ranks":2`: `"ranks":4`, `"memory":"any"`: `"memory":""`, `{"collective"`: `{"more":1,"collective"`,
		`allreduce`: `allgather`, `{`: `nonsense`,
	} {
		bad := strings.Replace(point, from, to, 1)
		text := strings.Join(append(slices.Clone(good[:4]), bad+"\n"), "")
		if err := os.WriteFile(s.journal(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := openJournal(s.journal(), headerOf(t, good[0]), false)
		if err == nil || !strings.Contains(err.Error(), "line 5: ") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := os.WriteFile(s.journal(), []byte(strings.Join(good[:4], "")+point+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j, points, err := openJournal(s.journal(), headerOf(t, good[0]), false)
	if err != nil || len(points) != 4 {
		t.Fatalf("the line as it should be: %d points, %v", len(points), err)
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
	s := newTuneState(t)
	s.journalOf(t, smallFlags, nil, someTimes)
	header := headerOf(t, s.lines()[0])
	first, _, err := openJournal(s.journal(), header, false)
	if err != nil {
		t.Fatal(err)
	}
	status, _, stderr := run(t, s.env, append(small, "--force")...)
	if status != exitFailed || !strings.Contains(stderr, "another `railhead tune`") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if err := first.remove(); err != nil {
		t.Fatal(err)
	}
	if got := s.files(t); len(got) != 0 {
		t.Errorf("files %v", got)
	}
}

package tuner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const tableText = `{
  "version": 2,
  "fingerprint": "2x8-nvlink",
  "entries": [
    {
      "collective": "allgather",
      "world_size": 8,
      "memory": "any",
      "spread": 0.04,
      "ranges": [
        {"from_bytes": 0, "algorithm": "ring"}
      ]
    },
    {
      "collective": "allreduce",
      "world_size": 4,
      "memory": "any",
      "spread": 0.25,
      "gain": 1.5,
      "ranges": [
        {"from_bytes": 0, "to_bytes": 65536, "algorithm": "oneshot"},
        {"from_bytes": 65536, "to_bytes": 1048576, "algorithm": "twoshot"},
        {"from_bytes": 1048576, "algorithm": "ring"}
      ]
    },
    {
      "collective": "allreduce",
      "world_size": 4,
      "memory": "window",
      "ranges": [
        {"from_bytes": 0, "to_bytes": 32768, "algorithm": "oneshot"},
        {"from_bytes": 32768, "algorithm": "pull"}
      ]
    },
    {
      "collective": "allreduce",
      "world_size": 16,
      "memory": "any",
      "spread": 0.9,
      "gain": 1214,
      "noisy": true,
      "ranges": [
        {"from_bytes": 0, "algorithm": "tree"}
      ]
    }
  ]
}
`

func parsedTable(t *testing.T) *Table {
	t.Helper()
	table, err := ParseTable([]byte(tableText), someAlgorithms)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestATableChoosesByCollectiveWorldSizeMemoryAndBytes(t *testing.T) {
	table := parsedTable(t)
	for _, c := range []struct {
		collective string
		world      int
		memory     Memory
		bytes      uint64
		want       string
	}{
		{"allreduce", 4, AnyMemory, 0, "oneshot"},
		{"allreduce", 4, AnyMemory, 65535, "oneshot"},
		{"allreduce", 4, AnyMemory, 65536, "twoshot"},
		{"allreduce", 4, AnyMemory, 1048575, "twoshot"},
		{"allreduce", 4, AnyMemory, 1048576, "ring"},
		{"allreduce", 4, AnyMemory, 1<<64 - 1, "ring"},
		{"allreduce", 4, InWindows, 32767, "oneshot"},
		{"allreduce", 4, InWindows, 32768, "pull"},
		{"allreduce", 16, AnyMemory, 8, "tree"},
		{"allgather", 8, AnyMemory, 8, "ring"},
		{"allgather", 8, InWindows, 8, ""},
		{"allreduce", 8, AnyMemory, 8, ""},
		{"allgather", 4, AnyMemory, 8, ""},
		{"broadcast", 4, AnyMemory, 8, ""},
		{"", 0, "", 8, ""},
	} {
		if got, ok := table.Choose(c.collective, c.world, c.memory, c.bytes); got != c.want || ok != (c.want != "") {
			t.Errorf("%s of %d ranks in %s, %d bytes: %q, %v; want %q", c.collective, c.world, c.memory, c.bytes, got, ok, c.want)
		}
		ranges, ok := table.Ranges(c.collective, c.world, c.memory)
		if ok != (c.want != "") || ok != (len(ranges) > 0) {
			t.Errorf("%s of %d ranks in %s: ranges %v, %v", c.collective, c.world, c.memory, ranges, ok)
		}
	}
}

func TestReplacedEntriesComeInTheirPlaces(t *testing.T) {
	table := parsedTable(t)
	of := func(collective string, world int, memory Memory, algorithm string) Entry {
		return Entry{Collective: collective, WorldSize: world, Memory: memory, Ranges: []Range{{Algorithm: algorithm}}}
	}
	before := len(table.Entries)
	table.Replace([]Entry{
		of("broadcast", 2, InWindows, "pipe"), of("allreduce", 4, InWindows, "pull"), of("allgather", 2, AnyMemory, "ring"),
		of("allreduce", 8, AnyMemory, "twoshot"),
	})
	if err := table.Check(someAlgorithms); err != nil {
		t.Fatal(err)
	}
	if len(table.Entries) != before+3 {
		t.Errorf("%d entries: %+v", len(table.Entries), table.Entries)
	}
	for _, c := range []struct {
		collective string
		world      int
		memory     Memory
		want       string
	}{{"broadcast", 2, InWindows, "pipe"}, {"allreduce", 4, InWindows, "pull"}, {"allgather", 2, AnyMemory, "ring"},
		{"allreduce", 8, AnyMemory, "twoshot"}, {"allreduce", 4, AnyMemory, "oneshot"}, {"allreduce", 16, AnyMemory, "tree"}} {
		if got, _ := table.Choose(c.collective, c.world, c.memory, 8); got != c.want {
			t.Errorf("%s of %d ranks in %s: %s, want %s", c.collective, c.world, c.memory, got, c.want)
		}
	}
}

func TestWrongTablesAreRefusedByLineOrField(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{`"version": 2,`, `"version": 2`, "line 3: not JSON"},
		{`"version": 2,`, `"version": 1,`, "version: 1; this program reads 2"},
		{`"version": 2,`, ``, "version: 0; this program reads 2"},
		{`"version": 2,`, `"version": 2, "machine": "x",`, `line 2: field "machine" is not known`},
		{`"world_size": 8`, `"world_size": "8"`, "line 7: field entries.world_size"},
		{`2x8-nvlink`, `../2x8`, "fingerprint: \"../2x8\" is not 1 to 128 letters"},
		{`2x8-nvlink`, ``, "fingerprint: \"\""},
		{`2x8-nvlink`, strings.Repeat("f", 129), "fingerprint"},
		{`"allgather"`, `"all_gather"`, "entries[0].collective: \"all_gather\" is not known; there are allgather, allreduce"},
		{`"allgather"`, `"broadcast"`, "entries[0].ranges[0].algorithm: \"ring\" is not known for broadcast; there are pipe"},
		{`"world_size": 8`, `"world_size": 0`, "entries[0].world_size is 0; give 1 to 65536"},
		{`"world_size": 16`, `"world_size": 4`, "entries[3]: allreduce with 4 ranks in memory \"any\" must not follow allreduce with 4 in \"window\""},
		{`"world_size": 16`, `"world_size": 3`, "entries[3]: allreduce with 3 ranks"},
		{`"memory": "window"`, `"memory": "any"`, "entries[2].ranges[1].algorithm: pull needs all buffers in windows"},
		{`"memory": "any"`, `"memory": "host"`, "entries[0].memory: \"host\" is not known; there are any, window"},
		{`"memory": "any",`, ``, "entries[0].memory: \"\" is not known"},
		{`"spread": 0.04`, `"spread": 0.84`, "entries[0]: allgather with 8 ranks in memory \"any\": half of its times vary by 84 % or more between rounds, at most 25 %"},
		{`"spread": 0.04`, `"spread": -0.1`, "entries[0].spread is -0.1; give 0 to"},
		{`"gain": 1.5`, `"gain": 1214`, "entries[1]: allreduce with 4 ranks in memory \"any\": at one size the default takes 1214 times as long, at most 50"},
		{`"gain": 1.5`, `"gain": -1`, "entries[1].gain is -1; give 0 to"},
		{`"noisy": true`, `"noisy": false`, "entries[3]: allreduce with 16 ranks in memory \"any\": half of its times vary by 90 %"},
		{`"algorithm": "twoshot"`, `"algorithm": "pull"`, "entries[1].ranges[1].algorithm: pull needs all buffers in windows"},
		{`{"from_bytes": 0, "algorithm": "tree"}`, ``, "entries[3].ranges: there are 0; give 1 to 22"},
		{`{"from_bytes": 0, "algorithm": "tree"}`, `{"from_bytes": 8, "algorithm": "tree"}`, "entries[3].ranges[0].from_bytes: 8; ranges must have no gaps, so it must be 0"},
		{`"from_bytes": 65536`, `"from_bytes": 65537`, "entries[1].ranges[1].from_bytes: 65537; ranges must have no gaps, so it must be 65536"},
		{`"from_bytes": 65536`, `"from_bytes": 65535`, "it must be 65536"},
		{`"from_bytes": 65536`, `"from_bytes": -1`, "line 22: field entries.ranges.from_bytes"},
		{`"to_bytes": 1048576`, `"to_bytes": 65536`, "entries[1].ranges[1].to_bytes: 65536; more than 65536"},
		{`"to_bytes": 1048576`, `"to_bytes": 70368744177665`, "at most 70368744177664"},
		{`, "to_bytes": 1048576`, ``, "entries[1].ranges[1].to_bytes: 0; more than 65536"},
		{`"from_bytes": 1048576,`, `"from_bytes": 1048576, "to_bytes": 2097152,`, "entries[1].ranges[2].to_bytes: 2097152; the last range has no end"},
		{`"twoshot"`, `"twoshots"`, "entries[1].ranges[1].algorithm: \"twoshots\" is not known for allreduce; there are oneshot, twoshot, pull, ring, tree"},
	} {
		if !strings.Contains(tableText, c.from) {
			t.Fatalf("no %q in the file", c.from)
		}
		_, err := ParseTable([]byte(strings.Replace(tableText, c.from, c.to, 1)), someAlgorithms)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.to, err, c.want)
		}
	}
}

func TestTablesWithTooManyEntriesOrRangesAreRefused(t *testing.T) {
	table := &Table{Version: TableVersion, Fingerprint: "f", Entries: make([]Entry, maxEntries+1)}
	if err := table.Check(someAlgorithms); err == nil || !strings.Contains(err.Error(), "entries: 4097; at most 4096") {
		t.Error(err)
	}
	table.Entries = []Entry{{Collective: "allreduce", WorldSize: 2, Memory: InWindows, Ranges: make([]Range, MaxRanges+1)}}
	if err := table.Check(someAlgorithms); err == nil || !strings.Contains(err.Error(), "entries[0].ranges: there are 23; give 1 to 22") {
		t.Error(err)
	}
}

func TestASavedTableIsLoadedAgain(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", filepath.Join(t.TempDir(), "state"))
	dir, err := TableDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTable(dir, "2x8-nvlink", someAlgorithms); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "nothing was measured") {
		t.Errorf("before it is saved: %v", err)
	}
	table := parsedTable(t)
	for range 2 { // the second time over the first
		if err := table.Save(dir, someAlgorithms); err != nil {
			t.Fatal(err)
		}
		got, err := LoadTable(dir, "2x8-nvlink", someAlgorithms)
		if err != nil || !reflect.DeepEqual(got, table) {
			t.Fatalf("%+v, %v", got, err)
		}
		if got, err := LoadTable("", "2x8-nvlink", someAlgorithms); err != nil || !reflect.DeepEqual(got, table) {
			t.Fatalf("from the directory of tables: %+v, %v", got, err)
		}
		table.Entries = table.Entries[:1]
	}
	entries, err := os.ReadDir(filepath.Join(os.Getenv("XDG_STATE_HOME"), "railhead", "tune"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "2x8-nvlink.json" {
		t.Fatalf("%v, %v", entries, err)
	}
	// The daemon may run as another user than the one who tuned.
	if info, err := entries[0].Info(); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestASaveThatFailsLeavesTheOldTableAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	table := parsedTable(t)
	if err := table.Save(dir, someAlgorithms); err != nil {
		t.Fatal(err)
	}
	wrong := *table
	wrong.Entries = []Entry{{Collective: "allreduce", WorldSize: 4, Memory: AnyMemory}}
	if err := wrong.Save(dir, someAlgorithms); err == nil || !strings.Contains(err.Error(), "not saved: entries[0].ranges: there are 0") {
		t.Error(err)
	}
	if got, err := LoadTable(dir, table.Fingerprint, someAlgorithms); err != nil || !reflect.DeepEqual(got, table) {
		t.Errorf("%+v, %v", got, err)
	}
	// A directory in the file's place cannot be renamed over.
	other := *table
	other.Fingerprint = "other"
	if err := os.MkdirAll(filepath.Join(dir, "other.json", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := other.Save(dir, someAlgorithms); err == nil || !strings.Contains(err.Error(), "XDG_STATE_HOME") {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestATableThatCannotBeLoadedNamesFileAndRemedy(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("broken.json", "{\n\"version\": 1,\n}")
	write("other.json", tableText)
	write("big.json", strings.Repeat(" ", maxTableBytes+1))
	for fingerprint, want := range map[string][]string{
		"broken": {filepath.Join(dir, "broken.json") + ": line 3: not JSON", remedy},
		"other":  {"other.json: fingerprint: the table is of another machine, 2x8-nvlink", remedy},
		"big":    {"big.json has 4194305 bytes; at most 4194304", remedy},
		"../up":  {"fingerprint: \"../up\""},
	} {
		_, err := LoadTable(dir, fingerprint, someAlgorithms)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", fingerprint, err, w)
			}
		}
	}
}

func TestTablesAreKeptInTheStateDirectory(t *testing.T) {
	for _, c := range []struct{ state, home, want string }{
		{"/state", "/home/u", "/state/railhead/tune"},
		{"", "/home/u", "/home/u/.local/state/railhead/tune"},
		{"relative", "/home/u", "/home/u/.local/state/railhead/tune"},
		{"", "", ""},
		{"", "relative", ""},
	} {
		t.Setenv("XDG_STATE_HOME", c.state)
		t.Setenv("HOME", c.home)
		if got, err := TableDir(); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("XDG_STATE_HOME=%s HOME=%s: %q, %v", c.state, c.home, got, err)
		}
	}
}

// A table that is accepted has one algorithm for every size of every entry.
func FuzzTable(f *testing.F) {
	f.Add([]byte(tableText))
	f.Add([]byte(`{"version":2,"fingerprint":"f","entries":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		table, err := ParseTable(raw, someAlgorithms)
		if err != nil {
			return
		}
		for _, e := range table.Entries {
			for i, r := range e.Ranges {
				for _, size := range []uint64{r.FromBytes, r.ToBytes - 1} { // the last wraps to the largest size
					if got, ok := table.Choose(e.Collective, e.WorldSize, e.Memory, size); !ok || got != r.Algorithm {
						t.Fatalf("%+v, range %d, %d bytes: %q, %v", e, i, size, got, ok)
					}
				}
			}
		}
	})
}

func TestFittedRangesMakeATableThatIsAccepted(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		measured := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Measurement {
			return Measurement{
				Algorithm: rapid.SampledFrom(someAlgorithms["allreduce"]).Draw(t, "algorithm"),
				Bytes:     rapid.Uint64Range(0, 1<<rapid.IntRange(0, 46).Draw(t, "bits")).Draw(t, "bytes"),
				TimeUs:    rapid.Float64Range(minTimeUs, maxTimeUs).Draw(t, "us"),
			}
		}), 1, 40).Draw(t, "measured")
		ranges, err := FitRanges(measured)
		if err != nil {
			if len(measured) > MaxRanges && strings.Contains(err.Error(), "measure at fewer sizes") {
				return // a range for almost every size
			}
			t.Fatal(err)
		}
		table := &Table{Version: TableVersion, Fingerprint: "f", Entries: []Entry{{Collective: "allreduce", WorldSize: 2, Memory: InWindows, Ranges: ranges}}}
		if err := table.Save(dir, someAlgorithms); err != nil {
			t.Fatal(err)
		}
	})
}

func TestOnlyTablesOfCUDADevicesHaveGrids(t *testing.T) {
	known := Algorithms{"allreduce": {"oneshot"}}
	for _, c := range []struct {
		fingerprint     string
		blocks, threads int
		want            string
	}{
		{"1p-x", 0, 0, ""}, {"1p-x", 1, 0, "only a table of CUDA devices has grids"}, {"1p-x", 0, 64, "only a table of CUDA devices has grids"},
		{"cuda-x", 1, 64, ""}, {"cuda-x", 160, 512, ""}, {"cuda-x", 0, 0, "blocks: 0; a kernel has 1 to 160"}, {"cuda-x", 161, 64, "blocks: 161"},
		{"cuda-x", 1, 32, "threads: 32"}, {"cuda-x", 1, 544, "threads: 544"}, {"cuda-x", 1, 65, "threads: 65"},
	} {
		table := Table{Version: TableVersion, Fingerprint: c.fingerprint, Entries: []Entry{{Collective: "allreduce", WorldSize: 2, Memory: AnyMemory,
			Ranges: []Range{{Algorithm: "oneshot", Blocks: c.blocks, Threads: c.threads}}}}}
		if err := table.Check(known); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestTheTablesOfCUDADevicesAreListed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"1p-x.json", "cuda-a.json", "cuda-b.journal", ".cuda-a.json.123", "cuda- .json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := CUDATables(dir); err != nil || !slices.Equal(got, []string{"cuda-a"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := CUDATables(filepath.Join(dir, "none")); err != nil || len(got) != 0 {
		t.Errorf("no directory: %v, %v", got, err)
	}
}

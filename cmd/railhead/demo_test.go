package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/demo"
	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/await"
)

func decodeStrict(t *testing.T, text string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if d.More() {
		t.Fatalf("more than one JSON value on stdout: %q", text)
	}
}

func TestDemoChecksEveryResultAndReportsItAsJSONAlone(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "demo", "--json", "--ranks", "3", "--steps", "2", "--batch", "2")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r demo.Report
	decodeStrict(t, stdout, &r)
	if !r.OK || r.Ranks != 3 || r.Model != "llama-3-8b" || r.Device != "cpu" || r.Steps != 2 || r.Layers != 32 || len(r.Ops) != 1 {
		t.Fatalf("got %+v", r)
	}
	o := r.Ops[0]
	if o.Op != "all_reduce" || o.Bytes != 2*4096*2 || o.Algo != "twoshot" || o.Calls != 2*32*2 || o.Checked != o.Calls || o.Wrong != 0 {
		t.Errorf("got %+v", o)
	}
	if o.P50us <= 0 || o.P99us < o.P50us || o.Wait99 <= 0 || o.Wait99 < o.Wait50 {
		t.Errorf("transfer %v, %v us; wait %v, %v us", o.P50us, o.P99us, o.Wait50, o.Wait99)
	}
	if !strings.Contains(stderr, "admin http://127.0.0.1:") {
		t.Errorf("no admin address in the words: %q", stderr)
	}
}

func TestDemoChecksAlgorithmsThatAddInAnotherOrder(t *testing.T) {
	status, stdout, stderr := railhead(t, []string{"RAILHEAD_ALGO=ring", "RAILHEAD_REPRODUCIBLE=off"}, "demo", "--json", "--ranks", "3", "--steps", "1")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r demo.Report
	decodeStrict(t, stdout, &r)
	if o := r.Ops[0]; o.Algo != "ring" || o.Checked != 64 || o.Wrong != 0 {
		t.Errorf("got %+v", o)
	}
}

func TestDemoTakesShapesFromAHuggingFaceConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	config := `{"model_type":"tiny","hidden_size":96,"num_hidden_layers":3,"num_attention_heads":4,"vocab_size":100}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := railhead(t, nil, "demo", "--json", "--ranks", "2", "--steps", "1", "--config", path)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r demo.Report
	decodeStrict(t, stdout, &r)
	if r.Model != "tiny" || r.Ops[0].Bytes != 8*96*2 || r.Ops[0].Calls != 6 {
		t.Errorf("got %+v", r)
	}
}

func TestDemoPrintsATableForAPerson(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "demo", "--ranks", "2", "--steps", "1")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{"llama-3-8b", "all_reduce", "65536", "oneshot", "p99 us", "transfer", "wait", "admin http://", "Try next"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in %q", want, stdout)
		}
	}
}

func TestDemoRefusesInvalidFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"llama-3-8b":  {"--model", "llama-3-9b"},
		"--ranks 65":  {"--ranks", "65"},
		"--steps 0":   {"--steps", "0"},
		"--batch 0":   {"--batch", "0"},
		"no such":     {"--config", "/no/such/config.json"},
		"takes no":    {"please"},
		"--timeout 0": {"--timeout", "0s"},
		"--layers 33": {"--layers", "33"},
		"--layers -1": {"--model", "kimi-k2", "--layers", "-1"},
		"mixtral-8x7": {"--model", "mixtral"},
	} {
		status, stdout, stderr := railhead(t, nil, append([]string{"demo", "--json"}, args...)...)
		if status != cli.Usage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, stdout %q, stderr %q, want %q", args, status, stdout, stderr, want)
		}
	}
}

func TestKillingAnyRankOfTheDemoMakesEveryOtherRankNameIt(t *testing.T) {
	const ranks = 4
	for victim := range ranks {
		c := start(t, nil, "demo", "--json", "--ranks", fmt.Sprint(ranks), "--steps", "100000")
		var pids map[int]int
		await.True(t, "all ranks run", func() bool {
			pids = children(c.cmd.Process.Pid)
			return len(pids) == ranks
		})
		// When the group has formed, every rank has its shared memory mapped.
		await.True(t, "the group works", func() bool {
			maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pids[victim]))
			return strings.Count(string(maps), "memfd:railhead-heap") >= ranks
		})
		if err := syscall.Kill(pids[victim], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if status := c.wait(t); status != cli.Failed {
			t.Errorf("victim %d: status %d", victim, status)
		}
		var r demo.Report
		decodeStrict(t, c.stdout.String(), &r)
		if r.OK || !strings.Contains(r.Error, fmt.Sprintf("rank %d failed", victim)) {
			t.Errorf("victim %d: %+v", victim, r)
		}
		for rank := range ranks {
			if rank == victim {
				continue
			}
			found := false
			for _, line := range strings.Split(c.stderr.String(), "\n") {
				if strings.HasPrefix(line, fmt.Sprintf("[%d] ", rank)) && strings.Contains(line, fmt.Sprintf("rank %d (pid %d) has died", victim, pids[victim])) {
					found = true
				}
			}
			// A rank whose group was not ready yet has the daemon's text.
			if !found && !strings.Contains(c.stderr.String(), fmt.Sprintf("rank %d (pid %d) died", victim, pids[victim])) {
				t.Errorf("victim %d: rank %d does not name it in %q", victim, rank, c.stderr.String())
			}
		}
	}
}

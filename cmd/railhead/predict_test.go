package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/tuner"
)

// writeMachine writes nodes of 8 ranks with a NIC each.
func writeMachine(t *testing.T, nodes string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "machine.json")
	text := `{"version": 1, "nodes": ` + nodes + `, "ranks_per_node": 8,
		"link": {"kind": "nvlink-h100", "latency_us": 1},
		"nics": {"per_node": 8, "kind": "ndr", "latency_us": 2},
		"nccl": {"gpu": "hopper", "channels": 16, "bus_GBs": 360}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// predictJSON runs predict --json; stdout has to be JSON alone.
func predictJSON(t *testing.T, args ...string) tuner.Prediction {
	t.Helper()
	status, stdout, stderr := railhead(t, nil, append([]string{"predict", "--json"}, args...)...)
	if status != 0 || stderr != "" {
		t.Fatalf("%v: status %d: %s", args, status, stderr)
	}
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	var p tuner.Prediction
	if err := d.Decode(&p); err != nil || d.More() {
		t.Fatalf("%v: %v in %s", args, err, stdout)
	}
	return p
}

func TestPredictAnswersOnTheCommandLine(t *testing.T) {
	four, eight := writeMachine(t, "4"), writeMachine(t, "8")
	timeUs := func(p tuner.Prediction) float64 { return p.TimeUs }
	size := func(p tuner.Prediction) float64 { return float64(p.Bytes) }
	for _, c := range []struct {
		args string
		get  func(tuner.Prediction) float64
		want float64
	}{
		{"--op allreduce --algo ring --ranks 8 --alpha-us 10 --beta-gbs 25 --bytes 1000000000", timeUs, 70140},
		{"--op allreduce --algo ring --ranks 8 --alpha-us 10 --beta-gbs 25 --bytes 64K", timeUs, 144.58752},
		{"--op allgather --ranks 8 --alpha-us 10 --beta-gbs 25 --bytes 2000000000", timeUs, 70070},
		{"--op allreduce --algo ring --ranks 16 --alpha-us 10 --beta-gbs 22 --bytes 8", func(p tuner.Prediction) float64 { return p.KneeBytes }, 3.52e6},
		{"--op dispatch --topk 8 --tokens 1 --bytes 1 --machine " + eight, func(p tuner.Prediction) float64 { return p.RemoteCopies.PerExpert }, 7},
		{"--op dispatch --topk 8 --tokens 1 --bytes 1 --machine " + eight, func(p tuner.Prediction) float64 { return p.RemoteCopies.PerNode }, 4.5947375893592834},
		{"--op dispatch --model deepseek-v3 --tokens 128 --machine " + four, func(p tuner.Prediction) float64 { return p.RemoteCopies.PerRank }, 5.45009993801466},
		{"--op dispatch --model deepseek-v3 --tokens 128 --machine " + four, size, 128 * 2 * 7168},
		{"--op dispatch --model deepseek-v3 --dtype f8e4m3 --tokens 128 --machine " + four, size, 128 * (7168 + 4*56)},
		{"--op combine --topk 8 --experts 256 --hidden 7168 --tokens 128 --ranks 16 --algo per_node --machine " + four, func(p tuner.Prediction) float64 { return p.RemoteCopies.PerExpert }, 4},
		{"--op kv --layers 80 --kv-heads 8 --head-dim 128 --tokens 4096 --ranks 8 --machine " + four, size, 1342177280},
		{"--op kv --model llama-3-70b --tokens 4096 --ranks 8 --machine " + four, timeUs, 2 + 167772160/50e3},
		{"--op kv --model deepseek-v3 --tokens 10 --ranks 8 --machine " + four, size, 576 * 61 * 2 * 10},
		{"--op allreduce --cost-model nccl --algo ring --protocol ll --ranks 8 --bytes 0 --machine " + four, timeUs, 15},
		{"--op allreduce --cost-model nccl --algo ring --protocol ll --ranks 8 --bytes 0 --lat-count 2 --machine " + four, timeUs, 30},
	} {
		if got := c.get(predictJSON(t, strings.Fields(c.args)...)); math.Abs(got-c.want) > 1e-9*c.want {
			t.Errorf("%s: %.12g, want %.12g", c.args, got, c.want)
		}
	}
}

func TestPredictPrintsTheParts(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "predict", "--op", "dispatch", "--model", "deepseek-v3", "--tokens", "128", "--machine", writeMachine(t, "4"))
	if status != 0 || stderr != "" {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{
		"dispatch of 1835008 bytes, 32 ranks on 4 nodes: per_node (alpha-beta)\n",
		"102.48 us = 3.00 latency + 99.48 bandwidth\n", // 2.71 copies at 50 GB/s; over the NIC, then within the node
		"6.00 if sent per expert, 5.45 per rank, 2.71 per node\n",
		" bytes, where both parts are equal; 90 % of peak bandwidth from ",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

func TestPredictRefusesWhatItDoesNotKnow(t *testing.T) {
	machine := writeMachine(t, "4")
	link := "--ranks 8 --alpha-us 10 --beta-gbs 25 "
	for args, want := range map[string]string{
		"":                                                               `--op "" is unknown; available: allreduce, `,
		"--op all_reduce --bytes 8 " + link:                              `"all_reduce" is unknown; available: allreduce, `,
		"--op allreduce --bytes 8":                                       "give --machine, or --alpha-us",
		"--op allreduce " + link:                                         "--bytes is missing",
		"--op allreduce --bytes 8X " + link:                              `size "8X"`,
		"--op allreduce --bytes 8 --algo x " + link:                      "there are oneshot, twoshot, ring, tree",
		"--op allreduce --bytes 8 --tokens 5 " + link:                    "--tokens does not apply to allreduce",
		"--op kv --bytes 8 " + link:                                      "--bytes does not apply to kv",
		"--op kv --model nope --tokens 8 " + link:                        `unknown model "nope"`,
		"--op kv --tokens 8 --dtype all --model llama-3-8b " + link:      "--dtype all: expected one type",
		"--op kv --tokens 8 --dtype f12 --model llama-3-8b " + link:      `datatype "f12"`,
		"--op dispatch --tokens 8 --model llama-3-8b " + link:            "model llama-3-8b has no experts",
		"--op dispatch --tokens 8 --topk 2 " + link:                      "give one of --bytes, --hidden and --model",
		"--op dispatch --tokens 8 --topk 2 --bytes 8 --hidden 8 " + link: "give one of --bytes, --hidden and --model",
		"--op dispatch --tokens 8 --topk 2 --hidden -8 " + link:          "--hidden -8 is outside 1..",
		"--op allreduce --bytes 8 --alpha-us 10 --beta-gbs 25":           "ranks_per_node is 0",
		"--op allreduce --bytes 8 --alpha-us 10 --ranks 8":               "link.bandwidth_GBs is 0",
		"--op allreduce --bytes 8 --machine " + machine + " " + link:     "--machine excludes --alpha-us and --beta-gbs",
		"--op allreduce --bytes 8 --ranks 33 --machine " + machine:       "give 2 to 32",
		"--op allreduce --bytes 8 --machine " + machine + ".old":         "machine.json.old: no such file",
		"--op allreduce --bytes 8 --cost-model x --machine " + machine:   "there are alpha-beta, nccl",
		"--op allreduce --bytes 8 --cost-model nccl " + link:             "no nccl section",
		"--op allreduce --bytes 8 extra " + link:                         "takes no arguments",
	} {
		status, stdout, stderr := railhead(t, nil, append([]string{"predict"}, strings.Fields(args)...)...)
		if status != cli.Usage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q, want %q", args, status, stderr, want)
		}
	}
}

package demo

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/models"
)

func TestOfEachStepOnGPUsTheSlowestRankCounts(t *testing.T) {
	results := make([]ranks.Lines[gpuReport], 2)
	for r, text := range []string{
		"{\"done\":8}\n" + `{"nodes":4,"step_ns":[4000,8000],"ops":[{"op":"all_reduce","bytes":64,"algo":"oneshot","checked":8,"wrong":[3]}]}`,
		`{"nodes":4,"step_ns":[6000,2000],"ops":[{"op":"all_reduce","bytes":64,"algo":"oneshot","checked":7,"wrong":[3,5]}]}`,
	} {
		_, _ = fmt.Fprintln(&results[r], text)
	}
	ops, replays, err := mergeGPU(results, 4, 2)
	if err != nil || len(ops) != 1 {
		t.Fatalf("%v, %v", ops, err)
	}
	op := ops[0]
	if want := (Replays{Calls: 4, Nodes: 4, P50us: 6, P99us: 8}); replays != want {
		t.Errorf("%+v, want %+v", replays, want)
	}
	if want := (Op{Op: opAllReduce, Bytes: 64, Algo: "oneshot", Calls: 8, P50us: 1.5, P99us: 2, Checked: 7, Wrong: 2}); op != want {
		t.Errorf("%+v, want %+v", op, want)
	}
	report := Report{Steps: 2, Ops: []Op{op}, Replays: &replays}
	var out strings.Builder
	if report.gpuTable(&play{}, &out); !strings.Contains(out.String(), "a graph of 4 calls (4 nodes)") || strings.Contains(out.String(), "correct") {
		t.Error(out.String())
	}
}

func TestARankOnAGPUThatReportsOtherStepsIsAnError(t *testing.T) {
	for name, text := range map[string]string{"none": "", "fewer": `{"step_ns":[1],"ops":[{"op":"all_reduce"}]}`, "cut off": `{"nodes":64`} {
		results := make([]ranks.Lines[gpuReport], 1)
		_, _ = fmt.Fprint(&results[0], text)
		if _, _, err := mergeGPU(results, 4, 2); err == nil || !strings.Contains(err.Error(), "rank 0") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBuffersOfAllLayersAreLimitedOnGPUs(t *testing.T) {
	for _, c := range []struct {
		device, model string
		batch, layers int
		refused       bool
	}{
		{cli.DeviceCUDA, "deepseek-v3", 4096, 58, true},
		{cli.DeviceCUDA, "deepseek-v3", 4096, moeLayers, false},
		{cli.DeviceCUDA, "deepseek-v3", 8, 58, false},
		{cli.DeviceCPU, "deepseek-v3", 4096, 58, false}, // one layer's memory
		{cli.DeviceCUDA, "llama-3-70b", 4096, 80, true},
		{cli.DeviceCUDA, "llama-3-70b", 8, 80, false},
	} {
		shape, err := models.Named(c.model)
		if err != nil {
			t.Fatal(err)
		}
		p := play{device: c.device, ranks: 2, batch: c.batch, steps: 1, layers: c.layers, timeout: time.Minute}
		if err := p.plan(shape); (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), fmt.Sprintf("--layers %d with --batch %d", c.layers, c.batch)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

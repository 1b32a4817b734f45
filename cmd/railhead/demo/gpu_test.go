package demo

import (
	"fmt"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/ranks"
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

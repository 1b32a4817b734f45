package main

import (
	"strings"
	"testing"

	"railhead/cmd/railhead/demo"
)

// demoMoE runs the demo of a model with experts, which is to succeed.
func demoMoE(t *testing.T, args ...string) demo.Report {
	t.Helper()
	status, stdout, stderr := railhead(t, nil, append([]string{"demo", "--json"}, args...)...)
	if status != 0 {
		t.Fatalf("%v: status %d: %s", args, status, stderr)
	}
	var r demo.Report
	decodeStrict(t, stdout, &r)
	return r
}

func TestDemoOfAModelWithExpertsPlaysEveryOperationOfALayerAndChecksIt(t *testing.T) {
	for _, model := range []string{"deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b", "mixtral-8x7b", "kimi-k2"} {
		r := demoMoE(t, "--model", model, "--steps", "2", "--layers", "2", "--batch", "4")
		if !r.OK || r.Model != model || r.Ranks < 2 || r.Steps != 2 || r.Layers != 2 || len(r.Ops) != 5 {
			t.Fatalf("got %+v", r)
		}
		for i, op := range []string{"all_reduce", "dispatch", "combine", "all_gather", "layer"} {
			o := r.Ops[i]
			if o.Op != op || o.Calls != 4 || o.Checked != 4 || o.Wrong != 0 || o.P50us <= 0 || o.P99us < o.P50us || o.Bytes <= 0 || o.Algo == "" {
				t.Errorf("%s: got %+v", model, o)
			}
		}
	}
}

// 11 ranks share 7 tokens and 8 experts: some have neither.
func TestDemoOfAModelWithExpertsTakesRanksWithoutTokensOrExperts(t *testing.T) {
	r := demoMoE(t, "--model", "mixtral-8x7b", "--ranks", "11", "--steps", "1", "--layers", "1", "--batch", "7")
	if !r.OK || r.Ranks != 11 || r.Ops[0].Bytes != 7*4096*2 {
		t.Errorf("got %+v", r)
	}
}

func TestDemoOfAModelWithExpertsPrintsItsLayersAndOperations(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "demo", "--model", "deepseek-v3", "--steps", "1", "--batch", "2")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{
		"1 decode step, 4 of 58 MoE layers", "256 experts, top-8 routing + 1 shared", "p99 us", "all_gather",
		"shared expert", "58 x ", "Try next",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in %q", want, stdout)
		}
	}
}

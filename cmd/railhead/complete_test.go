package main

import (
	"slices"
	"strings"
	"testing"
)

// offered is what the shell offers after a command line, by cobra's protocol: a value a line, then ":" and a number.
func offered(t *testing.T, args ...string) []string {
	t.Helper()
	status, stdout, stderr := railhead(t, nil, append([]string{"__complete"}, args...)...)
	if status != 0 {
		t.Fatalf("%q: status %d: %s", args, status, stderr)
	}
	var values []string
	for line := range strings.Lines(stdout) {
		value, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !strings.HasPrefix(value, ":") {
			values = append(values, value)
		}
	}
	return values
}

func TestTheShellOffersTheValuesOfFlags(t *testing.T) {
	for _, c := range []struct {
		args string // the last word is what is typed so far; "_" stands for nothing
		want string // that are among the offers
	}{
		{"_", "bench demo serve tune completion"},
		{"bench _", "allreduce barrier moe"},
		{"bench allreduce --algo _", "auto oneshot twoshot pull ring tree"},
		{"bench allreduce --algo ring,t", "ring,twoshot ring,tree"},
		{"bench allreduce -o _", "sum mulsum all"},
		{"bench alltoall -d _", "float bfloat16 f8e4m3 all"},
		{"bench moe --model _", "deepseek-v3 kimi-k2"},
		{"bench moe --mode _", "ll ht"}, {"bench moe --layout _", "padded"}, {"bench moe --scale _", "ue8m0"},
		{"bench moe --wire-dtype _", "fp8_e4m3"}, {"bench moe --combine-dtype _", "bf16"}, {"bench moe --routing _", "zipf"},
		{"demo --model _", "llama-3-8b deepseek-v3"},
		{"predict --op _", "allreduce dispatch kv"}, {"predict --model _", "llama-3-70b"}, {"predict --dtype _", "bfloat16"},
		{"predict --op allreduce --algo _", "oneshot ring"}, {"predict --op dispatch --algo _", "per_rank"}, {"predict --op kv --algo _", "put"},
		{"certs _", "authority node"}, {"completion _", "bash fish"},
		{"tune --op allreduce,_", "allreduce,alltoall"},
		{"topo --output _", "text json xml svg"}, {"serve --log _", "debug"},
		{"help _", "serve bench"}, {"help bench _", "allgather moe"},
	} {
		args := strings.Fields(c.args)
		last := len(args) - 1
		args[last] = strings.TrimSuffix(args[last], "_")
		got := offered(t, args...)
		for _, want := range strings.Fields(c.want) {
			if !slices.Contains(got, want) {
				t.Errorf("%s: no %q among %q", c.args, want, got)
			}
		}
	}
	if got := offered(t, "tune", "--op", "allreduce,"); slices.Contains(got, "allreduce,allreduce") {
		t.Errorf("a value twice: %q", got)
	}
}

// What is offered must be accepted: then the name of the plot, which is looked at last, is what is wrong.
func TestEveryOfferOfBenchIsValid(t *testing.T) {
	for _, flag := range []string{"--algo", "-o", "-d"} {
		values := offered(t, "bench", "reducescatter", flag, "")
		for _, value := range values {
			_, _, stderr := railhead(t, nil, "bench", "reducescatter", flag, value, "--plot", "x.png")
			if !strings.Contains(stderr, "--plot x.png") {
				t.Errorf("%s %s: %s", flag, value, stderr)
			}
		}
		if len(values) < 5 {
			t.Errorf("%s: only %q", flag, values)
		}
	}
}

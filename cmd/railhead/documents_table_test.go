package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// exception is how a command of the documents is run, if not simply in every run, to exit status 0.
type exception struct {
	never   string // why it is not run
	deep    string // why only the deep run runs it
	shorter string // what is run instead, because it takes less time
	mayFail string // it may also fail, with what this expression matches in its output
	ready   string // it runs on in the background, and is ready when this shell command ends
}

// notTrusted is what tune says on a busy machine.
const notTrusted = "the table is not saved: other programs were probably running"

const needsGPUs = "needs GPUs; cuda_test.go has shorter ones"

const daemonIsReady = `until [ -S "$XDG_RUNTIME_DIR/railhead/railhead.sock" ]; do sleep 0.05; done`

var exceptions = map[string]exception{
	// docs/usage.md
	"railhead serve &":                       {ready: daemonIsReady},
	"make lib":                               {deep: "compiles the library"},
	"make install PREFIX=$HOME/railhead":     {deep: "compiles the library"},
	"railhead run -n 8 --mps -- ./my_engine": {never: "needs GPUs; mps_test.go runs it with a stand-in of the daemon"},
	"gcc my_engine.c $(pkg-config --cflags --libs railhead) -Wl,-rpath,$HOME/railhead/lib -o my_engine": {deep: "needs the installed library"},

	// docs/flight.md
	"torchfrtrace dumps": {never: "needs torch"},

	// docs/kernels.md
	"g++ -std=c++17 -O2 -Ikernels -Ikernels/include -I$CUDA/include benchmarks/gpu/virtual_ranks.cc benchmarks/gpu/checks.cc kernels/testdata/cpu_bits.cc -L$CUDA/lib64 -lcudart_static -ldl -lrt -lpthread -o virtual_ranks": {never: "needs CUDA's libraries"},
	"nvcc -cubin -arch=sm_90 -O3 -std=c++17 -fmad=false -Ikernels -Ikernels/include kernels/cuda/ep.cu -o ep.cubin":                                                                                                           {never: "needs CUDA's compiler"},
	"g++ -std=c++17 -O2 -Ikernels -Ikernels/include -I$CUDA/include benchmarks/gpu/moe.cc -L$CUDA/lib64 -lcudart_static -ldl -lrt -lpthread -o moe":                                                                           {never: "needs CUDA's libraries"},
	"./moe ep.cubin ll 2 32 64":                               {never: needsGPUs},
	"./virtual_ranks kernels/cubin/kernels.sm_90.cubin check": {never: needsGPUs},
	"./virtual_ranks kernels/cubin/kernels.sm_90.cubin time":  {never: needsGPUs},

	// docs/measuring.md
	"go run ./benchmarks/mpi --ranks 2 --plot plot.svg":                                                                    {never: "takes minutes; its own test runs it with fewer sizes"},
	"go run ./cmd/railhead bench allreduce --device cuda --ranks 2 -b 1K -e 64M -f 2 -d bfloat16":                          {never: needsGPUs},
	"go run ./cmd/railhead bench allreduce --device cuda --ranks 2 -b 1K -e 64M -f 2 -d bfloat16 -n 40 -G 20":              {never: needsGPUs},
	"go run ./cmd/railhead demo --device cuda":                                                                             {never: needsGPUs},
	"go run ./cmd/railhead demo --device cuda --mps --ranks 2 --model deepseek-v3":                                         {never: needsGPUs},
	"go run ./cmd/railhead bench moe --device cuda --mps --ranks 2 --tokens 1,8,32,128 -n 20 -G 50":                        {never: "needs GPUs; bench_moe_test.go has shorter ones"},
	"go run ./cmd/railhead bench moe --device cuda --mps --ranks 2 --mode ht --tokens 512,4096 --layout tokens -n 4 -G 10": {never: "needs GPUs; bench_moe_test.go has shorter ones"},
	"go run ./benchmarks/moe --ranks 2 --plot plot.svg":                                                                    {never: "takes minutes; its own test runs it with fewer tokens"},
	"go run ./cmd/railhead bench allreduce --ranks 2 -b 1K -e 8M -f 2":                                                     {deep: "takes seconds"},
	"go run ./cmd/railhead bench allreduce --ranks 4 -b 1K -e 4M -f 2 --algo oneshot,twoshot,pull --plot plot.svg":         {deep: "takes seconds"},
	"go run ./cmd/railhead bench moe --ranks 2 --tokens 1,8,32,128 --plot plot.svg":                                        {deep: "takes seconds"},
	"go run ./cmd/railhead bench moe --model deepseek-v3 --wire-dtype fp8_e4m3 --scale ue8m0 --layout padded":              {deep: "takes seconds"},
	"go run ./cmd/railhead bench moe --mode ht --tokens 512,4096 -n 10 --routing zipf": {
		deep: "takes seconds", shorter: "go run ./cmd/railhead bench moe --mode ht --tokens 64,512 -n 10 --routing zipf",
	},
	"go run ./cmd/railhead tune": {never: "takes a quarter of an hour; the next one is it, for fewer cases"},
	"go run ./cmd/railhead tune --device cuda --mps --ranks 2,4,8 --op allreduce": {never: needsGPUs},
	"go run ./cmd/railhead tune --op allreduce --ranks 2,4 -b 4K -e 1M --time 1m": {
		deep: "takes seconds", shorter: "go run ./cmd/railhead tune --op allreduce --ranks 2,4 -b 4K -e 1M --time 10s", mayFail: notTrusted,
	},

	// docs/tuning.md
	"railhead tune":               {never: "takes a quarter of an hour; the next one is it, for fewer cases"},
	"railhead tune --device cuda": {never: needsGPUs},
	"railhead tune --device cuda --mps --ranks 8 --op allreduce -b 1K -e 16M": {never: needsGPUs},
	"railhead tune --op allreduce --ranks 2,8 -b 4K -e 1M -f 4 --time 1m":     {never: "takes minutes; docs/measuring.md has one that is run"},
}

// noCommands are the first lines of blocks that are no commands, and what they are.
var noCommands = map[string]string{
	"Railhead demo: llama-3-8b, 2 ranks on the CPU, batch 8, 16 decode steps of 32 layers":             "output",
	`engine process (rank 0)        engine process (rank 1)   ...          railhead serve, one a node`: "a diagram",
	`client (rank r)                                    daemon`:                                        "a diagram",
	`client (control thread)                            the next daemon`:                               "a diagram",
	`kernels/include/railhead`:                                                "a diagram",
	`buffer of rank r (R ranks, T tokens of a rank, C of a chunk)`:            "a layout of memory",
	`group "tp" #1: ready, 3 ranks, 0 bytes in 0 windows; stalled`:            "output",
	`T = steps * α + bytes_per_rank / β`:                                      "a formula",
	`text   = "" | "auto" | clause { ";" clause }`:                            "a grammar",
	`heap of rank r                             control segment, one a group`: "a layout of memory",
}

// before is what each document takes as given, besides the commands in it.
var before = map[string][]string{
	"docs/flight.md": {"railhead serve &", daemonIsReady, "railhead run -n 2 --group tp -- ./my_engine"},
}

// readersFiles are the files that the reader has, by name.
func readersFiles(t *testing.T) map[string]string {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(repository, "client/examples/c/all_reduce.c"))
	if err != nil {
		t.Fatal(err)
	}
	tuning, err := os.ReadFile(filepath.Join(repository, "docs/tuning.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, machine, found := strings.Cut(string(tuning), "here `two-nodes.json`:\n\n```json\n")
	machine, _, closed := strings.Cut(machine, "```")
	if !found || !closed {
		t.Fatal("docs/tuning.md has no two-nodes.json")
	}
	return map[string]string{
		"my_engine.c":    string(program),
		"my_engine":      fmt.Sprintf("#!/bin/sh\nexec env '%s' railhead rank\n", jobEnv(t, 20)), // until gcc makes it
		"two-nodes.json": machine,
	}
}

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"railhead/alltoall"
	"railhead/cmd/railhead/bench/moe"
	"railhead/cmd/railhead/internal/cli"
)

// benchMoE runs bench moe of a small shape, which is to succeed.
func benchMoE(t *testing.T, args ...string) moe.Report {
	t.Helper()
	args = append([]string{"bench", "moe", "--json", "--hidden", "320", "--experts", "13", "--topk", "4", "-n", "3", "-w", "1"}, args...)
	status, stdout, stderr := railhead(t, nil, args...)
	if status != 0 {
		t.Fatalf("%v: status %d: %s", args, status, stderr)
	}
	var r moe.Report
	decodeStrict(t, stdout, &r)
	if !r.OK {
		t.Fatalf("%v: got %+v", args, r)
	}
	return r
}

func TestBenchMoEMeasuresAndChecksEveryNumberOfTokens(t *testing.T) {
	r := benchMoE(t, "--ranks", "3", "--tokens", "0,1,40")
	if r.Device != "cpu" || r.Ranks != 3 || r.Shape.Mode != alltoall.LL || r.Shape.Layout != alltoall.Flat || r.Iterations != 3 || r.Warmup != 1 || r.Shape.Tokens != 40 {
		t.Fatalf("got %+v", r)
	}
	config := r.Shape.Config()
	if want, err := alltoall.BufferBytes(config, 3); err != nil || r.BufferBytes != want || r.PrivateBytes == 0 {
		t.Errorf("window %d, want %d, private %d, %v", r.BufferBytes, want, r.PrivateBytes, err)
	}
	if len(r.Rows) != 3 {
		t.Fatalf("got %+v", r.Rows)
	}
	for i, row := range r.Rows {
		if row.Tokens != []int{0, 1, 40}[i] || row.Wrong != 0 || len(row.Written) != 3 || len(row.Least) != 3 {
			t.Fatalf("got %+v", row)
		}
		for _, l := range []moe.Latency{row.Dispatch, row.Combine, row.RoundTrip} {
			if l.P50us <= 0 || l.P99us < l.P50us {
				t.Errorf("%d tokens: got %+v", row.Tokens, row)
			}
		}
		if row.RoundTrip.AlgBW != 0 || (row.Tokens > 0) != (row.Dispatch.AlgBW > 0) || (row.Tokens > 0) != (row.Combine.AlgBW > 0) {
			t.Errorf("%d tokens: bandwidth %+v", row.Tokens, row)
		}
	}
	if row := r.Rows[0]; row.Ratio != 0 || row.CopiesPerToken != 0 || row.Written[0].Payload != 0 {
		t.Errorf("of no tokens: got %+v", row)
	}
}

// The library has written the minimum payload, and headers of 8 bytes a copy and 8 for each of the copy's experts.
func TestBenchMoEComparesWhatWasWrittenWithTheLeast(t *testing.T) {
	r := benchMoE(t, "--ranks", "2", "--tokens", "64", "-n", "1")
	row := r.Rows[0]
	if row.CopiesPerToken <= 1 || row.CopiesPerToken > 2 {
		t.Errorf("%v copies of a token for 2 ranks", row.CopiesPerToken)
	}
	router, err := r.Shape.Router()
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Shape.Problem(router, 0, 0, []int{64, 64})
	if err != nil {
		t.Fatal(err)
	}
	for rank, written := range row.Written {
		sent := p.Traffic[rank]
		least := float64(sent.Payload[1-rank] + p.Traffic[1-rank].Partials[rank])
		if written.Payload != least || row.Least[rank] != least || written.Headers != float64(sent.Headers[1-rank]) || written.Flags <= 0 {
			t.Errorf("rank %d: written %+v, least %v; want %v and headers %d", rank, written, row.Least[rank], least, sent.Headers[1-rank])
		}
		if ratio := (written.Payload + written.Headers) / least; row.Ratio < ratio-1e-9 {
			t.Errorf("rank %d: ratio %v, reported %v", rank, ratio, row.Ratio)
		}
	}
}

func TestBenchMoEOfEveryModeLayoutAndWireIsRight(t *testing.T) {
	t.Parallel()
	n := 0
	for _, mode := range []string{"ll", "ht"} {
		for _, layout := range []string{"padded", "flat", "tokens"} {
			for _, types := range [][]string{
				{"bf16", "fp8_e4m3", "bf16", "ue8m0"}, {"f16", "f16", "f32", "f32"},
				{"fp8_e4m3", "fp8_e4m3", "bf16", "f32"}, {"f32", "fp8_e4m3", "f32", "static"},
			} {
				if n++; n%2 == 0 {
					continue // every second: each mode, layout and type is among them
				}
				r := benchMoE(t, "--mode", mode, "--layout", layout, "--tokens", "33", "--ranks", fmt.Sprint(1+n%3), "--routing", "zipf",
					"--dtype", types[0], "--wire-dtype", types[1], "--combine-dtype", types[2], "--scale", types[3])
				if r.Shape.Mode.String() != mode || r.Shape.Layout.String() != layout || r.Shape.Scale.String() != types[3] || string(r.Shape.Wire) != types[1] {
					t.Errorf("got %+v", r)
				}
			}
		}
	}
}

// npy is a topk_idx as numpy.save writes it.
func npy(t *testing.T, k int, idx ...int64) string {
	t.Helper()
	header := fmt.Sprintf("{'descr': '<i8', 'fortran_order': False, 'shape': (%d, %d), }\n", len(idx)/k, k)
	var b bytes.Buffer
	b.WriteString("\x93NUMPY\x01\x00")
	_ = binary.Write(&b, binary.LittleEndian, uint16(len(header)))
	b.WriteString(header)
	_ = binary.Write(&b, binary.LittleEndian, idx)
	path := filepath.Join(t.TempDir(), "topk.npy")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBenchMoETakesARecordedRouting(t *testing.T) {
	// Every token takes experts of rank 0 alone: 7 of 13.
	r := benchMoE(t, "--tokens", "6", "--routing", npy(t, 4, 0, 1, 2, 3, 6, -1, 4, -1))
	if row := r.Rows[0]; row.CopiesPerToken != 1 || row.Written[0].Payload != row.Least[0] || row.Least[1] == 0 {
		t.Errorf("got %+v", row)
	}
	for want, path := range map[string]string{
		"topk 4": npy(t, 2, 0, 1), "expert 13": npy(t, 4, 0, 1, 2, 13), "twice": npy(t, 4, 0, 1, 2, 2),
		"no such": "/no/such.npy", "a .npy file": os.Args[0],
	} {
		status, _, stderr := railhead(t, nil, "bench", "moe", "--experts", "13", "--topk", "4", "--routing", path)
		if status != cli.Usage || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, stderr %q, want %q", path, status, stderr, want)
		}
	}
}

func TestBenchMoETakesItsShapeFromAModelWhereNoFlagSaysIt(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "bench", "moe", "--model", "gpt-oss-120b", "--hidden", "96", "--tokens", "2", "-n", "1", "--json")
	var r moe.Report
	decodeStrict(t, stdout, &r)
	if status != 0 || r.Shape.Hidden != 96 || r.Shape.Experts != 128 || r.Shape.TopK != 4 {
		t.Errorf("status %d, %+v, stderr %q", status, r, stderr)
	}
}

func TestBenchMoEMeasuresRanksWithoutTokens(t *testing.T) {
	r := benchMoE(t, "--tokens", "0", "--hidden", "64", "-n", "3")
	if len(r.Rows) != 1 || !r.OK || r.Rows[0].Tokens != 0 || r.Rows[0].RoundTrip.P50us <= 0 || r.Rows[0].Ratio != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestBenchMoEsJSONHasWordsForEnums(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "bench", "moe", "--tokens", "1", "--hidden", "64", "-n", "1", "--mode", "ht", "--layout", "tokens", "--json")
	if status != 0 || !strings.Contains(stdout, `"scale":"f32","mode":"ht","layout":"tokens"`) {
		t.Errorf("status %d, %s, stderr %q", status, stdout, stderr)
	}
}

func TestBenchMoEPrintsATableAndDrawsIt(t *testing.T) {
	svg := t.TempDir() + "/plot.svg"
	status, stdout, stderr := railhead(t, nil, "bench", "moe", "--hidden", "64", "--tokens", "0,2,8", "-n", "2", "-w", "0", "--plot", svg)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{"# memory per rank for 8 tokens: window ", "private ", "algbw", "ratio", "#wrong", "# Wrong elements : 0 OK"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in %q", want, stdout)
		}
	}
	drawn, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "dispatch p99", "combine p50", "tokens per rank"} {
		if !strings.Contains(string(drawn), want) {
			t.Errorf("no %q in the plot", want)
		}
	}
}

func TestBenchMoERefusesWrongFlagsBeforeItStartsAnything(t *testing.T) {
	for want, args := range map[string][]string{
		"--tokens 1,,2":     {"--tokens", "1,,2"},
		"--plot needs":      {"--tokens", "0,0", "--plot", "x.svg"},
		"--ranks 65":        {"--ranks", "65"},
		"--iterations 0":    {"-n", "0"},
		"--warmup -1":       {"-w", "-1"},
		"--mode \"fast\"":   {"--mode", "fast"},
		"--layout \"rows\"": {"--layout", "rows"},
		"--scale \"int\"":   {"--scale", "int"},
		"wire_dtype \"i8\"": {"--wire-dtype", "i8"},
		"combine_dtype":     {"--combine-dtype", "fp8_e4m3"},
		"hidden 0":          {"--hidden", "0"},
		"--topk 9":          {"--experts", "8", "--topk", "9"},
		"has no experts":    {"--model", "llama-3-8b"},
		"deepseek-v3":       {"--model", "deepseek-v4"},
		"--timeout":         {"--timeout", "0s"},
		"takes no":          {"now"},
	} {
		status, stdout, stderr := railhead(t, nil, append([]string{"bench", "moe"}, args...)...)
		if status != cli.Usage || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%v: status %d, stdout %q, stderr %q, want %q", args, status, stdout, stderr, want)
		}
	}
}

func TestBenchMoEOnGPUsMeasuresAndChecksEagerlyAndInGraphs(t *testing.T) {
	t.Parallel()
	env := withGPUs(t)
	for _, args := range [][]string{
		{"--tokens", "0,3"}, {"--tokens", "5", "-G", "3", "--layout", "padded"}, {"--wire-dtype", "fp8_e4m3", "--scale", "ue8m0", "--layout", "tokens", "--tokens", "2", "-G", "1"},
		{"--dtype", "fp8_e4m3", "--ranks", "3", "--tokens", "4"}, {"--mode", "ht", "--tokens", "9,0", "-G", "1"},
	} {
		args = append([]string{"bench", "moe", "--device", "cuda", "--json", "--hidden", "320", "--experts", "13", "--topk", "4", "-n", "3", "-w", "1"}, args...)
		status, stdout, stderr := railhead(t, env, args...)
		var r moe.Report
		decodeStrict(t, stdout, &r)
		if status != 0 || !r.OK || !strings.HasPrefix(r.Device, "fake device 0") || r.PrivateBytes == 0 || len(r.Rows) == 0 {
			t.Fatalf("%v: status %d, %+v: %s", args, status, r, stderr)
		}
		for _, row := range r.Rows {
			timed := row.RoundTrip.P50us > 0 && row.Dispatch.P50us > 0 && row.Dispatch.P99us >= row.Dispatch.P50us
			counted := len(row.Written) == r.Ranks && (row.Tokens > 0) == (row.Ratio >= 1) && (row.Tokens > 0) == (row.CopiesPerToken > 0)
			if row.Wrong != 0 || !timed || !counted {
				t.Errorf("%v: %+v", args, row)
			}
		}
	}
	status, stdout, stderr := railhead(t, env, "bench", "moe", "--device", "cuda", "--hidden", "64", "--experts", "4", "--topk", "2", "--tokens", "2", "-n", "2", "-G", "2")
	for _, want := range []string{"# device: fake device 0", "validation: before and after, graph: 2", "# Wrong elements : 0 OK"} {
		if status != 0 || !strings.Contains(stdout, want) {
			t.Errorf("status %d, %s: no %q in\n%s", status, stderr, want, stdout)
		}
	}
	status, stdout, stderr = railhead(t, env, "bench", "moe", "--device", "cuda", "--hidden", "64", "--experts", "4", "--topk", "2", "--tokens", "2", "-n", "2")
	if want := "validation: before and after\n"; status != 0 || !strings.Contains(stdout, want) {
		t.Errorf("without a graph: status %d, %s: no %q in\n%s", status, stderr, want, stdout)
	}
	for _, args := range [][]string{{"-G", "2"}, {"--mps"}} {
		if status, _, stderr := railhead(t, env, append([]string{"bench", "moe"}, args...)...); status != cli.Usage {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
}

package main

import (
	"os"
	"strings"
	"testing"

	"railhead/internal/ncclstyle"
)

func TestBenchAllReduceMeasuresAndChecksBothWays(t *testing.T) {
	for _, dtype := range []string{"float", "bf16"} {
		status, stdout, stderr := run(t, nil, "bench", "allreduce", "--ranks", "3", "-b", "8", "-e", "200K", "-f", "5",
			"-n", "3", "-w", "1", "-c", "2", "-d", dtype, "--json")
		if status != 0 {
			t.Fatalf("%s: status %d: %s", dtype, status, stderr)
		}
		var r ncclstyle.Report
		decodeStrict(t, stdout, &r)
		if !r.OK || len(r.Rows) != 7 {
			t.Fatalf("%s: got %+v", dtype, r)
		}
		for _, row := range r.Rows {
			want := "oneshot"
			if row.SizeBytes >= 16<<10 {
				want = "twoshot"
			}
			if row.Algo != want || row.Redop != "sum" || row.InPlace == nil || row.OutOfPlace.Wrong == nil || *row.OutOfPlace.Wrong != 0 ||
				*row.InPlace.Wrong != 0 || row.OutOfPlace.TimeUs <= 0 {
				t.Errorf("%s: got %+v", dtype, row)
			}
		}
	}
}

func TestBenchPrintsNCCLTestsTable(t *testing.T) {
	status, stdout, stderr := run(t, nil, "bench", "allreduce", "-b", "1K", "-e", "2K", "-f", "2", "-n", "2", "-c", "0")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{"#wrong", "N/A", "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in %q", want, stdout)
		}
	}
}

func TestBenchBarrierHasOneRowWithoutASize(t *testing.T) {
	status, stdout, stderr := run(t, nil, "bench", "barrier", "--ranks", "5", "-n", "50", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r ncclstyle.Report
	decodeStrict(t, stdout, &r)
	if !r.OK || len(r.Rows) != 1 || r.Rows[0].SizeBytes != 0 || r.Rows[0].InPlace != nil || r.Rows[0].OutOfPlace.TimeUs <= 0 {
		t.Errorf("got %+v", r)
	}
}

func TestBenchRefusesWrongFlagsBeforeItStartsAnything(t *testing.T) {
	for want, args := range map[string][]string{
		"no operation":    {"bench", "alltoallw"},
		"name an":         {"bench"},
		"-o":              {"bench", "allreduce", "-o", "median"},
		"-d":              {"bench", "allreduce", "-d", "int3"},
		"-b":              {"bench", "allreduce", "-b", "many"},
		"--algo":          {"bench", "allreduce", "--algo", "ring"},
		"there twice":     {"bench", "allreduce", "--algo", "pull,pull"},
		"--ranks 0":       {"bench", "allreduce", "--ranks", "0"},
		"-r 2":            {"bench", "allreduce", "-r", "2"},
		"-n 0":            {"bench", "allreduce", "-n", "0"},
		"unknown command": {"bencg"},
		"unknown flag":    {"bench", "allreduce", "--quick"},
	} {
		status, stdout, stderr := run(t, nil, args...)
		if status != exitUsage || !strings.Contains(stderr, want) || strings.Contains(stdout, "#wrong") {
			t.Errorf("%v: status %d, stderr %q, want %q", args, status, stderr, want)
		}
	}
}

func TestBenchDrawsSeveralAlgorithmsAndSaysWhichRan(t *testing.T) {
	svg := t.TempDir() + "/plot.svg"
	status, stdout, stderr := run(t, nil, "bench", "allreduce", "--ranks", "3", "-b", "4", "-e", "256K", "-f", "16", "-n", "2",
		"--algo", "oneshot,twoshot,pull,auto", "--plot", svg, "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r ncclstyle.Report
	decodeStrict(t, stdout, &r)
	ran := map[string]int{}
	for _, row := range r.Rows {
		ran[row.Algo]++
		if *row.OutOfPlace.Wrong != 0 || *row.InPlace.Wrong != 0 {
			t.Errorf("got %+v", row)
		}
	}
	// Auto takes one-shot for the small sizes and two-shot for the large ones: 5 sizes each.
	if !r.OK || ran["pull"] != 5 || ran["oneshot"] <= 5 || ran["twoshot"] <= 5 || len(r.Rows) != 20 {
		t.Errorf("ran %v, %+v", ran, r)
	}
	drawn, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "oneshot", "twoshot", "pull", "time (us)", "bus bandwidth"} {
		if !strings.Contains(string(drawn), want) {
			t.Errorf("no %q in the plot", want)
		}
	}
}

func TestAPlotThatCannotBeWrittenIsAFailure(t *testing.T) {
	status, _, stderr := run(t, nil, "bench", "allreduce", "-b", "8", "-e", "8", "-n", "1", "--plot", t.TempDir()+"/no/such/dir.svg")
	if status != exitFailed || !strings.Contains(stderr, "plot") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

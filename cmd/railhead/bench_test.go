package main

import (
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
			if row.Algo != "oneshot" || row.Redop != "sum" || row.InPlace == nil || row.OutOfPlace.Wrong == nil || *row.OutOfPlace.Wrong != 0 ||
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

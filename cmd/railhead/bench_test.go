package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/plan"
	"railhead/internal/ncclstyle"
)

// benchReport runs bench, which is to succeed, and returns its JSON.
func benchReport(t *testing.T, args ...string) ncclstyle.Report {
	t.Helper()
	status, stdout, stderr := railhead(t, nil, append(append([]string{"bench"}, args...), "--json")...)
	if status != 0 {
		t.Fatalf("bench %v: status %d: %s", args, status, stderr)
	}
	var r ncclstyle.Report
	decodeStrict(t, stdout, &r)
	if !r.OK {
		t.Fatalf("bench %v: got %+v", args, r)
	}
	return r
}

// checkedAndRight says whether every side that the operation has was timed, compared and right.
func checkedAndRight(op ncclstyle.Operation, row ncclstyle.Row) bool {
	sides := []ncclstyle.Side{row.OutOfPlace}
	if (row.InPlace != nil) != op.InPlace() {
		return false
	}
	if row.InPlace != nil {
		sides = append(sides, *row.InPlace)
	}
	for _, s := range sides {
		if s.TimeUs <= 0 || s.P50Us <= 0 || s.P99Us < s.P50Us || s.Wrong == nil || *s.Wrong != 0 {
			return false
		}
	}
	return true
}

func TestBenchAllReduceMeasuresAndChecksBothWays(t *testing.T) {
	for _, dtype := range []string{"float", "bf16"} {
		r := benchReport(t, "allreduce", "--ranks", "3", "-b", "8", "-e", "200K", "-f", "5", "-n", "3", "-w", "1", "-c", "2", "-d", dtype)
		if len(r.Rows) != 7 {
			t.Fatalf("%s: got %+v", dtype, r)
		}
		for _, row := range r.Rows {
			want := "oneshot"
			if row.SizeBytes >= 16<<10 {
				want = "twoshot"
			}
			if row.Algo != want || row.Why != "default" || row.Redop != "sum" || row.Root != nil || !checkedAndRight(ncclstyle.AllReduce, row) {
				t.Errorf("%s: got %+v", dtype, row)
			}
		}
	}
}

func TestBenchMeasuresAndChecksEveryOperationOfEveryTypeAndReduction(t *testing.T) {
	t.Parallel()
	types, err := ncclstyle.ParseDtypes("all")
	if err != nil {
		t.Fatal(err)
	}
	for i, op := range ncclstyle.Operations() {
		if op == ncclstyle.Barrier {
			continue // has no data
		}
		ranks := 2 + i%2
		r := benchReport(t, op.Command(), "--ranks", strconv.Itoa(ranks), "-b", "0", "-e", "2000", "-i", "1000", "-n", "2", "-c", "2",
			"-d", "all", "-o", "all", "-r", "1")
		reductions := []string{"none"}
		if op.Reduces() {
			reductions = []string{"sum", "prod", "max", "min", "avg", "mulsum"}
		}
		rows := r.Rows
		for _, d := range types {
			for _, redop := range reductions {
				for _, asked := range []uint64{0, 1000, 2000} {
					if len(rows) == 0 {
						t.Fatalf("%s: only %d rows: %+v", op, len(r.Rows), r)
					}
					row, count := rows[0], op.Count(asked, d, ranks)
					rows = rows[1:]
					if row.Type != string(d) || row.Redop != redop || row.Count != count || row.SizeBytes != op.Bytes(count, d, ranks) {
						t.Fatalf("%s: got %+v, want %d %s, %s", op, row, count, d, redop)
					}
					if (row.Root != nil && *row.Root == 1) != op.Rooted() || !checkedAndRight(op, row) {
						t.Errorf("%s: got %+v", op, row)
					}
				}
			}
		}
		if len(rows) != 0 {
			t.Errorf("%s: more rows than asked for: %+v", op, rows)
		}
	}
}

// A tree and a classic ring do not add in rank order. Their rounding must not count as an error.
func TestBenchChecksAlgorithmsThatAddInAnotherOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ command, algo, reproducible string }{
		{"allreduce", "tree", "on"}, {"allreduce", "ring", "off"}, {"reducescatter", "ring", "off"},
	} {
		status, stdout, stderr := railhead(t, []string{"RAILHEAD_REPRODUCIBLE=" + c.reproducible}, "bench", c.command, "--ranks", "4", "-b", "4K", "-e", "4K",
			"-n", "1", "-d", "all", "-o", "all", "--algo", c.algo, "--json")
		var r ncclstyle.Report
		decodeStrict(t, stdout, &r)
		if status != 0 || len(r.Rows) != 11*6 {
			t.Errorf("%+v: status %d, %d rows, stderr %s", c, status, len(r.Rows), stderr)
		}
		for _, row := range r.Rows {
			if row.Algo != c.algo || !checkedAndRight(ncclstyle.AllReduce, row) {
				t.Errorf("%+v: got %+v", c, row)
			}
		}
	}
}

func TestBenchTakesEachRankAsRoot(t *testing.T) {
	for _, op := range []ncclstyle.Operation{ncclstyle.Broadcast, ncclstyle.Reduce, ncclstyle.Gather, ncclstyle.Scatter} {
		r := benchReport(t, op.Command(), "--ranks", "4", "-b", "1000", "-e", "1000", "-n", "1", "-r", "-1")
		var roots []int
		for _, row := range r.Rows {
			if row.Root == nil || !checkedAndRight(op, row) {
				t.Fatalf("%s: got %+v", op, row)
			}
			roots = append(roots, *row.Root)
		}
		if !slices.Equal(roots, []int{0, 1, 2, 3}) {
			t.Errorf("%s: roots %v", op, roots)
		}
	}
}

func TestBenchBuffersInWindowsAreNotCopied(t *testing.T) {
	t.Parallel()
	for op, want := range map[ncclstyle.Operation]string{
		ncclstyle.AllReduce: "pull", ncclstyle.AllGather: "pull", ncclstyle.ReduceScatter: "pull",
		ncclstyle.AllToAll: "pull/oneshot", // in place it would overwrite data that others have not read yet
		ncclstyle.Scatter:  "pipe",
	} {
		r := benchReport(t, op.Command(), "-n", "1", "-d", "i8", "--window", "-b", "1M", "-e", "1M")
		if len(r.Rows) != 1 || r.Rows[0].Algo != want || !checkedAndRight(op, r.Rows[0]) {
			t.Errorf("%s: got %+v, want %s", op, r.Rows, want)
		}
	}
	// Pull means windows, whatever the size.
	r := benchReport(t, "allgather", "-n", "1", "-d", "i8", "--algo", "pull", "-b", "200", "-e", "200")
	if len(r.Rows) != 1 || r.Rows[0].Algo != "pull" || !checkedAndRight(ncclstyle.AllGather, r.Rows[0]) {
		t.Errorf("--algo pull: got %+v", r.Rows)
	}
}

func TestBenchOfARankAloneIsRightToo(t *testing.T) {
	for _, op := range []ncclstyle.Operation{ncclstyle.ReduceScatter, ncclstyle.Gather, ncclstyle.Sendrecv} {
		r := benchReport(t, op.Command(), "--ranks", "1", "-b", "100", "-e", "100", "-n", "1", "-o", "mulsum")
		if len(r.Rows) != 1 || r.Rows[0].Algo != "none" || !checkedAndRight(op, r.Rows[0]) {
			t.Errorf("%s: got %+v", op, r.Rows)
		}
	}
}

func TestBenchPrintsNCCLTestsTable(t *testing.T) {
	status, stdout, stderr := railhead(t, nil, "bench", "allreduce", "-b", "1K", "-e", "2K", "-f", "2", "-n", "2", "-c", "0")
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
	status, stdout, stderr := railhead(t, nil, "bench", "barrier", "--ranks", "5", "-n", "50", "--json")
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
		"unknown operation":            {"bench", "alltoallw"},
		"alltoall, broadcast":          {"bench"},
		"use sum, prod":                {"bench", "allreduce", "-o", "median"},
		"-o: reduction":                {"bench", "broadcast", "-o", "Sum"},
		"-d: datatype \"int3\"":        {"bench", "allreduce", "-d", "int3"},
		"-d: datatype \"uint32":        {"bench", "gather", "-d", "uint32"},
		"-b":                           {"bench", "allreduce", "-b", "many"},
		"--algo":                       {"bench", "allreduce", "--algo", "rings"},
		"none is left for alltoall":    {"bench", "alltoall", "--algo", "alltoall:^" + strings.Join(plan.Algorithms()["alltoall"], ",")},
		"given twice":                  {"bench", "allreduce", "--algo", "pull,pull"},
		"--ranks 0":                    {"bench", "allreduce", "--ranks", "0"},
		"-r 2 is outside 0..1":         {"bench", "reduce", "-r", "2"},
		"-r -2":                        {"bench", "reduce", "-r", "-2"},
		"-n 0":                         {"bench", "allreduce", "-n", "0"},
		"more than the limit of 65536": {"bench", "reduce", "-b", "1", "-e", "1000", "-i", "1", "-d", "all", "-o", "all"},
		"unknown command":              {"bencg"},
		"unknown flag":                 {"bench", "allreduce", "--quick"},
		"unknown flag: --win":          {"bench", "barrier", "--window"},
	} {
		status, stdout, stderr := railhead(t, nil, args...)
		if status != cli.Usage || !strings.Contains(stderr, want) || strings.Contains(stdout, "#wrong") {
			t.Errorf("%v: status %d, stderr %q, want %q", args, status, stderr, want)
		}
	}
}

func TestBenchTakesAForcingTextFromTheEnvironment(t *testing.T) {
	status, stdout, stderr := railhead(t, []string{"RAILHEAD_ALGO=allreduce:ring;^tree"}, "bench", "allreduce", "-b", "1K", "-e", "1K", "-n", "1")
	if status != 0 || !strings.Contains(stdout, "# algo: ring (forced)") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

func TestBenchPlotsSeveralAlgorithmsAndReportsWhichRan(t *testing.T) {
	svg := t.TempDir() + "/plot.svg"
	status, stdout, stderr := railhead(t, nil, "bench", "allreduce", "--ranks", "3", "-b", "4", "-e", "256K", "-f", "16", "-n", "2",
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
	status, _, stderr := railhead(t, nil, "bench", "allreduce", "-b", "8", "-e", "8", "-n", "1", "--plot", t.TempDir()+"/no/such/dir.svg")
	if status != cli.Failed || !strings.Contains(stderr, "plot") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

package ncclstyle

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files of this package instead of comparing with them")

func table(t *testing.T, cfg Config, rows []Row) string {
	t.Helper()
	var out bytes.Buffer
	p := NewPrinter(&out, cfg)
	if err := p.Header(); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := p.Row(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Footer(NewReport(rows)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func allReduceRow(size uint64, algo string, outUs, inUs float64, outWrong, inWrong *int64) Row {
	in := Measured("all_reduce", 4, size, inUs, inWrong)
	return Row{SizeBytes: size, Count: size / 4, Type: string(Float), Redop: string(Sum), Algo: algo,
		OutOfPlace: Measured("all_reduce", 4, size, outUs, outWrong), InPlace: &in}
}

func inPlace(op Operation, size uint64, us float64) *Side {
	s := Measured(op, 4, size, us, wrong(0))
	return &s
}

func TestTablesLookAsNcclTestsPrintsThem(t *testing.T) {
	cfg := Config{Op: "all_reduce", Algo: "oneshot", Device: "cpu", Ranks: 4, Warmup: 5, Iters: 20, Check: 1,
		Sweep: Sweep{Min: 1 << 10, Max: 8 << 20, StepBytes: DefaultStepBytes, StepFactor: 2}}
	auto, unchecked, barrier := cfg, cfg, cfg
	auto.Algo = "auto"
	unchecked.Check, unchecked.Sweep = 0, Sweep{Min: 0, Max: 1 << 20, StepBytes: 1 << 20, StepFactor: 1}
	barrier.Op, barrier.Algo, barrier.Sweep = Barrier, "flags", Sweep{}
	third := 3
	rooted, ring, several := cfg, cfg, cfg
	rooted.Op, rooted.Algo, ring.Op, ring.Algo = Reduce, "auto", Sendrecv, "auto"
	several.Op, several.Algo = AllToAll, "auto"
	percentiles, alone := cfg, ring
	percentiles.Percentiles, alone.Percentiles = true, true
	spread := allReduceRow(1<<10, "oneshot", 6.287, 5.991, wrong(0), wrong(0))
	spread.OutOfPlace.P50Us, spread.OutOfPlace.P99Us, spread.InPlace.P50Us, spread.InPlace.P99Us = 5.5, 123.456, 5.25, 1e9
	for name, c := range map[string]struct {
		cfg  Config
		rows []Row
	}{
		"percentiles": {percentiles, []Row{spread}},
		"percentiles-out-of-place": {alone, []Row{{SizeBytes: 8, Count: 8, Type: string(Int8), Redop: None, Algo: "pipe",
			OutOfPlace: Side{TimeUs: 2, P50Us: 1.5, P99Us: 9}}}},
		"checked": {cfg, []Row{
			allReduceRow(1<<10, "oneshot", 6.287, 5.991, wrong(0), wrong(0)),
			allReduceRow(64<<10, "oneshot", 12345.678, 99999.99, wrong(0), wrong(0)),
			allReduceRow(8<<20, "oneshot", 0.00123, 123456789.4, wrong(0), wrong(0)),
		}},
		"wrong": {cfg, []Row{
			allReduceRow(1<<10, "oneshot", 6.287, 5.991, wrong(17), wrong(0)),
			allReduceRow(8<<20, "oneshot", 999.996, 9999999.6, wrong(999999), wrong(1234567)),
		}},
		"auto":      {auto, []Row{allReduceRow(1<<10, "oneshot", 6, 6, wrong(0), wrong(0)), allReduceRow(8<<20, "twoshot", 900, 901, wrong(0), wrong(0))}},
		"unchecked": {unchecked, []Row{allReduceRow(0, "oneshot", 1, 1, nil, nil), allReduceRow(1<<20, "oneshot", 55.5, 54.25, nil, nil)}},
		"roots": {rooted, []Row{
			{SizeBytes: 1 << 10, Count: 512, Type: string(BFloat16), Redop: string(MulSum), Root: new(int), Algo: "pipe",
				OutOfPlace: Measured(Reduce, 4, 1<<10, 6, wrong(0)), InPlace: inPlace(Reduce, 1<<10, 7)},
			{SizeBytes: 1 << 10, Count: 512, Type: string(BFloat16), Redop: string(MulSum), Root: &third, Algo: "pipe",
				OutOfPlace: Measured(Reduce, 4, 1<<10, 6, wrong(0)), InPlace: inPlace(Reduce, 1<<10, 7)},
		}},
		"sendrecv": {ring, []Row{{SizeBytes: 1 << 20, Count: 1 << 20, Type: string(F8E4M3), Redop: None, Algo: "pipe",
			OutOfPlace: Measured(Sendrecv, 4, 1<<20, 100, wrong(0))}}},
		"alltoall": {several, []Row{
			{SizeBytes: 1 << 20, Count: 1 << 18, Type: string(Int8), Redop: None, Algo: "pull/oneshot",
				OutOfPlace: Measured(AllToAll, 4, 1<<20, 100, wrong(0)), InPlace: inPlace(AllToAll, 1<<20, 125)},
			{SizeBytes: 1 << 20, Count: 1 << 15, Type: string(Uint64), Redop: None, Algo: "pull/oneshot",
				OutOfPlace: Measured(AllToAll, 4, 1<<20, 100, wrong(0)), InPlace: inPlace(AllToAll, 1<<20, 125)},
		}},
		"barrier": {barrier, []Row{{Type: None, Redop: None, Algo: "flags",
			OutOfPlace: Measured("barrier", 4, 0, 1.75, nil)}}},
	} {
		got := table(t, c.cfg, c.rows)
		file := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant (go test ./internal/ncclstyle -update writes it anew)\n%s", name, got, want)
		}
	}
}

// These lines were printed in C with the formats of nccl-tests 2.19.6: the golden files alone would follow a change here.
func TestLinesAreByteForByteThoseOfNcclTests(t *testing.T) {
	cfg := Config{Op: "all_reduce", Algo: "oneshot", Device: "cpu", Ranks: 8, Sweep: DefaultSweep(), Check: 1}
	in := Side{TimeUs: 123456.7, AlgBW: 1234.56, BusBW: 12345.67, Wrong: wrong(1234567)}
	unchecked := Side{TimeUs: 12345678, AlgBW: 123456.7, BusBW: 12345678}
	got := table(t, cfg, []Row{
		{SizeBytes: 33554432, Count: 8388608, Type: "float", Redop: "sum", Algo: "oneshot",
			OutOfPlace: Side{TimeUs: 286.41, AlgBW: 117.154, BusBW: 205.02, Wrong: wrong(0)}, InPlace: &in},
		{SizeBytes: 33554432, Count: 8388608, Type: "float", Redop: "sum", Algo: "oneshot",
			OutOfPlace: unchecked, InPlace: &unchecked},
	})
	for _, want := range []string{
		"#                                                              out-of-place                       in-place          ",
		"#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
		"#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
		"    33554432       8388608     float     sum      -1   286.41  117.15  205.02       0   123457  1234.6   12346  1.23457e+06",
		"    33554432       8388608     float     sum      -1  1.2e+07  123457   1e+07    N/A  1.2e+07  123457   1e+07    N/A",
		"# Out of bounds values : 1 FAILED",
		"# Avg bus bandwidth    : 6.17598e+06 ",
	} {
		if !strings.Contains("\n"+got, "\n"+want+"\n") {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
}

func TestARunThatWasInterruptedIsNotCalledFailed(t *testing.T) {
	row := allReduceRow(8, "oneshot", 1, 1, wrong(0), wrong(0))
	for want, r := range map[string]Report{
		"values : 0 OK\n": NewReport([]Row{row}), "values : 0 INCOMPLETE\n": {Rows: []Row{row}, Error: "interrupted"},
		"values : 1 FAILED\n": {Rows: []Row{allReduceRow(8, "oneshot", 1, 1, wrong(2), wrong(0))}, Error: "interrupted"},
	} {
		var out bytes.Buffer
		if err := NewPrinter(&out, Config{}).Footer(r); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("got %q, %v, want %q", out.String(), err, want)
		}
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errDisk
	}
	return len(p), nil
}

var errDisk = errors.New("disk full")

func TestWriteErrorIsReportedByEveryLaterCall(t *testing.T) {
	p := NewPrinter(&failingWriter{left: 100}, Config{})
	for what, err := range map[string]error{
		"header": p.Header(), "row": p.Row(Row{}), "footer": p.Footer(Report{}),
	} {
		if !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

package ncclstyle

import (
	"fmt"
	"io"
)

// Config has the values of the lines above the table.
type Config struct {
	Op     Operation
	Algo   string // as requested: a name, or auto
	Device string // cpu, or the GPUs' names
	Ranks  int
	Sweep  Sweep
	Warmup int
	Iters  int
	Check  int // checked iterations of each side; 0: results are not checked

	// Launches of a CUDA graph of all iterations; 0: no graph.
	Launches int

	// Percentiles adds columns at the end, which nccl-tests does not have: Side.P50Us and P99Us, out of place and in place.
	Percentiles bool
}

// Printer prints a run as nccl-tests does. Lines that begin with # are comments in that format. They have what nccl-tests has no
// column for: the algorithm.
type Printer struct {
	w    io.Writer
	cfg  Config
	algo string // the algorithm last printed
	err  error  // first write error; nothing is written after it
}

// NewPrinter returns a printer to w. Call Header, then Row for each size, then Footer.
func NewPrinter(w io.Writer, cfg Config) *Printer {
	return &Printer{w: w, cfg: cfg}
}

func (p *Printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// result returns the first write error.
func (p *Printer) result() error {
	if p.err != nil {
		return fmt.Errorf("print results: %w", p.err)
	}
	return nil
}

// Header prints the run's parameters and the three header lines of the table.
func (p *Printer) Header() error {
	step, unit := p.cfg.Sweep.StepBytes, "bytes"
	if p.cfg.Sweep.StepFactor > 1 {
		step, unit = p.cfg.Sweep.StepFactor, "factor"
	}
	p.printf("# Collective test starting: %s\n", p.cfg.Op)
	// In nccl-tests this line begins with the numbers of threads and GPUs. Here a rank is a process.
	p.printf("# nRanks %d minBytes %d maxBytes %d step: %d(%s) warmup iters: %d iters: %d validation: %d",
		p.cfg.Ranks, p.cfg.Sweep.Min, p.cfg.Sweep.Max, step, unit, p.cfg.Warmup, p.cfg.Iters, p.cfg.Check)
	if p.cfg.Launches > 0 {
		p.printf(" graph: %d", p.cfg.Launches)
	}
	p.printf("\n")
	p.printf("# device: %s\n", p.cfg.Device)
	p.algoLine(p.cfg.Algo)
	p.printf("#\n")
	p.printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          ", "", "", "", "", "")
	p.more("     out-of-place          in-place    ")
	p.printf("\n")
	p.headerLine("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
	p.headerLine("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
	return p.result()
}

func (p *Printer) headerLine(size, count, dtype, redop, root, time, algbw, busbw, wrong string) {
	const side = "  %7s  %6s  %6s  %6s"
	// nccl-tests has an empty column for a timestamp at the end, hence the blank.
	p.printf("# %10s  %12s  %8s  %6s  %6s"+side+side+" ", size, count, dtype, redop, root,
		time, algbw, busbw, wrong, time, algbw, busbw, wrong)
	p50, p99 := "p50", "p99"
	if size != "size" {
		p50, p99 = time, time // the unit
	}
	p.more(" %7s  %7s  %7s  %7s", p50, p99, p50, p99)
	p.printf("\n")
}

// more prints columns of percentiles.
func (p *Printer) more(format string, args ...any) {
	if p.cfg.Percentiles {
		p.printf(format, args...)
	}
}

func (p *Printer) algoLine(algo string) {
	p.printf("# algo: %s\n", algo)
	p.algo = algo
}

// Row prints the row of one size. Where its algorithm or the reason for it differs from the last row's, it prints that first.
func (p *Printer) Row(r Row) error {
	algo := r.Algo
	if r.Why != "" && r.Why != None {
		algo += " (" + r.Why + ")"
	}
	if algo != p.algo {
		p.algoLine(algo)
	}
	root := -1
	if r.Root != nil {
		root = *r.Root
	}
	p.printf("%12d  %12d  %8s  %6s  %6d", r.SizeBytes, r.Count, r.Type, r.Redop, root)
	p.side(r.OutOfPlace)
	if r.InPlace != nil {
		p.side(*r.InPlace)
	} else {
		p.printf("  %7s  %6s  %6s    N/A", "N/A", "N/A", "N/A")
	}
	p.more("  %s  %s", fitted(r.OutOfPlace.P50Us, 7), fitted(r.OutOfPlace.P99Us, 7))
	if r.InPlace != nil {
		p.more("  %s  %s", fitted(r.InPlace.P50Us, 7), fitted(r.InPlace.P99Us, 7))
	} else {
		p.more("  %7s  %7s", "N/A", "N/A")
	}
	p.printf("\n")
	return p.result()
}

func (p *Printer) side(s Side) {
	p.printf("  %s  %s  %s", fitted(s.TimeUs, 7), fitted(s.AlgBW, 6), fitted(s.BusBW, 6))
	if s.Wrong == nil {
		p.printf("    N/A") // one column narrower than a number, as in nccl-tests
		return
	}
	// C's %g has six digits; Go's has as many as are needed.
	p.printf("  %6.6g", float64(*s.Wrong))
}

// fitted formats v in width characters: with two decimals, one, none, or in scientific notation.
func fitted(v float64, width int) string {
	for decimals := 2; decimals >= 0; decimals-- {
		if s := fmt.Sprintf("%*.*f", width, decimals, v); len(s) <= width {
			return s
		}
	}
	mantissa := 0
	if width >= 7 {
		mantissa = 1
	}
	return fmt.Sprintf("%*.*e", width, mantissa, v)
}

// Footer prints the sums of the rows.
func (p *Printer) Footer(r Report) error {
	wrong, verdict := r.OutOfBounds(), "OK"
	switch {
	case wrong > 0:
		verdict = "FAILED"
	case !r.OK:
		verdict = "INCOMPLETE" // nothing was wrong, but not everything was measured
	}
	p.printf("# %-20s : %d %s\n", "Out of bounds values", wrong, verdict)
	p.printf("# %-20s : %.6g \n", "Avg bus bandwidth", r.AvgBusBW())
	p.printf("#\n# Collective test concluded: %s\n#\n\n", p.cfg.Op)
	return p.result()
}

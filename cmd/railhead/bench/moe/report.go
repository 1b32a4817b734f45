package moe

import (
	"fmt"
	"io"

	"railhead/alltoall"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/experts"
	"railhead/internal/sizeplot"
)

// Report is the result of a run, as --json prints it.
type Report struct {
	Device       string        `json:"device"`
	Ranks        int           `json:"ranks"`
	Shape        experts.Shape `json:"shape"`
	Iterations   int           `json:"iterations"`
	Warmup       int           `json:"warmup"`
	Launches     int           `json:"launches,omitempty"` // of a graph of all iterations
	BufferBytes  uint64        `json:"buffer_bytes"`       // window memory per rank
	PrivateBytes uint64        `json:"private_bytes"`      // private memory of the library per rank; the maximum
	Rows         []Row         `json:"rows"`
	OK           bool          `json:"ok"`              // all rows were measured, and no element is wrong
	Error        string        `json:"error,omitempty"` // why not all rows were measured
}

// Row is the result for one number of tokens.
type Row struct {
	Tokens         int       `json:"tokens"` // per rank
	Dispatch       Latency   `json:"dispatch"`
	Combine        Latency   `json:"combine"`
	RoundTrip      Latency   `json:"round_trip"`
	CopiesPerToken float64   `json:"copies_per_token"`
	Written        []traffic `json:"written"` // by rank: bytes per round trip
	Least          []float64 `json:"least"`   // by rank: least possible payload of a round trip, in bytes
	Ratio          float64   `json:"ratio"`   // (payload + headers) / least, the maximum over the ranks; 0 if there is nothing to write
	Wrong          int64     `json:"wrong"`
}

// Latency summarizes the times of the slowest rank of each iteration.
type Latency struct {
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"`
	AlgBW float64 `json:"algbw,omitempty"` // GB/s; a round trip has none
}

func newReport(j *job, ranks int, device string) *Report {
	return &Report{
		Device: device, Launches: j.Launches, Ranks: ranks, Shape: j.Shape, Iterations: j.Iterations, Warmup: j.Warmup, Rows: []Row{},
	}
}

const mib = 1 << 20

func (r *Report) header(w io.Writer) {
	s := &r.Shape
	wire := string(s.Wire)
	if s.Wire == alltoall.FP8E4M3 {
		wire += " with scales " + s.Scale.String()
	}
	_, _ = fmt.Fprintf(w, "# MoE dispatch and combine: %s, %s rows, routing %s, seed %d\n", s.Mode, s.Layout, s.Routing, s.Seed)
	validation := "first and last iteration"
	if r.where() == cli.DeviceCUDA {
		validation = "before and after"
		if r.Launches > 0 {
			validation += fmt.Sprintf(", graph: %d", r.Launches)
		}
	}
	_, _ = fmt.Fprintf(w, "# nRanks %d hidden %d experts %d topk %d warmup iters: %d iters: %d validation: %s\n",
		r.Ranks, s.Hidden, s.Experts, s.TopK, r.Warmup, r.Iterations, validation)
	_, _ = fmt.Fprintf(w, "# device: %s, tokens %s, on the wire %s, partial sums %s\n", r.Device, s.Dtype, wire, s.Combine)
	_, _ = fmt.Fprintf(w, "# memory per rank for %d tokens: window %.2f MiB (%d B), private %.2f MiB (%d B)\n#\n", s.Tokens,
		float64(r.BufferBytes)/mib, r.BufferBytes, float64(r.PrivateBytes)/mib, r.PrivateBytes)
	_, _ = fmt.Fprintf(w, "# %7s  %28s  %28s  %19s  %47s\n", "", "dispatch          ", "combine          ", "round trip    ",
		"written per rank and round trip        ")
	for _, line := range [][]any{
		{"tokens", "p50", "p99", "algbw", "p50", "p99", "algbw", "p50", "p99", "copies", "payload", "headers", "flags", "ratio", "#wrong"},
		{"", "(us)", "(us)", "(GB/s)", "(us)", "(us)", "(GB/s)", "(us)", "(us)", "", "(B)", "(B)", "(B)", "", ""},
	} {
		_, _ = fmt.Fprintf(w, "# %7s  %9s %9s  %7s  %9s %9s  %7s  %9s %9s  %6s  %11s  %9s  %7s  %6s  %6s\n", line...)
	}
}

func (r *Row) print(w io.Writer) {
	var mean traffic
	for _, t := range r.Written {
		t = t.over(float64(len(r.Written)))
		mean = traffic{mean.Payload + t.Payload, mean.Headers + t.Headers, mean.Flags + t.Flags}
	}
	ratio := "N/A"
	if r.Ratio > 0 {
		ratio = fmt.Sprintf("%.3f", r.Ratio)
	}
	_, _ = fmt.Fprintf(w, "  %7d  %9.1f %9.1f  %7.2f  %9.1f %9.1f  %7.2f  %9.1f %9.1f  %6.2f  %11.0f  %9.0f  %7.0f  %6s  %6d\n",
		r.Tokens, r.Dispatch.P50us, r.Dispatch.P99us, r.Dispatch.AlgBW, r.Combine.P50us, r.Combine.P99us, r.Combine.AlgBW,
		r.RoundTrip.P50us, r.RoundTrip.P99us, r.CopiesPerToken, mean.Payload, mean.Headers, mean.Flags, ratio, r.Wrong)
}

func (r *Report) footer(w io.Writer) {
	var wrong int64
	for _, row := range r.Rows {
		wrong += row.Wrong
	}
	verdict := "OK"
	switch {
	case wrong > 0:
		verdict = "FAILED"
	case !r.OK:
		verdict = "INCOMPLETE" // nothing was wrong, but not everything was measured
	}
	_, _ = fmt.Fprintf(w, "# Wrong elements : %d %s\n", wrong, verdict)
}

// where is the kind of devices, a value of --device.
func (r *Report) where() string {
	if r.Device == cli.DeviceCPU {
		return cli.DeviceCPU
	}
	return cli.DeviceCUDA
}

// draw plots latency and bandwidth of dispatch and combine against the number of tokens.
func (r *Report) draw(w io.Writer) error {
	title := fmt.Sprintf("MoE %s, hidden %d, %d experts, top %d, %s, %s", r.Shape.Mode, r.Shape.Hidden, r.Shape.Experts,
		r.Shape.TopK, r.Shape.Wire, cli.RanksOn(r.Ranks, r.where()))
	tokens := sizeplot.Count("tokens per rank")
	latency, bandwidth := sizeplot.NewPanel(title, tokens, "time (us)"), sizeplot.NewPanel("", tokens, "algorithm bandwidth (GB/s)")
	for i, phase := range []struct {
		name string
		of   func(Row) Latency
	}{{"dispatch", func(r Row) Latency { return r.Dispatch }}, {"combine", func(r Row) Latency { return r.Combine }}} {
		line := func(of func(Latency) float64) (points []sizeplot.Point) {
			for _, row := range r.Rows {
				if y := of(phase.of(row)); row.Tokens > 0 && y > 0 { // 0 is not on a logarithmic axis
					points = append(points, sizeplot.Point{X: float64(row.Tokens), Y: y})
				}
			}
			return points
		}
		p50 := line(func(l Latency) float64 { return l.P50us })
		if len(p50) == 0 {
			return fmt.Errorf("--plot: no row has both tokens and a time")
		}
		if err := latency.AddLine(i, sizeplot.Ours, phase.name+" p50", p50); err != nil {
			return err
		}
		if err := latency.AddLine(i, sizeplot.OursTail, phase.name+" p99", line(func(l Latency) float64 { return l.P99us })); err != nil {
			return err
		}
		if err := bandwidth.AddLine(i, sizeplot.Ours, phase.name, line(func(l Latency) float64 { return l.AlgBW })); err != nil {
			return err
		}
	}
	return sizeplot.WriteSVG(w, latency, bandwidth)
}

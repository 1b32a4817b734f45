package demo

import (
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
)

// table prints the report for a person.
func (r *Report) table(p *play, out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "\n\t\t\t\ttransfer\ttransfer\twait\twait\t\t\t")
	_, _ = fmt.Fprintln(w, "operation\tbytes\talgorithm\tcalls\tp50 us\tp99 us\tp50 us\tp99 us\tchecked\twrong\t")
	for _, o := range r.Ops {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%d\t\n", o.Op, o.Bytes, o.Algo, o.Calls, o.P50us, o.P99us, o.Wait50,
			o.Wait99, o.Checked, o.Wrong)
	}
	_ = w.Flush()
	_, _ = fmt.Fprintln(out, "wait: from the first rank's call to the last rank's; transfer: from then until the call returns")
	if r.HandOver != nil {
		r.HandOver.write(out)
	}
	if !r.OK {
		return
	}
	_, _ = fmt.Fprint(out, "\nEvery element of every result is correct.\n")
	if p.explain != nil {
		_, _ = fmt.Fprint(out, p.explain(r))
	}
	if s := r.disturbance(runtime.NumCPU()); s != "" {
		_, _ = fmt.Fprint(out, s)
	}
	_, _ = fmt.Fprintln(out, "Try next:")
	for _, s := range p.suggestions() {
		_, _ = fmt.Fprintf(out, "  go run ./cmd/railhead %-42s  %s\n", s.command, s.what)
	}
}

// disturbance says why the times are not those of an idle machine, if they are not.
func (r *Report) disturbance(processors int) string {
	if r.Ranks > processors {
		return fmt.Sprintf("%d ranks share %s here: most of these times are waits for a processor. --ranks %d shows what a transfer takes.\n",
			r.Ranks, processorWords(processors), ranksFor(processors))
	}
	for _, o := range r.Ops {
		if o.Wait50 > o.P50us || o.P99us > slowFactor*o.P50us {
			return "Ranks were kept waiting or interrupted, probably by other programs: on an idle machine these times are shorter.\n"
		}
	}
	return ""
}

// slowFactor is p99 / p50 from which a run counts as disturbed. On an idle machine it is below 5.
const slowFactor = 10

func processorWords(n int) string {
	if n == 1 {
		return "1 processor"
	}
	return fmt.Sprintf("%d processors", n)
}

// suggestion is a command to try next.
type suggestion struct{ command, what string }

// suggestions leave out what was just run.
func (p *play) suggestions() []suggestion {
	var all []suggestion
	for _, m := range []suggestion{{"llama-3-8b", "a model without experts"}, {"llama-3-70b", "a larger model"}, {"deepseek-v3", "a model with experts: dispatch and combine"}} {
		dense := p.shape.Experts == 0
		if m.command == p.shape.Name || m.command == "llama-3-8b" && dense || m.command == "llama-3-70b" && !dense {
			continue
		}
		all = append(all, suggestion{"demo --model " + m.command, m.what})
	}
	return append(all,
		suggestion{fmt.Sprintf("bench allreduce --ranks %d -b 1K -e 8M -f 2", max(p.ranks, 2)), "latency and bandwidth by message size"},
		suggestion{"serve", "a daemon for your own ranks (docs/usage.md)"})
}

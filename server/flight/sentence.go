package flight

import (
	"fmt"
	"strings"
	"time"
)

// sentence says in words what a stalled group's verdict says in fields.
func (v *Verdict) sentence() string {
	what := v.Operation
	if v.Collective != 0 {
		what = fmt.Sprintf("%s, collective %d", what, v.Collective)
	}
	s := fmt.Sprintf("stalled for %s in %s", ms(v.AgeMS), what)
	for i, b := range v.Behind {
		if i == maxNamed {
			s += fmt.Sprintf("; and %d more ranks are behind", len(v.Behind)-i)
			break
		}
		s += "; " + b.sentence()
	}
	return s
}

// maxNamed is how many ranks a sentence describes.
const maxNamed = 4

func (b *Behind) sentence() string {
	who := fmt.Sprintf("rank %d is behind: ", b.Rank)
	in := fmt.Sprintf("%s #%d", b.Operation, b.Sequence)
	switch b.How {
	case Gone:
		return who + "its session has ended"
	case Unresponsive:
		if b.Operation == "" {
			in = "between operations"
		}
		return who + "its process is stopped, " + in
	case Circle:
		return fmt.Sprintf("rank %d waits in %s for ranks that wait for it", b.Rank, in)
	case Busy:
		return who + fmt.Sprintf("it has been in %s for %s and waits for nobody", in, ms(b.AgeMS))
	}
	if b.Sequence == 0 {
		return who + "it has called nothing yet"
	}
	return who + fmt.Sprintf("it has called nothing since #%d ended %s ago", b.Sequence, ms(b.AgeMS))
}

func ms(v *int64) string {
	if v == nil {
		return "an unknown time"
	}
	d := time.Duration(*v) * time.Millisecond
	return strings.TrimSpace(d.Round(time.Millisecond).String())
}

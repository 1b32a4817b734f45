package flight

import (
	"fmt"
	"strings"
	"time"
)

// sentence is the verdict on a stalled group as text.
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

// maxNamed is the number of ranks that a sentence describes.
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
		return fmt.Sprintf("rank %d is in a circular wait in %s", b.Rank, in)
	case Busy:
		return who + fmt.Sprintf("it has been in %s for %s and waits for no rank", in, ms(b.AgeMS))
	}
	if b.Sequence == 0 {
		return who + "it has not called any operation yet"
	}
	return who + fmt.Sprintf("it has not called any operation since #%d ended %s ago", b.Sequence, ms(b.AgeMS))
}

func ms(v *int64) string {
	if v == nil {
		return "an unknown time"
	}
	d := time.Duration(*v) * time.Millisecond
	return strings.TrimSpace(d.Round(time.Millisecond).String())
}

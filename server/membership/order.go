package membership

import (
	"fmt"

	"railhead/internal/wire"
)

// The outputs of a step are carried out in order, and the daemon may die between any two of them. These rules hold among the
// outputs of one step that concern the same group or file:
//
//   - AdoptGroup comes first: the other outputs need the memory that it takes over;
//   - CreateGroup comes last: the memory exists only once GroupCreated, which is a step of its own, says so;
//   - Conclude comes before the answers of its call: a rank that gets no answer reads the outcome in the ledger, where it must be
//     the same. An answer that reports success has its Conclude in the same step;
//   - Conclude of a window_free comes before Decommit: a window that is in the ledger has its pages;
//   - a rank's memory is sent to the others before Conclude: the window exists once they have mapped it;
//   - Poison comes before the answers to a call that it ends: a rank that gets the answer finds the abort word set;
//   - Decommit comes before the answers: a rank that learns that a window was freed may request another one;
//   - a descriptor is sent before CloseFile or ReleaseGroup drops it, and ReleaseGroup comes last of all.

// output is an action's kind, and the group or file that it concerns.
type output struct {
	kind outputKind
	of   uint64
}

type outputKind string

const (
	anything   outputKind = "an output"
	creation   outputKind = "CreateGroup"
	conclusion outputKind = "Conclude"
	poisoning  outputKind = "Poison"
	giveBack   outputKind = "Decommit"
	answer     outputKind = "an answer that ends a call"
	release    outputKind = "ReleaseGroup"
	closing    outputKind = "CloseFile"
)

// rule is an action's own output, and the outputs of its step that must not have come before it.
type rule struct {
	is      []output
	precede []output
	needs   *output // must have come before it
}

func ruleOf(a Action) (r rule) {
	about := func(g GroupID, is outputKind, precede ...outputKind) {
		r.is = append(r.is, output{anything, uint64(g)}, output{is, uint64(g)})
		for _, k := range append(precede, creation, release) {
			r.precede = append(r.precede, output{k, uint64(g)})
		}
	}
	switch a := a.(type) {
	case AdoptGroup:
		about(a.Group, anything, anything)
	case CreateGroup:
		about(a.Group, creation)
	case Conclude:
		if a.Outcome.Code == wire.ResultOK {
			about(a.Group, conclusion, answer, giveBack)
		} else {
			about(a.Group, conclusion, answer)
		}
	case Poison:
		about(a.Group, poisoning, answer)
	case Decommit:
		about(a.Group, giveBack, answer)
	case ReleaseGroup:
		about(a.Group, release)
	case CloseFile:
		r.is = []output{{closing, uint64(a.File)}}
	case Send:
		switch {
		case a.Ends != 0:
			about(a.Ends, answer)
			switch a.Msg.(type) {
			case *wire.GroupReady, *wire.WindowReady, *wire.Registered:
				r.needs = &output{conclusion, uint64(a.Ends)}
			}
		case a.FD == ControlFD || a.FD == HeapFD:
			about(a.Group, anything)
		case a.FD == ClientFD:
			r.precede = []output{{closing, uint64(a.File)}}
		}
		switch m := a.Msg.(type) {
		case *wire.Reannounced:
			about(GroupID(m.Group), anything)
		case *wire.PeerMemory:
			about(GroupID(m.Group), anything, conclusion, answer)
		}
	}
	return r
}

// checkOrder returns an error that names the first output of a step that is out of order.
func checkOrder(step []Action) error {
	if len(step) < 2 {
		return nil
	}
	seen := map[output]bool{}
	for i, a := range step {
		r := ruleOf(a)
		for _, later := range r.precede {
			if seen[later] {
				return fmt.Errorf("output %d of %d, %+v, comes after %s of %d", i+1, len(step), a, later.kind, later.of)
			}
		}
		if r.needs != nil && !seen[*r.needs] {
			return fmt.Errorf("output %d of %d, %+v, comes without %s of %d", i+1, len(step), a, r.needs.kind, r.needs.of)
		}
		for _, o := range r.is {
			seen[o] = true
		}
	}
	return nil
}

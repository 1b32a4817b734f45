package membership

import (
	"fmt"

	"railhead/internal/wire"
)

// The outputs of a step are carried out one after the other, and the daemon may die between any two of them. What has to come
// before what, among those of one step that are about the same group or file:
//
//   - AdoptGroup comes first: without it there is no memory that the others could be about;
//   - CreateGroup comes last: the memory is there when GroupCreated says so, in a step of its own;
//   - Conclude comes before the answers that tell the call's ranks how it ended: a rank that gets none reads it in the ledger,
//     and so do all others then. An answer that something was made has its Conclude in the same step;
//   - Conclude of a window_free comes before Decommit: a window that the ledger has keeps its pages;
//   - Poison comes before the answers to a call that it ends: whoever is told finds the abort word set;
//   - Decommit comes before the answers: who is told that a window was freed may ask for another one;
//   - a descriptor is sent before CloseFile or ReleaseGroup lets it go, and ReleaseGroup comes last of all.

// output is what an action counts as, of a group or of a file.
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

// rule is what an action is, and what of its step must not have come before it.
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
		if m, ok := a.Msg.(*wire.Reannounced); ok {
			about(GroupID(m.Group), anything)
		}
	}
	return r
}

// checkOrder says what of a step's outputs is out of order.
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

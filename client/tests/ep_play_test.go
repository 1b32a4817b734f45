package tests

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/alltoall"
	"railhead/client"
)

// epPlay is a scenario: dispatches and combines of a buffer, their expected results, and the order of the calls.
type epPlay struct {
	world     int
	config    client.EPConfig
	ref       alltoall.Config
	placement *alltoall.Placement
	rounds    []epRound
	script    []epStep
}

// epRound is one dispatch of all ranks, and its combine.
type epRound struct {
	inputs    []alltoall.RankInput
	sent      []alltoall.RankOutput
	places    []epPlace
	y         []alltoall.ExpertOutput
	args      alltoall.CombineArgs
	combined  []alltoall.Combined // nil: released instead
	addIsOut  bool
	wideIndex bool
	cached    bool // with a cached routing
}

// epPlace says how a rank receives its rows.
type epPlace struct {
	layout              client.EPLayout
	capacity, alignment int
	tooSmall            int  // capacity of a first receive, which must fail; -1 = none
	sparse              bool // only X is received
}

// newEPPlay makes a play without rounds and script.
func newEPPlay(c client.EPConfig, world int) (*epPlay, error) {
	p := &epPlay{world: world, config: c, ref: reference(c)}
	var err error
	p.placement, err = alltoall.NewPlacement(p.ref, world)
	return p, err
}

// drawEPPlay draws a play of so many rounds from a seed.
func drawEPPlay(t testing.TB, seed uint64, rounds int) *epPlay {
	t.Helper()
	return drawEPPlayOf(t, 0, seed, rounds)
}

// drawEPPlayOf draws a play of a number of ranks; 0: of any number.
func drawEPPlayOf(t testing.TB, ranks int, seed uint64, rounds int) *epPlay {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 14))
	c, world := drawEPConfig(r)
	for ranks != 0 && world != ranks {
		c, world = drawEPConfig(r)
	}
	for fits := false; !fits; c.MaxTokensPerRank = (c.MaxTokensPerRank + 1) / 2 { // at most 128 MiB of windows
		bytes, err := alltoall.BufferBytes(reference(c), world)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if fits = bytes*uint64(world) <= 128<<20 || c.MaxTokensPerRank == 1; fits {
			break
		}
	}
	p, err := newEPPlay(c, world)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for range rounds {
		p.drawRound(t, r, drawInputs(r, c, p.placement))
	}
	p.drawScript(r)
	return p
}

func (p *epPlay) String() string {
	c := p.config
	c.PhysicalExpert, c.PhysicalRank = nil, nil
	return fmt.Sprintf("%d ranks, %+v, tables %v %v", p.world, c, p.config.PhysicalExpert != nil, p.config.PhysicalRank != nil)
}

// drawRound adds a round with these inputs and computes its results.
func (p *epPlay) drawRound(t testing.TB, r *rand.Rand, inputs []alltoall.RankInput) {
	t.Helper()
	round := epRound{inputs: inputs, wideIndex: r.IntN(2) == 0, cached: r.IntN(3) == 0, addIsOut: r.IntN(2) == 0}
	var err error
	if round.sent, err = p.placement.Dispatch(round.inputs, 0); err != nil {
		t.Fatal(err)
	}
	sums := []client.Dtype{client.F32, client.BF16, client.F16}
	yDtype, outDtype := pick(r, sums...), pick(r, sums...)
	round.args = alltoall.CombineArgs{YDtype: formatOf(yDtype), OutDtype: formatOf(outDtype), Weighted: r.IntN(3) == 0}
	for rank := range p.world {
		place, view := p.drawPlace(t, r, &round.sent[rank])
		round.places = append(round.places, place)
		round.y = append(round.y, alltoall.ExpertOutput{View: view, Y: p.drawOutputs(r, view, yDtype)})
	}
	if r.IntN(2) == 0 {
		for rank := range p.world {
			tokens := len(round.sent[rank].Routing.Copies)
			round.args.Add = append(round.args.Add, drawNumbers(r, outDtype, tokens*p.config.Hidden))
		}
	}
	if r.IntN(5) != 0 {
		if round.combined, err = p.placement.Combine(round.sent, round.y, round.args); err != nil {
			t.Fatal(err)
		}
	}
	p.rounds = append(p.rounds, round)
}

// drawPlace draws a layout and a capacity: just enough, a little more, or, if rows beyond it are dropped, less.
func (p *epPlay) drawPlace(t testing.TB, r *rand.Rand, o *alltoall.RankOutput) (epPlace, *alltoall.View) {
	t.Helper()
	at := epPlace{layout: client.EPLayout(r.IntN(3)), alignment: pick(r, 0, 1, 16, 128), tooSmall: -1, sparse: r.IntN(4) == 0}
	wide, err := o.View(alltoall.Arrangement(at.layout), 1<<30, at.alignment)
	if err != nil {
		t.Fatal(err)
	}
	need := wide.Rows
	if at.layout == client.EPPadded {
		need = 0
		for _, n := range wide.Counts {
			need = max(need, int(n))
		}
	}
	drops := at.layout == client.EPPadded && p.config.DropInvalid
	at.capacity = need + r.IntN(3)
	if drops && need > 0 && r.IntN(2) == 0 {
		at.capacity = r.IntN(need + 1)
	}
	if need > 0 && !drops && r.IntN(4) == 0 {
		at.tooSmall = r.IntN(need)
	}
	view, err := o.View(alltoall.Arrangement(at.layout), at.capacity, at.alignment)
	if err != nil {
		t.Fatal(err)
	}
	return at, view
}

// drawOutputs draws the outputs of a rank's experts. Some have infinities and NaNs. Bytes of no row are NaN too, and would be visible in a
// sum.
func (p *epPlay) drawOutputs(r *rand.Rand, v *alltoall.View, d client.Dtype) []byte {
	row := p.config.Hidden * d.Size()
	y := bytes.Repeat([]byte{0xff}, v.Rows*row)
	numbers := drawNumbers(r, d, len(v.Places)*p.config.Hidden)
	for i, at := range v.Places {
		if r.IntN(8) == 0 {
			spoilNumbers(r, d, numbers[i*row:][:row])
		}
		copy(y[at.Row*row:], numbers[i*row:][:row])
	}
	return y
}

// epStep is a call for a round.
type epStep struct {
	call  string
	round int
}

// drawScript draws any valid order of the calls.
func (p *epPlay) drawScript(r *rand.Rand) {
	const sent, received, combining = 1, 2, 3
	states := map[int]int{}
	older := func(round, state int) bool {
		for other, s := range states {
			if other < round && (state == 0 || s == state) {
				return true
			}
		}
		return false
	}
	for next := 0; next < len(p.rounds) || len(states) > 0; {
		var options []epStep
		if next < len(p.rounds) && len(states) < 2 {
			options = append(options, epStep{"send", next})
			if !older(next, sent) {
				options = append(options, epStep{"dispatch", next})
			}
		}
		for round, state := range states {
			switch {
			case state == sent && !older(round, sent):
				options = append(options, epStep{"recv", round}, epStep{"counts", round})
			case state == received && p.rounds[round].combined == nil:
				options = append(options, epStep{"release", round})
			case state == received && !older(round, sent) && !older(round, received):
				options = append(options, epStep{"combine_send", round})
				if !older(round, 0) {
					options = append(options, epStep{"combine", round})
				}
			case state == combining && !older(round, combining):
				options = append(options, epStep{"combine_recv", round})
			}
		}
		slicesByCall(options) // the iteration order of a map is random, but a seed must always draw the same
		step := pick(r, options...)
		p.script = append(p.script, step)
		switch step.call {
		case "send", "dispatch":
			states[next] = map[string]int{"send": sent, "dispatch": received}[step.call]
			next++
		case "recv":
			states[step.round] = received
		case "combine_send":
			states[step.round] = combining
		case "combine", "combine_recv", "release":
			delete(states, step.round)
		}
	}
}

package tests

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/wire"
)

func slicesByCall(steps []epStep) {
	slices.SortFunc(steps, func(a, b epStep) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.round, b.round))
	})
}

// Result buffers are filled with unwritten, and end with a tail of tailBytes that must stay unwritten.
const (
	unwritten = 0xa5
	tailBytes = 64
)

func poisoned(n int) []byte { return bytes.Repeat([]byte{unwritten}, n+tailBytes) }

func poisonedInts(n int) []int32 {
	s := make([]int32, n+tailBytes)
	for i := range s {
		s[i] = -0x5a5a5a5b // four bytes of unwritten
	}
	return s
}

// epPlayer runs a play on one rank.
type epPlayer struct {
	*epPlay
	rank    int
	ep      *client.EP
	flights map[int]*client.EPDispatch
	rows    map[int]*client.EPRows
	outs    map[int][]byte

	routings []*client.EPRouting // of rounds with a cached routing
	record   []byte              // all received rows and combined outputs
}

func newEPPlayer(p *epPlay, m member, ep *client.EP) *epPlayer {
	return &epPlayer{epPlay: p, rank: m.Rank(), ep: ep, flights: map[int]*client.EPDispatch{}, rows: map[int]*client.EPRows{},
		outs: map[int][]byte{}}
}

// play runs all calls of the script and compares every result with the reference.
func (p *epPlayer) play() error {
	for n, step := range p.script {
		if err := p.step(step); err != nil {
			return fmt.Errorf("step %d of %v: %w", n, p.script, err)
		}
	}
	return p.endRoutings()
}

// step runs one call and checks its results.
func (p *epPlayer) step(s epStep) (err error) {
	round := &p.rounds[s.round]
	d := p.flights[s.round]
	switch s.call {
	case "send":
		if in, err := p.routed(s.round); err != nil {
			return err
		} else if p.flights[s.round], err = p.ep.DispatchSend(in); err != nil {
			return err
		}
	case "counts":
		err = p.counts(round, d)
	case "dispatch":
		at := round.places[p.rank]
		rows := p.roomFor(round, firstCapacity(at))
		in, routedErr := p.routed(s.round)
		if routedErr != nil {
			return routedErr
		}
		d, err = p.ep.Dispatch(in, rows)
		p.flights[s.round] = d
		if at.tooSmall >= 0 {
			if err = refused("too small a capacity", err, wire.ResultLimit); err == nil {
				rows = p.roomFor(round, at.capacity)
				err = d.Recv(rows)
			}
		}
		err = errors.Join(err, p.checkRows(s.round, rows, err))
	case "recv":
		at := round.places[p.rank]
		if at.tooSmall >= 0 {
			if err := refused("too small a capacity", d.Recv(p.roomFor(round, at.tooSmall)), wire.ResultLimit); err != nil {
				return err
			}
		}
		rows := p.roomFor(round, at.capacity)
		err = d.Recv(rows)
		err = errors.Join(err, p.checkRows(s.round, rows, err))
	case "release":
		err = d.Release()
	case "delay": // of rank number s.round: the other ranks block on it
		if p.rank == s.round {
			time.Sleep(20 * time.Millisecond)
		}
	case "combine":
		if _, err = d.Combine(p.sums(s.round)); err == nil {
			err = p.checkOut(s.round)
		}
	case "combine_send":
		err = d.CombineSend(p.sums(s.round))
	case "combine_recv":
		if _, err = d.CombineRecv(); err == nil {
			err = p.checkOut(s.round)
		}
	}
	return err
}

func firstCapacity(at epPlace) int {
	if at.tooSmall >= 0 {
		return at.tooSmall
	}
	return at.capacity
}

// routed is the input of a round, with a cached routing if the round asks for one.
func (p *epPlayer) routed(round int) (client.EPTokensIn, error) {
	in := p.in(&p.rounds[round])
	if !p.rounds[round].cached {
		return in, nil
	}
	routing, err := p.ep.NewRouting(in)
	if err != nil {
		return in, err
	}
	p.routings = append(p.routings, routing)
	in.Idx, in.Idx64, in.Weights, in.Routing = nil, nil, nil, routing
	return in, nil
}

// endRoutings destroys the cached routings. No dispatch may be in flight.
func (p *epPlayer) endRoutings() error {
	var errs []error
	for _, r := range p.routings {
		errs = append(errs, r.Destroy())
	}
	p.routings = nil
	return errors.Join(errs...)
}

func (p *epPlayer) in(round *epRound) client.EPTokensIn {
	in := round.inputs[p.rank]
	out := client.EPTokensIn{
		Tokens: len(in.TopKIdx) / p.config.TopK, X: in.X, XScales: in.Scales, Weights: in.TopKWeights,
	}
	if round.wideIndex {
		out.Idx64 = in.TopKIdx
		return out
	}
	for _, e := range in.TopKIdx {
		out.Idx = append(out.Idx, int32(e))
	}
	return out
}

func (p *epPlayer) counts(round *epRound, d *client.EPDispatch) error {
	counts, tokens, err := d.Counts()
	if err != nil {
		return err
	}
	o := &round.sent[p.rank]
	wide, err := o.View(alltoall.Flat, 1<<30, 1)
	if err != nil {
		return err
	}
	if !slices.Equal(counts, wide.Counts) || tokens != uint64(len(o.Received)) {
		return fmt.Errorf("counts %v of %d tokens, want %v of %d", counts, tokens, wide.Counts, len(o.Received))
	}
	return nil
}

// roomFor returns unwritten memory for the rows of a round.
func (p *epPlayer) roomFor(round *epRound, capacity int) *client.EPRows {
	at := round.places[p.rank]
	n := capacity
	if at.layout == client.EPPadded {
		n *= p.ep.LocalExperts()
	}
	rows := &client.EPRows{Layout: at.layout, Alignment: at.alignment, Capacity: capacity}
	rows.X = poisoned(n * p.config.Hidden * p.config.WireDtype.Size())
	if at.sparse {
		return rows
	}
	rows.Scales = poisoned(n * p.ref.ScaleBytes())
	rows.Counts = poisonedInts(p.ep.LocalExperts())
	rows.SourceRank, rows.SourceToken = poisonedInts(n), poisonedInts(n)
	if at.layout == client.EPTokens {
		rows.TopKIdx, rows.TopKWeights = poisonedInts(n*p.config.TopK), make([]float32, n*p.config.TopK+tailBytes)
		return rows
	}
	rows.Weights = make([]float32, n+tailBytes)
	rows.Offsets = make([]int64, p.ep.LocalExperts()+1+tailBytes)
	return rows
}

// checkRows compares the received rows with the reference, byte by byte. Bytes of no row must be unwritten.
func (p *epPlayer) checkRows(number int, rows *client.EPRows, err error) error {
	if err != nil {
		return nil
	}
	round := &p.rounds[number]
	o, view := &round.sent[p.rank], round.y[p.rank].View
	want := p.roomFor(round, round.places[p.rank].capacity)
	row := p.config.Hidden * p.config.WireDtype.Size()
	for _, at := range view.Places {
		p.fill(want, at, o.Received[at.Received], row)
	}
	if want.Counts != nil {
		copy(want.Counts, view.Counts)
	}
	copy(want.Offsets, view.Offsets)
	errs := []error{
		same("x", rows.X, want.X), same("scales", rows.Scales, want.Scales), same("counts", rows.Counts, want.Counts),
		same("offsets", rows.Offsets, want.Offsets), same("weights", rows.Weights, want.Weights),
		same("source_rank", rows.SourceRank, want.SourceRank), same("source_token", rows.SourceToken, want.SourceToken),
		same("topk_idx", rows.TopKIdx, want.TopKIdx), same("topk_weights", rows.TopKWeights, want.TopKWeights),
		same("rows and tokens", []uint64{rows.Rows, rows.Tokens}, []uint64{uint64(view.Rows), uint64(len(o.Received))}),
		sameReport(rows.Report, o.Report, view.Report),
	}
	p.record = append(p.record, rows.X...)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("round %d, layout %+v: %w", number, round.places[p.rank], err)
	}
	return nil
}

// fill writes the expected contents of one row.
func (p *epPlayer) fill(want *client.EPRows, at alltoall.Place, c alltoall.Copy, row int) {
	copy(want.X[at.Row*row:], c.X)
	if want.SourceRank == nil {
		return
	}
	copy(want.Scales[at.Row*p.ref.ScaleBytes():], c.Scales)
	want.SourceRank[at.Row], want.SourceToken[at.Row] = int32(c.Source), int32(c.Token)
	if at.Entry >= 0 {
		want.Weights[at.Row] = c.Entries[at.Entry].Weight
		return
	}
	idx, weights := c.LocalTopK(p.config.TopK)
	copy(want.TopKIdx[at.Row*p.config.TopK:], idx)
	copy(want.TopKWeights[at.Row*p.config.TopK:], weights)
}

func sameReport(got client.EPReport, sent, laidOut alltoall.Report) error {
	numbers := func(r client.EPReport) []uint64 {
		return []uint64{maskOf(r.LostRanks), r.LostCopies, r.InvalidIDs, r.DuplicateIDs, r.ExcessTokens, r.NonFinite, r.OverCapacity}
	}
	want := []uint64{0, 0, sent.InvalidIDs, sent.DuplicateIDs, sent.ExcessTokens, sent.NonFinite, laidOut.OverCapacity}
	if err := same("report", numbers(got), want); err != nil {
		return err
	}
	if (got.Message == "") != (slices.Max(want) == 0) {
		return fmt.Errorf("the report has counts %v but message %q", want, got.Message)
	}
	return nil
}

// same returns an error that names the first entry in which got and want differ.
func same[T comparable](name string, got, want []T) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s has %d entries, want %d", name, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s[%d] of %d is %v, want %v", name, i, len(got), got[i], want[i])
		}
	}
	return nil
}

func (p *epPlayer) sums(number int) client.EPSums {
	round := &p.rounds[number]
	byName := map[alltoall.Format]client.Dtype{alltoall.F32: client.F32, alltoall.BF16: client.BF16, alltoall.F16: client.F16}
	s := client.EPSums{
		Y: round.y[p.rank].Y, YDtype: byName[round.args.YDtype], Weighted: round.args.Weighted, OutDtype: byName[round.args.OutDtype],
	}
	s.Out = poisoned(len(round.combined[p.rank].Out))
	if round.args.Add != nil {
		s.Add = round.args.Add[p.rank]
		if round.addIsOut {
			copy(s.Out, s.Add)
			s.Add = s.Out
		}
	}
	p.outs[number] = s.Out
	return s
}

func (p *epPlayer) checkOut(number int) error {
	out := p.outs[number]
	delete(p.outs, number)
	delete(p.flights, number)
	p.record = append(p.record, out...)
	want := slices.Concat(p.rounds[number].combined[p.rank].Out, poisoned(0))
	if err := same("out", out, want); err != nil {
		return fmt.Errorf("round %d, %s: %w", number, p.rounds[number].args.OutDtype, err)
	}
	return nil
}

package experts

import (
	"bytes"

	"railhead/alltoall"
	"railhead/client"
)

// poison is the byte that results are filled with before an operation that is checked. It makes a NaN of every format, and no valid
// count or rank, so an old result cannot pass the check.
const poison = 0xff

// NewRows allocates this rank's received rows, with every list that a dispatch can fill.
func (p *Problem) NewRows(ep *client.EP, capacity int) *client.EPRows {
	n := capacity
	if p.shape.Layout == alltoall.Padded {
		n *= ep.LocalExperts()
	}
	rows := &client.EPRows{
		Layout: client.EPLayout(p.shape.Layout), Capacity: capacity, X: make([]byte, n*p.shape.Hidden*p.shape.Wire.Size()),
		Counts: make([]int32, ep.LocalExperts()), SourceRank: make([]int32, n), SourceToken: make([]int32, n),
	}
	if bytes := n * p.config.ScaleBytes(); bytes > 0 {
		rows.Scales = make([]byte, bytes)
	}
	if p.shape.Layout == alltoall.Tokens {
		rows.TopKIdx, rows.TopKWeights = make([]int32, n*p.shape.TopK), make([]float32, n*p.shape.TopK)
	} else {
		rows.Offsets, rows.Weights = make([]int64, ep.LocalExperts()+1), make([]float32, n)
	}
	return rows
}

// Poison overwrites results, so that old ones cannot pass the check.
func Poison(results ...[]byte) {
	for _, r := range results {
		fill(r, poison)
	}
}

// PoisonRows does the same with received rows and their lists.
func PoisonRows(rows *client.EPRows) {
	fill(rows.X, poison)
	fill(rows.Scales, poison)
	fill(rows.Counts, -1)
	fill(rows.Offsets, -1)
	fill(rows.Weights, -1)
	fill(rows.SourceRank, -1)
	fill(rows.SourceToken, -1)
	fill(rows.TopKIdx, -2)
	fill(rows.TopKWeights, -1)
}

func fill[T any](s []T, v T) {
	for i := range s {
		s[i] = v
	}
}

// WrongRows returns the number of wrong elements in received rows and their lists.
func (p *Problem) WrongRows(rows *client.EPRows) (wrong int64) {
	wrong += differing(rows.Counts, p.view.Counts)
	if p.shape.Layout != alltoall.Tokens {
		wrong += differing(rows.Offsets, p.view.Offsets)
	}
	wrong += differing([]uint64{rows.Rows, rows.Tokens}, []uint64{uint64(p.view.Rows), uint64(p.Received())})
	next := 0
	for _, at := range p.view.Places {
		wrong += p.wrongBetween(rows, next, at.Row)
		next = at.Row + 1
	}
	wrong += p.wrongBetween(rows, next, len(rows.SourceRank))
	for i, places := range p.placesByCopy() {
		c := &p.sent[p.rank].Received[i]
		x, scales := p.wireRow(c.Source, c.Token)
		for _, at := range places {
			wrong += p.wrongRow(rows, at, x, scales)
		}
	}
	return wrong
}

// placesByCopy groups the rows by token copy, so that the expected row of a copy is computed once.
func (p *Problem) placesByCopy() [][]alltoall.Place {
	all := make([][]alltoall.Place, p.Received())
	for _, at := range p.view.Places {
		all[at.Received] = append(all[at.Received], at)
	}
	return all
}

// wrongBetween counts overwritten bytes in rows that must stay untouched.
func (p *Problem) wrongBetween(rows *client.EPRows, from, to int) (wrong int64) {
	row := p.shape.Hidden * p.shape.Wire.Size()
	for _, b := range rows.X[from*row : max(from, to)*row] {
		if b != poison {
			wrong++
		}
	}
	return wrong
}

// wrongRow compares one row with the token x.
func (p *Problem) wrongRow(rows *client.EPRows, at alltoall.Place, x, scales []byte) (wrong int64) {
	c := &p.sent[p.rank].Received[at.Received]
	wrong += differingElements(rows.X[at.Row*len(x):][:len(x)], x, p.shape.Wire.Size())
	if len(scales) > 0 {
		wrong += differingElements(rows.Scales[at.Row*len(scales):][:len(scales)], scales, p.config.ScaleBytes()/p.config.ScaleColumns())
	}
	wrong += differing([]int32{rows.SourceRank[at.Row], rows.SourceToken[at.Row]}, []int32{int32(c.Source), int32(c.Token)})
	if at.Entry >= 0 {
		return wrong + differing(rows.Weights[at.Row:][:1], []float32{c.Entries[at.Entry].Weight})
	}
	k := p.shape.TopK
	idx, weights := c.LocalTopK(k)
	n := len(c.Entries) // weights after the last expert are undefined
	return wrong + differing(rows.TopKIdx[at.Row*k:][:k], idx) + differing(rows.TopKWeights[at.Row*k:][:n], weights[:n])
}

// WrongSums returns the number of wrong elements in the results that a rank gets from a combine.
func (p *Problem) WrongSums(rank int, out []byte) (wrong int64) {
	row := p.shape.Hidden * p.shape.Sums().Size()
	want := make([]byte, row)
	s := newCombiner(p)
	for t := range p.sent[rank].Routing.Copies {
		s.token(rank, t, want)
		wrong += differingElements(out[t*row:][:row], want, p.shape.Sums().Size())
	}
	return wrong
}

// combiner computes the results of a combine, token by token.
type combiner struct {
	p                       *Problem
	values, y, partial, sum []float32
	yRow, partialRow        []byte
}

func newCombiner(p *Problem) *combiner {
	h := p.shape.Hidden
	return &combiner{
		p: p, values: make([]float32, h), y: make([]float32, h), partial: make([]float32, h), sum: make([]float32, h),
		yRow: make([]byte, h*p.shape.Sums().Size()), partialRow: make([]byte, h*p.shape.Combine.Size()),
	}
}

// token adds in the order that railhead_ep.h defines: over a rank's experts in the order of topk_idx, rounded to the combine type, then over
// the ranks.
func (s *combiner) token(source, t int, out []byte) {
	x, scales := s.p.wireRow(source, t)
	s.p.values(x, scales, s.values)
	fill(s.sum, 0)
	for n, c := range s.p.sent[source].Routing.Copies[t] {
		s.addExperts(c.Entries)
		addTo(s.sum, s.partial, n == 0)
	}
	if s.p.Add != nil {
		WidenRow(s.p.shape.Sums(), s.p.Add(source, t), s.y)
		addTo(s.sum, s.y, false)
	}
	NarrowRow(s.p.shape.Sums(), s.sum, out)
}

// addExperts computes the partial sum of one rank.
func (s *combiner) addExperts(entries []alltoall.Entry) {
	groups := [][]alltoall.Entry{entries} // of one row
	if s.p.shape.Layout != alltoall.Tokens {
		groups = nil
		for i := range entries {
			groups = append(groups, entries[i:i+1])
		}
	}
	for n, group := range groups {
		s.p.work(s.values, group, s.yRow)
		WidenRow(s.p.shape.Sums(), s.yRow, s.y)
		if s.p.shape.Layout != alltoall.Tokens {
			for i := range s.y {
				s.y[i] *= group[0].Weight
			}
		}
		addTo(s.partial, s.y, n == 0)
	}
	NarrowRow(s.p.shape.Combine, s.partial, s.partialRow)
	WidenRow(s.p.shape.Combine, s.partialRow, s.partial)
}

// addTo adds a row in f32, or copies it if it is the first.
func addTo(sum, row []float32, first bool) {
	if first {
		copy(sum, row)
		return
	}
	for i, v := range row {
		sum[i] += v
	}
}

func differing[T comparable](got, want []T) (wrong int64) {
	for i := range want {
		if got[i] != want[i] {
			wrong++
		}
	}
	return wrong
}

func differingElements(got, want []byte, size int) (wrong int64) {
	if bytes.Equal(got, want) {
		return 0
	}
	for i := 0; i < len(want); i += size {
		if !bytes.Equal(got[i:i+size], want[i:i+size]) {
			wrong++
		}
	}
	return wrong
}

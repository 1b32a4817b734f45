package demo

import (
	"encoding/json"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/experts"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/oracle"
)

var moeKind = ranks.Kind{Name: "demo_moe", New: func() ranks.Job { return new(moeJob) }}

// moeJob is what a rank of the demo does for a model with experts.
type moeJob struct {
	Shape  experts.Shape `json:"shape"`
	Layers int           `json:"layers"`
	Steps  int           `json:"steps"`
	Batch  int           `json:"batch"`  // tokens of all ranks
	Shared bool          `json:"shared"` // the model has shared experts
}

// What is timed, in this order.
const (
	opAllReduce = "all_reduce"
	opDispatch  = "dispatch"
	opCombine   = "combine"
	opAllGather = "all_gather"
	opLayer     = "layer"
)

// moeLayer is one rank's part in a MoE layer of a decode step.
type moeLayer struct {
	job    *moeJob
	c      *client.Comm
	ep     *client.EP
	tokens []int // of each rank
	ops    map[string]*rankOp

	seeds    []uint64
	partial  []byte // what this rank's heads of attention make of all tokens
	hidden   []byte // their sum over the ranks
	rows     *client.EPRows
	y        []byte
	add      []byte // nil: no shared expert
	sums     []byte // of this rank's tokens; as long as any rank's
	gathered []byte
	problem  *experts.Problem
}

// Run plays the decode steps.
func (j *moeJob) Run(c *client.Comm, out *json.Encoder) error {
	router, err := j.Shape.Router()
	if err != nil {
		return err
	}
	l, err := j.newLayer(c)
	if err != nil {
		return err
	}
	for call := range j.Layers * j.Steps {
		if l.problem, err = j.Shape.Problem(router, c.Rank(), call, l.tokens); err != nil {
			return err
		}
		if err := l.prepare(call); err != nil {
			return err
		}
		if err := l.play(call); err != nil {
			return err
		}
	}
	var report rankReport
	for _, op := range []string{opAllReduce, opDispatch, opCombine, opAllGather, opLayer} {
		report.Ops = append(report.Ops, *l.ops[op])
	}
	if err := l.ep.Destroy(); err != nil {
		return err
	}
	return out.Encode(report)
}

func (j *moeJob) newLayer(c *client.Comm) (*moeLayer, error) {
	l := &moeLayer{job: j, c: c, seeds: make([]uint64, c.WorldSize())}
	for r := range c.WorldSize() {
		l.tokens = append(l.tokens, j.first(c, r+1)-j.first(c, r))
	}
	row := l.row()
	l.partial, l.hidden = make([]byte, j.Batch*row), make([]byte, j.Batch*row)
	l.y = make([]byte, j.Batch*j.Shape.TopK*row)
	l.sums = make([]byte, j.Shape.Tokens*row)
	l.gathered = make([]byte, c.WorldSize()*len(l.sums))
	if j.Shared {
		l.add = make([]byte, len(l.sums))
	}
	l.ops = map[string]*rankOp{
		opAllReduce: {Op: opAllReduce, Bytes: len(l.partial)}, opDispatch: {Op: opDispatch, Bytes: len(l.sums), Algo: "ll"},
		opCombine: {Op: opCombine, Bytes: len(l.sums), Algo: "ll"}, opAllGather: {Op: opAllGather, Bytes: len(l.gathered)},
		opLayer: {Op: opLayer, Bytes: len(l.partial), Algo: "all four"},
	}
	var err error
	l.ep, err = c.NewEP(j.Shape.EPConfig())
	return l, err
}

// first is the first of a rank's tokens: every rank has its share of the batch.
func (j *moeJob) first(c *client.Comm, rank int) int { return j.Batch * rank / c.WorldSize() }

func (l *moeLayer) row() int { return l.job.Shape.Hidden * l.job.Shape.Sums().Size() }

// token is a token as the all-reduce has left it.
func (l *moeLayer) token(source, token int) []byte {
	return l.hidden[(l.job.first(l.c, source)+token)*l.row():][:l.row()]
}

// shared is what the made-up shared expert makes of a token.
func (l *moeLayer) shared(source, token int) []byte {
	values, out := make([]float32, l.job.Shape.Hidden), make([]byte, l.row())
	experts.WidenRow(l.job.Shape.Sums(), l.token(source, token), values)
	for i := range values {
		values[i] *= 1.5
	}
	experts.NarrowRow(l.job.Shape.Sums(), values, out)
	return out
}

// play plays a layer twice: operation by operation, each checked, and then all of them in one go.
func (l *moeLayer) play(call int) error {
	// Exact inputs: whatever algorithm runs, the sum is the same, and small enough for the experts.
	wrongHidden := func() bool {
		return oracle.Exact.Wrong(l.hidden, oracle.BF16, oracle.Sum, l.seeds, nil, 0, 0) != 0
	}
	wrongRows := func() bool { return l.problem.WrongRows(l.rows) != 0 }
	wrongSums := func() bool { return l.problem.WrongSums(l.c.Rank(), l.sums) != 0 }
	var d *client.EPDispatch
	if err := l.time(opAllReduce, call, l.allReduce, wrongHidden); err != nil {
		return err
	}
	if err := l.time(opDispatch, call, func() (err error) { d, err = l.dispatch(); return err }, wrongRows); err != nil {
		return err
	}
	if err := l.experts(); err != nil {
		return err
	}
	if err := l.time(opCombine, call, func() error { return l.combine(d) }, wrongSums); err != nil {
		return err
	}
	if err := l.time(opAllGather, call, l.allGather, l.wrongGathered); err != nil {
		return err
	}
	l.spoil()
	return l.time(opLayer, call, l.inOneGo, func() bool { return wrongHidden() || wrongRows() || wrongSums() || l.wrongGathered() })
}

// prepare writes inputs that no other layer has.
func (l *moeLayer) prepare(call int) error {
	for r := range l.seeds {
		l.seeds[r] = oracle.Seed(l.job.Shape.Seed, r, call)
	}
	oracle.Exact.Fill(l.partial, oracle.BF16, oracle.Sum, l.seeds[l.c.Rank()])
	l.problem.InputRow = func(source, token int) (x, scales []byte) { return l.token(source, token), nil }
	if l.job.Shared {
		l.problem.Add = l.shared
	}
	capacity := l.job.Batch * l.job.Shape.TopK // the worst case
	if l.rows == nil {
		l.rows = l.problem.NewRows(l.ep, capacity)
	}
	l.spoil()
	return l.problem.LayOut(capacity)
}

// spoil leaves nothing in the results that could pass for one.
func (l *moeLayer) spoil() {
	experts.Spoil(l.hidden, l.sums, l.gathered)
	experts.SpoilRows(l.rows)
}

// time makes a call once all ranks are ready for it, and checks what it gave.
func (l *moeLayer) time(name string, number int, call func() error, wrong func() bool) error {
	if err := l.c.Barrier(); err != nil {
		return err
	}
	op := l.ops[name]
	start := time.Now()
	if err := call(); err != nil {
		return err
	}
	op.TimesNs = append(op.TimesNs, time.Since(start).Nanoseconds())
	op.Checked++
	if wrong() {
		op.Wrong = append(op.Wrong, number)
	}
	if op.Algo != "" {
		return nil
	}
	status, err := l.c.Status()
	op.Algo = status.Algorithm
	return err
}

func (l *moeLayer) allReduce() error {
	return l.c.AllReduce(l.partial, l.hidden, l.job.Batch*l.job.Shape.Hidden, client.BF16, client.Sum)
}

func (l *moeLayer) dispatch() (*client.EPDispatch, error) {
	n := l.tokens[l.c.Rank()]
	from := l.job.first(l.c, l.c.Rank()) * l.row()
	return l.ep.Dispatch(client.EPTokensIn{
		Tokens: n, X: l.hidden[from:][:n*l.row()], Idx64: l.problem.Idx, Weights: l.problem.Weights,
	}, l.rows)
}

// experts do this rank's work between the two: its own experts', and the shared one's for its own tokens.
func (l *moeLayer) experts() error {
	for t := range l.tokens[l.c.Rank()] {
		if l.add != nil {
			copy(l.add[t*l.row():], l.shared(l.c.Rank(), t))
		}
	}
	return l.problem.Experts(l.rows, l.y)
}

func (l *moeLayer) combine(d *client.EPDispatch) error {
	_, err := d.Combine(client.EPSums{Y: l.y, YDtype: client.BF16, Add: l.add, Out: l.sums, OutDtype: client.BF16})
	return err
}

// allGather gives every rank all tokens. Ranks whose share is smaller than the largest give a row that means nothing.
func (l *moeLayer) allGather() error {
	return l.c.AllGather(l.sums, l.gathered, len(l.sums)/client.BF16.Size(), client.BF16)
}

func (l *moeLayer) wrongGathered() bool {
	for r := range l.tokens {
		if l.problem.WrongSums(r, l.gathered[r*len(l.sums):]) != 0 {
			return true
		}
	}
	return false
}

// inOneGo is the layer without a pause; the experts have done their work already.
func (l *moeLayer) inOneGo() error {
	if err := l.allReduce(); err != nil {
		return err
	}
	d, err := l.dispatch()
	if err != nil {
		return err
	}
	if err := l.combine(d); err != nil {
		return err
	}
	return l.allGather()
}

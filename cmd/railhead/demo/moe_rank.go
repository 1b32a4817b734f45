package demo

import (
	"encoding/json"
	"runtime"

	"railhead/client"
	"railhead/cmd/railhead/internal/experts"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/oracle"
)

var moeKind = ranks.Kind{Name: "demo_moe", New: func() ranks.Job { return new(moeJob) }, Pinned: true}

// moeJob is the job of a rank for a model with experts.
type moeJob struct {
	Shape  experts.Shape `json:"shape"`
	Layers int           `json:"layers"`
	Steps  int           `json:"steps"`
	Batch  int           `json:"batch"` // tokens of all ranks
	Device string        `json:"device"`
	Shared bool          `json:"shared"` // the model has shared experts
}

// The timed operations, in the order in which they run.
const (
	opAllReduce = "all_reduce"
	opDispatch  = "dispatch"
	opCombine   = "combine"
	opAllGather = "all_gather"
	opLayer     = "layer"
)

// moeLayer is one rank's state of a MoE layer.
type moeLayer struct {
	job    *moeJob
	c      *client.Comm
	ep     *client.EP
	tokens []int // of each rank
	ops    map[string]*rankOp
	watch  *ranks.Stopwatch

	seeds    []uint64
	partial  []byte // this rank's partial result of attention, for all tokens
	hidden   []byte // the sum of all ranks' partial results
	rows     *client.EPRows
	y        []byte
	add      []byte // nil: no shared expert
	sums     []byte // results of this rank's tokens; sized for the rank with the most
	gathered []byte
	problem  *experts.Problem
}

// Run runs the decode steps.
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
		if err := reportProgress(c, out, 1); err != nil {
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
	l := j.newBuffers(c)
	var err error
	if l.watch, err = ranks.NewStopwatch(c); err != nil {
		return nil, err
	}
	l.ep, err = c.NewEP(j.Shape.EPConfig(j.OnGPU()))
	return l, err
}

// newBuffers makes a layer's memory on the host, but for the rows.
func (j *moeJob) newBuffers(c *client.Comm) *moeLayer {
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
	return l
}

// layerBytes is the size of what newBuffers makes for one of so many ranks, and of the rows; the numbers beside the rows are left out.
func (j *moeJob) layerBytes(ranks int) int {
	rows := 2*j.Batch + 2*j.Batch*j.Shape.TopK + (1+ranks)*j.Shape.Tokens
	if j.Shared {
		rows += j.Shape.Tokens
	}
	return rows * j.Shape.Hidden * j.Shape.Sums().Size()
}

// first is the index of a rank's first token: the batch is divided among the ranks.
func (j *moeJob) first(c *client.Comm, rank int) int { return j.Batch * rank / c.WorldSize() }

func (l *moeLayer) row() int { return l.job.Shape.Hidden * l.job.Shape.Sums().Size() }

// token is a token after the all-reduce.
func (l *moeLayer) token(source, token int) []byte {
	return l.hidden[(l.job.first(l.c, source)+token)*l.row():][:l.row()]
}

// shared is the output of the (synthetic) shared expert for a token.
func (l *moeLayer) shared(source, token int) []byte {
	values, out := make([]float32, l.job.Shape.Hidden), make([]byte, l.row())
	experts.WidenRow(l.job.Shape.Sums(), l.token(source, token), values)
	for i := range values {
		values[i] *= 1.5
	}
	experts.NarrowRow(l.job.Shape.Sums(), values, out)
	return out
}

// play runs a layer twice: each operation by itself, then all of them back to back. Results are checked after each of the two: the ranks would
// wait for the checks of others in an operation that follows one.
func (l *moeLayer) play(call int) error {
	runtime.GC() // not while calls are timed
	var d *client.EPDispatch
	if err := l.time(opAllReduce, l.allReduce); err != nil {
		return err
	}
	if err := l.time(opDispatch, func() (err error) { d, err = l.dispatch(); return err }); err != nil {
		return err
	}
	if err := l.experts(); err != nil {
		return err
	}
	if err := l.time(opCombine, func() error { return l.combine(d) }); err != nil {
		return err
	}
	if err := l.time(opAllGather, l.allGather); err != nil {
		return err
	}
	l.check(call)
	l.poison()
	runtime.GC()
	if err := l.time(opLayer, l.inOneGo); err != nil {
		return err
	}
	l.checkLayer(call)
	return l.watch.Settle()
}

// check checks the result of each operation.
func (l *moeLayer) check(call int) {
	l.result(opAllReduce, call, l.wrongHidden())
	l.result(opDispatch, call, l.problem.WrongRows(l.rows) != 0)
	l.result(opCombine, call, l.problem.WrongSums(l.c.Rank(), l.sums) != 0)
	l.result(opAllGather, call, l.wrongGathered())
}

// checkLayer checks the results of all operations as those of one.
func (l *moeLayer) checkLayer(call int) {
	l.result(opLayer, call, l.wrongHidden() || l.problem.WrongRows(l.rows) != 0 ||
		l.problem.WrongSums(l.c.Rank(), l.sums) != 0 || l.wrongGathered())
}

// result adds a checked call.
func (l *moeLayer) result(name string, call int, wrong bool) {
	op := l.ops[name]
	op.Checked++
	if wrong {
		op.Wrong = append(op.Wrong, call)
	}
}

// wrongHidden checks the all-reduce. The inputs are exact: the sum does not depend on the algorithm, and is small enough for the experts.
func (l *moeLayer) wrongHidden() bool {
	return oracle.Exact.Wrong(l.hidden, oracle.BF16, oracle.Sum, l.seeds, nil, 0, 0) != 0
}

// prepare writes the inputs of a call, which differ from those of every other.
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
	l.poison()
	return l.problem.LayOut(capacity)
}

// poison overwrites the results, so that old ones cannot pass the check.
func (l *moeLayer) poison() {
	experts.Poison(l.hidden, l.sums, l.gathered)
	experts.PoisonRows(l.rows)
}

// time times a call. The barrier before it makes ranks that have computed for different times begin together.
func (l *moeLayer) time(name string, call func() error) error {
	if err := l.c.Barrier(); err != nil {
		return err
	}
	op := l.ops[name]
	if err := l.watch.Time(&op.Times, call); err != nil || op.Algo != "" {
		return err
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

// experts computes, between dispatch and combine, this rank's experts, and the shared expert for its own tokens.
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

// allGather gathers the results of all tokens. A rank with fewer tokens than the largest share sends padding.
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

// inOneGo runs the four operations back to back. The experts' outputs have been computed before.
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

package measure

import (
	"encoding/json"
	"fmt"

	"railhead/client"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// rankRow is what a rank prints for each row.
type rankRow struct {
	Row        int      `json:"row"`
	Algo       string   `json:"algo"` // that ran; "a/b" where it was b in place
	Why        string   `json:"why"`  // likewise
	OutOfPlace rankSide `json:"out_of_place"`
	InPlace    rankSide `json:"in_place"` // zero where there is no such form
}

type rankSide struct {
	TotalNs float64 `json:"total_ns"` // of all timed iterations
	Wrong   int64   `json:"wrong"`    // elements, over all checked iterations
}

// Run is a rank's part.
func (j *Job) Run(c *client.Comm, out *json.Encoder) error {
	rows := j.rows(c.WorldSize())
	var largest uint64
	for _, r := range rows {
		largest = max(largest, r.bytes)
	}
	first, second, err := j.buffers(c, int(largest))
	if err != nil {
		return err
	}
	for i, row := range rows {
		r, err := j.measure(c, i, row, first, second)
		if err != nil {
			return err
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// lineBytes keeps the second buffer of a window from sharing a cache line with the first.
const lineBytes = 64

// buffers are two of the size: in a window where that was asked for, and for pull, else the caller's own.
func (j *Job) buffers(c *client.Comm, bytes int) (first, second []byte, err error) {
	if !j.Window && j.Algo != wire.AlgoPull.String() || bytes == 0 {
		return make([]byte, bytes), make([]byte, bytes), nil
	}
	bytes = (bytes + lineBytes - 1) &^ (lineBytes - 1)
	w, err := c.AllocWindow(2 * bytes)
	if err != nil {
		return nil, nil, err
	}
	both, err := w.Local()
	if err != nil {
		return nil, nil, err
	}
	return both[:bytes:bytes], both[bytes:], nil
}

// measure times and checks a row, both ways where the operation has both.
func (j *Job) measure(c *client.Comm, number int, row plannedRow, first, second []byte) (rankRow, error) {
	r := rankRow{Row: number}
	m, err := newMeasurement(j, c, number, row)
	if err != nil {
		return r, err
	}
	m.layOutOfPlace(first, second)
	var ran ranAlgorithm
	if r.OutOfPlace, ran, err = m.side(2 * number); err != nil {
		return r, err
	}
	r.Algo, r.Why = ran.name, ran.why
	if j.inPlace() {
		m.layInPlace(second)
		if r.InPlace, ran, err = m.side(2*number + 1); err != nil {
			return r, err
		}
		if ran.name != r.Algo {
			r.Algo += "/" + ran.name
		}
		if ran.why != r.Why {
			r.Why += "/" + ran.why
		}
	}
	return r, m.end()
}

// measurement is one rank's part in a row.
type measurement struct {
	job     *Job
	c       *client.Comm
	rank    int
	world   int
	row     plannedRow
	dtype   oracle.Dtype
	op      oracle.Op // the inputs are those of a sum where nothing is reduced
	scalars [][]byte  // of all ranks, for a pre-mul sum
	made    bool      // an op of the comm's, for that
	inputs  oracle.Inputs

	inPlace bool
	call    client.Timed
}

func newMeasurement(j *Job, c *client.Comm, number int, row plannedRow) (*measurement, error) {
	m := &measurement{job: j, c: c, rank: c.Rank(), world: c.WorldSize(), row: row, op: oracle.Sum}
	kind, ok := timedKinds[j.Op]
	if !ok {
		return nil, fmt.Errorf("bench: no operation %q", j.Op)
	}
	m.call = client.Timed{Kind: kind, Count: int(row.count), Root: max(row.root, 0)}
	if j.Op == ncclstyle.Barrier {
		return m, nil
	}
	dtype, ok := dtypes[row.dtype]
	if !ok {
		return nil, fmt.Errorf("bench: no dtype %q", row.dtype)
	}
	m.dtype, m.call.Dtype = dtype.oracle, dtype.client
	if !j.Op.Reduces() {
		return m, nil
	}
	op, ok := reductions[row.redop]
	if !ok {
		return nil, fmt.Errorf("bench: no reduction %q", row.redop)
	}
	m.op, m.call.Op = op.oracle, op.client
	var err error
	if m.inputs, err = ranks.InputsFor(j.Op, c, row.bytes); err != nil || m.op != oracle.PreMulSum {
		return m, err
	}
	for r := range m.world {
		m.scalars = append(m.scalars, m.inputs.Scalar(m.dtype, oracle.Seed(^j.Seed, r, number)))
	}
	m.call.Op, err = c.CreatePreMulSum(m.call.Dtype, m.scalars[m.rank])
	m.made = err == nil
	return m, err
}

// end ends what newMeasurement made.
func (m *measurement) end() error {
	if !m.made {
		return nil
	}
	return m.c.DestroyOp(m.call.Op)
}

var timedKinds = map[ncclstyle.Operation]client.Kind{
	ncclstyle.AllReduce: client.KindAllReduce, ncclstyle.AllGather: client.KindAllGather,
	ncclstyle.ReduceScatter: client.KindReduceScatter, ncclstyle.AllToAll: client.KindAllToAll,
	ncclstyle.Broadcast: client.KindBroadcast, ncclstyle.Reduce: client.KindReduce, ncclstyle.Gather: client.KindGather,
	ncclstyle.Scatter: client.KindScatter, ncclstyle.Sendrecv: client.KindSendrecv, ncclstyle.Barrier: client.KindBarrier,
}

var dtypes = map[ncclstyle.Dtype]struct {
	client client.Dtype
	oracle oracle.Dtype
}{
	ncclstyle.Int8: {client.I8, oracle.I8}, ncclstyle.Uint8: {client.U8, oracle.U8}, ncclstyle.Int32: {client.I32, oracle.I32},
	ncclstyle.Int64: {client.I64, oracle.I64}, ncclstyle.Uint64: {client.U64, oracle.U64}, ncclstyle.Half: {client.F16, oracle.F16},
	ncclstyle.Float: {client.F32, oracle.F32}, ncclstyle.Double: {client.F64, oracle.F64}, ncclstyle.BFloat16: {client.BF16, oracle.BF16},
	ncclstyle.F8E4M3: {client.FP8E4M3, oracle.FP8E4M3}, ncclstyle.F8E5M2: {client.FP8E5M2, oracle.FP8E5M2},
}

var reductions = map[ncclstyle.Redop]struct {
	client client.Op // of no meaning for mulsum, which each comm makes
	oracle oracle.Op
}{
	ncclstyle.Sum: {client.Sum, oracle.Sum}, ncclstyle.Prod: {client.Prod, oracle.Prod}, ncclstyle.Max: {client.Max, oracle.Max},
	ncclstyle.Min: {client.Min, oracle.Min}, ncclstyle.Avg: {client.Avg, oracle.Avg}, ncclstyle.MulSum: {oracle: oracle.PreMulSum},
}

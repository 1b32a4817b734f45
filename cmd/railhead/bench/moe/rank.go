package moe

import (
	"encoding/json"
	"runtime"
	"slices"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/experts"
)

// job is the job of the ranks.
type job struct {
	Shape      experts.Shape `json:"shape"`
	Tokens     []int         `json:"tokens"` // per rank, by row
	Iterations int           `json:"iterations"`
	Warmup     int           `json:"warmup"`
	Device     string        `json:"device"`
	Launches   int           `json:"launches"` // of a graph of all iterations, on a GPU; 0: no graph
	Admin      string        `json:"admin"`    // address of the daemon's /metrics, which has the ranks' counters
}

// rankRow is what a rank reports for each row. Copies, Least and Written are totals of RoundTrips round trips.
type rankRow struct {
	Row          int       `json:"row"`
	Rank         int       `json:"rank"`
	PrivateBytes uint64    `json:"private_bytes"`
	DispatchNs   []int64   `json:"dispatch_ns"` // of each iteration
	CombineNs    []int64   `json:"combine_ns"`
	RoundTripNs  []int64   `json:"round_trip_ns"`
	Wrong        int64     `json:"wrong"`       // elements
	RoundTrips   int       `json:"round_trips"` // in Copies, Least and Written
	Copies       uint64    `json:"copies"`      // token copies received
	Least        uint64    `json:"least"`       // least payload that this rank had to write to others, in bytes
	Written      []traffic `json:"written"`     // of all ranks, by the library's counters; reported by rank 0 only
}

// Run measures all rows.
func (j *job) Run(c *client.Comm, out *json.Encoder) error {
	ep, err := c.NewEP(j.Shape.EPConfig(j.OnGPU()))
	if err != nil {
		return err
	}
	router, err := j.Shape.Router()
	if err != nil {
		return err
	}
	for i, tokens := range j.Tokens {
		everyone := slices.Repeat([]int{tokens}, c.WorldSize())
		m := &measurement{job: j, c: c, ep: ep, report: rankRow{Row: i, Rank: c.Rank(), PrivateBytes: ep.PrivateBytes()}}
		first, err := j.Shape.Problem(router, c.Rank(), 2*i, everyone)
		if err != nil {
			return err
		}
		last, err := j.Shape.Problem(router, c.Rank(), 2*i+1, everyone)
		if err != nil {
			return err
		}
		if err := m.run(first, last); err != nil {
			return err
		}
		if err := out.Encode(m.report); err != nil {
			return err
		}
	}
	return ep.Destroy()
}

// measurement is one rank's state of a row.
type measurement struct {
	job *job
	c   *client.Comm
	ep  *client.EP

	problem *experts.Problem
	in      client.EPTokensIn
	rows    *client.EPRows
	y, out  []byte
	report  rankRow
}

// run runs all iterations: the last with inputs of its own.
func (m *measurement) run(first, last *experts.Problem) error {
	if err := m.makeRoom(first, last); err != nil {
		return err
	}
	if err := m.take(first); err != nil {
		return err
	}
	for range m.job.Warmup {
		if err := m.iterate(false); err != nil {
			return err
		}
	}
	m.report = rankRow{Row: m.report.Row, Rank: m.report.Rank, PrivateBytes: m.report.PrivateBytes}
	before, err := m.counters()
	if err != nil {
		return err
	}
	for i := range m.job.Iterations {
		isLast := i == m.job.Iterations-1
		if isLast && i > 0 {
			if err := m.take(last); err != nil {
				return err
			}
		}
		if err := m.iterate(i == 0 || isLast); err != nil {
			return err
		}
	}
	after, err := m.counters()
	for r := range after {
		m.report.Written = append(m.report.Written, after[r].minus(before[r]))
	}
	return err
}

func (m *measurement) makeRoom(first, last *experts.Problem) error {
	a, err := first.Capacity()
	if err != nil {
		return err
	}
	b, err := last.Capacity()
	if err != nil {
		return err
	}
	capacity := max(a, b)
	if err := first.LayOut(capacity); err != nil {
		return err
	}
	if err := last.LayOut(capacity); err != nil {
		return err
	}
	m.rows = first.NewRows(m.ep, capacity)
	row := m.job.Shape.Hidden * m.job.Shape.Sums().Size()
	m.y, m.out = make([]byte, row*max(first.Rows(), last.Rows())), make([]byte, row*first.Tokens)
	return nil
}

// take switches to another problem: it dispatches its tokens once and computes the experts' outputs, which the timed combines then use.
func (m *measurement) take(p *experts.Problem) error {
	m.problem, m.in = p, p.Input()
	d, err := m.ep.Dispatch(m.in, m.rows)
	if err != nil {
		return err
	}
	if err := p.Experts(m.rows, m.y); err != nil {
		return err
	}
	err = m.combine(d)
	runtime.GC()
	return err
}

func (m *measurement) combine(d *client.EPDispatch) error {
	sums := experts.Dtypes[m.job.Shape.Sums()]
	_, err := d.Combine(client.EPSums{
		Y: m.y, YDtype: sums, Out: m.out, OutDtype: sums, Weighted: m.rows.Layout == client.EPTokens,
	})
	m.count()
	return err
}

// count adds a round trip to the totals.
func (m *measurement) count() {
	p := m.problem
	m.report.RoundTrips++
	m.report.Copies += uint64(p.Received())
	for r := range p.Traffic {
		m.report.Least += p.Traffic[m.c.Rank()].Payload[r] + p.Traffic[r].Partials[m.c.Rank()]
	}
}

// iterate times one iteration. If it is checked, results are compared before the next call overwrites them.
func (m *measurement) iterate(checked bool) error {
	r := &m.report
	if checked {
		m.poison()
	}
	var d *client.EPDispatch
	err := m.time(&r.DispatchNs, func() (err error) {
		d, err = m.ep.Dispatch(m.in, m.rows)
		return err
	})
	if err != nil {
		return err
	}
	if checked {
		r.Wrong += m.problem.WrongRows(m.rows)
	}
	if err := m.time(&r.CombineNs, func() error { return m.combine(d) }); err != nil {
		return err
	}
	if checked {
		r.Wrong += m.problem.WrongSums(m.c.Rank(), m.out)
		m.poison()
	}
	err = m.time(&r.RoundTripNs, func() error {
		d, err := m.ep.Dispatch(m.in, m.rows)
		if err != nil {
			return err
		}
		return m.combine(d)
	})
	if checked && err == nil {
		r.Wrong += m.problem.WrongRows(m.rows) + m.problem.WrongSums(m.c.Rank(), m.out)
	}
	return err
}

// poison overwrites the results, so that old ones cannot pass the check, and collects garbage, so that this does not happen in a timed call.
func (m *measurement) poison() {
	experts.PoisonRows(m.rows)
	experts.Poison(m.out)
	runtime.GC()
}

// time times a call from a barrier on.
func (m *measurement) time(times *[]int64, call func() error) error {
	if err := m.c.Barrier(); err != nil {
		return err
	}
	start := time.Now()
	err := call()
	*times = append(*times, time.Since(start).Nanoseconds())
	return err
}

// counters reads the library's counters of all ranks while no operation runs. Only rank 0 returns them.
func (m *measurement) counters() (all []traffic, err error) {
	if err := m.c.Barrier(); err != nil {
		return nil, err
	}
	if m.c.Rank() == 0 {
		all, err = readTraffic(m.job.Admin, m.c.WorldSize())
	}
	if err != nil {
		return nil, err
	}
	return all, m.c.Barrier()
}

package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// benchJob is what a rank of bench does.
type benchJob struct {
	Op     string          `json:"op"`
	Algo   string          `json:"algo"` // forced, or auto
	Dtype  ncclstyle.Dtype `json:"dtype"`
	Counts []uint64        `json:"counts"` // elements, a row each
	Iters  int             `json:"iters"`
	Warmup int             `json:"warmup"`
	Check  int             `json:"check"`
	Seed   uint64          `json:"seed"`
}

// benchRankRow is what it prints for each row.
type benchRankRow struct {
	Row        int           `json:"row"`
	Algo       string        `json:"algo"` // that ran
	OutOfPlace benchRankSide `json:"out_of_place"`
	InPlace    benchRankSide `json:"in_place"`
}

type benchRankSide struct {
	TotalNs float64 `json:"total_ns"` // of all timed iterations
	Wrong   int64   `json:"wrong"`    // elements, over all checked iterations
}

func (j *benchJob) run(c *client.Comm, out *json.Encoder) error {
	if err := pin(c.Rank(), c.WorldSize()); err != nil {
		return err
	}
	if j.Op == "barrier" {
		return j.runBarrier(c, out)
	}
	types := map[ncclstyle.Dtype]struct {
		c client.Dtype
		o oracle.Dtype
	}{ncclstyle.Float: {client.F32, oracle.F32}, ncclstyle.BFloat16: {client.BF16, oracle.BF16}}
	t, ok := types[j.Dtype]
	if !ok {
		return fmt.Errorf("bench: no dtype %q", j.Dtype)
	}
	var largest uint64
	for _, n := range j.Counts {
		largest = max(largest, n*uint64(t.o.Size()))
	}
	send, recv, err := j.buffers(c, int(largest))
	if err != nil {
		return err
	}
	for row, count := range j.Counts {
		n := int(count)
		b := allReduceBench{job: j, c: c, count: n, dtype: t.c, oracle: t.o, send: send[:n*t.o.Size()], recv: recv[:n*t.o.Size()]}
		r := benchRankRow{Row: row}
		if r.OutOfPlace, err = b.side(2*row, b.recv); err != nil {
			return err
		}
		if r.InPlace, err = b.side(2*row+1, b.send); err != nil {
			return err
		}
		status, err := c.Status()
		if err != nil {
			return err
		}
		r.Algo = status.Algorithm
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// pin gives each rank a processor of its own where there are enough, as mpirun does: the scheduler would put two on one
// for a while, and a small operation would then take as long as a switch between them.
func pin(rank, world int) error {
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return fmt.Errorf("bench: affinity: %w", err)
	}
	if allowed.Count() < world {
		return nil
	}
	for cpu, left := 0, rank; ; cpu++ {
		if !allowed.IsSet(cpu) {
			continue
		}
		if left == 0 {
			one.Set(cpu)
			break
		}
		left--
	}
	runtime.LockOSThread() // for good: this goroutine makes all calls of the rank
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("bench: pin rank %d: %w", rank, err)
	}
	return nil
}

// buffers are two of the size: in a window for pull, else the caller's own.
func (j *benchJob) buffers(c *client.Comm, bytes int) (send, recv []byte, err error) {
	if j.Algo != wire.AlgoPull.String() || bytes == 0 {
		return make([]byte, bytes), make([]byte, bytes), nil
	}
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

type allReduceBench struct {
	job        *benchJob
	c          *client.Comm
	count      int
	dtype      client.Dtype
	oracle     oracle.Dtype
	send, recv []byte
}

// side times and then checks one of the two ways. dst is recv (out of place) or send (in place).
func (b *allReduceBench) side(id int, dst []byte) (benchRankSide, error) {
	var s benchRankSide
	oracle.Fill(b.send, b.oracle, oracle.Seed(b.job.Seed, b.c.Rank(), -1-id))
	if _, err := b.c.TimeAllReduce(b.send, dst, b.count, b.dtype, b.job.Warmup); err != nil {
		return s, err
	}
	// In place, each iteration sums the sums of the one before: start from zeros, which stay finite and cost the same.
	if len(dst) > 0 && len(b.send) > 0 && &dst[0] == &b.send[0] {
		clear(b.send)
	}
	if err := b.c.Barrier(); err != nil {
		return s, err
	}
	took, err := b.c.TimeAllReduce(b.send, dst, b.count, b.dtype, b.job.Iters)
	if err != nil {
		return s, err
	}
	s.TotalNs = float64(took.Nanoseconds())
	for i := range b.job.Check {
		wrong, err := b.check(id*maxIters+i, dst)
		if err != nil {
			return s, err
		}
		s.Wrong += wrong
	}
	return s, nil
}

// check runs the operation once on new inputs and compares every element.
func (b *allReduceBench) check(operation int, dst []byte) (int64, error) {
	seeds := make([]uint64, b.c.WorldSize())
	for r := range seeds {
		seeds[r] = oracle.Seed(b.job.Seed, r, operation)
	}
	for i := range b.recv {
		b.recv[i] = 0xff // a NaN: nothing left from before can pass for a result
	}
	oracle.Fill(b.send, b.oracle, seeds[b.c.Rank()])
	// A rank that reduces between windows writes to everybody's: nobody may still be filling his.
	if err := b.c.Barrier(); err != nil {
		return 0, err
	}
	if err := b.c.AllReduce(b.send, dst, b.count, b.dtype); err != nil {
		return 0, err
	}
	return oracle.WrongSums(dst, b.oracle, seeds, 0), nil
}

func (j *benchJob) runBarrier(c *client.Comm, out *json.Encoder) error {
	if _, err := c.TimeBarrier(j.Warmup); err != nil {
		return err
	}
	took, err := c.TimeBarrier(j.Iters)
	if err != nil {
		return err
	}
	return out.Encode(benchRankRow{OutOfPlace: benchRankSide{TotalNs: float64(took / time.Nanosecond)}})
}

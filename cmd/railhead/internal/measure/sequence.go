package measure

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/private"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/ncclstyle"
)

// Sequence is what the same ranks on GPUs measure one after another, each step in a group of a daemon of its own. So steps can differ in what a
// daemon decides: in the algorithms and grids of its tuning table.
type Sequence struct {
	Jobs    []Job    `json:"jobs"`
	Sockets []string `json:"sockets"` // of daemons
	Steps   []Step   `json:"steps"`
}

// Step is a job with sizes and a number of checks of its own.
type Step struct {
	Job    int      `json:"job"`    // in Sequence.Jobs
	Socket int      `json:"socket"` // in Sequence.Sockets; NoSocket is the daemon of the ranks' environment
	Window bool     `json:"window,omitempty"`
	Sizes  []uint64 `json:"sizes"`
	Check  int      `json:"check,omitempty"`
}

// NoSocket is the Socket of a step in the group that the ranks have formed first.
const NoSocket = -1

// jobs are those of the steps, with their rows numbered through.
func (s *Sequence) jobs(world int) (jobs []Job) {
	first := 0
	for _, step := range s.Steps {
		j := s.Jobs[step.Job]
		j.Window, j.Sizes, j.Check, j.FirstRow = step.Window, step.Sizes, step.Check, first
		first += len(j.rows(world))
		jobs = append(jobs, j)
	}
	return jobs
}

// OnGPU is true: jobs on CPUs have a daemon for all.
func (s *Sequence) OnGPU() bool { return true }

// Run is not for a Sequence.
func (s *Sequence) Run(*client.Comm, *json.Encoder) error {
	return errors.New("a sequence of jobs runs on GPUs only")
}

// RunOnGPU runs the steps. Comms stay open until the end.
func (s *Sequence) RunOnGPU(c *client.Comm, gpu *ranks.GPU, out *json.Encoder) (err error) {
	jobs := s.jobs(c.WorldSize())
	largest := uint64(0)
	for i := range jobs {
		largest = max(largest, jobs[i].largest(c.WorldSize()))
	}
	p, err := newOnGPU(gpu, int(largest))
	if err != nil {
		return err
	}
	opened := comms{first: c, device: gpu.Device.Ordinal, of: map[string]*client.Comm{}}
	for i := range jobs {
		on := c
		if n := s.Steps[i].Socket; n != NoSocket {
			if on, err = opened.at(s.Sockets[n]); err != nil {
				return err
			}
		}
		if err := p.measure(&jobs[i], on, out); err != nil {
			return err
		}
	}
	return opened.finalize()
}

// comms are one rank's comms of several daemons.
type comms struct {
	first    *client.Comm
	device   int
	of       map[string]*client.Comm // by socket
	inOrder  []*client.Comm
	sessions []*client.Session
}

// at returns the comm of a daemon. All ranks ask for the same ones in the same order.
func (o *comms) at(socket string) (*client.Comm, error) {
	if c := o.of[socket]; c != nil {
		return c, nil
	}
	s, err := client.Connect(socket, 0)
	if err != nil {
		return nil, err
	}
	o.sessions = append(o.sessions, s)
	c, err := s.Init(client.CommConfig{
		Rank: o.first.Rank(), World: o.first.WorldSize(), Device: client.DeviceCUDA, DeviceName: strconv.Itoa(o.device),
	})
	if err != nil {
		return nil, err
	}
	o.of[socket] = c
	o.inOrder = append(o.inOrder, c)
	return c, nil
}

func (o *comms) finalize() error {
	for _, c := range o.inOrder {
		if err := c.Finalize(); err != nil {
			return err
		}
	}
	for _, s := range o.sessions {
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// MeasureOn starts a group of n ranks of a daemon for the sequence. onRow is called with each row of a step when it is complete.
func (s *Sequence) MeasureOn(ctx context.Context, d *private.Daemon, n int, timeout time.Duration, env []string,
	onRow func(step int, row ncclstyle.Row) error) error {
	jobs := s.jobs(n)
	var planned []plannedRow
	var stepOf []int // by row
	for i := range jobs {
		rows := jobs[i].rows(n)
		planned = append(planned, rows...)
		for range rows {
			stepOf = append(stepOf, i)
		}
	}
	reports := ranks.NewRows(n, len(planned), func(r rankRow) int { return r.Row }, func(number int, all []rankRow) error {
		step := stepOf[number]
		return onRow(step, jobs[step].merge(planned[number], all))
	})
	group := ranks.Group{Daemon: d, Ranks: n, Timeout: timeout, Env: env, Stdout: reports.Stdout}
	err := group.Run(ctx, SequenceKind, s)
	if incomplete := reports.Finish(); err == nil {
		err = incomplete
	}
	return err
}

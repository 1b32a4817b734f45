package measure

import (
	"encoding/json"
	"errors"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/cuda"
	"railhead/internal/ncclstyle"
)

// OnGPU says whether the ranks run on GPUs.
func (j *Job) OnGPU() bool { return j.Device == cli.DeviceCUDA }

// RunOnGPU measures all rows on a GPU.
func (j *Job) RunOnGPU(c *client.Comm, gpu *ranks.GPU, out *json.Encoder) error {
	p, err := newOnGPU(gpu, int(j.largest(c.WorldSize())))
	if err != nil {
		return err
	}
	return p.measure(j, c, out)
}

// onGPU is a rank on a GPU. Times are those of the device's events: from when it begins the first call to when it has ended the last one. The calls
// are queued one by one, or captured into a graph, which is then launched.
type onGPU struct {
	gpu     *ranks.GPU
	staging []byte    // pinned, as large as the largest buffer
	memory  [2][]byte // the device's, likewise; nil until a job needs it
	// Of the job that runs:
	c        *client.Comm // with its calls on the stream
	launches int          // of a graph of all calls; 0: no graph
}

// newOnGPU is for jobs whose buffers have at most so many bytes.
func newOnGPU(gpu *ranks.GPU, largest int) (*onGPU, error) {
	p := &onGPU{gpu: gpu}
	if largest == 0 {
		return p, nil
	}
	var err error
	p.staging, err = gpu.AllocPinned(largest)
	return p, err
}

// measure measures all rows of a job.
func (p *onGPU) measure(j *Job, c *client.Comm, out *json.Encoder) error {
	p.c, p.launches = c.OnStream(p.gpu.Stream.Pointer()), j.Launches
	return j.runAt(p, p.c, out)
}

const (
	timedAtOnce  = 64   // single calls that are queued before they are waited for
	mostLaunches = 1000 // launches of a graph that are timed one by one
)

func (p *onGPU) buffers(bytes int, window bool) (first, second []byte, err error) {
	if window {
		return inWindow(p.c, bytes)
	}
	for i := range p.memory {
		if p.memory[i] == nil {
			if p.memory[i], err = p.gpu.Alloc(len(p.staging)); err != nil {
				return nil, nil, err
			}
		}
	}
	return p.memory[0][:bytes], p.memory[1][:bytes], nil
}

func (p *onGPU) fill(to []byte, value byte) error {
	if len(to) == 0 {
		return nil
	}
	return p.gpu.Stream.Fill(to, value)
}

func (p *onGPU) write(to []byte, content func([]byte)) error {
	if len(to) == 0 {
		return nil
	}
	content(p.staging[:len(to)])
	if err := p.gpu.Stream.Copy(to, p.staging[:len(to)]); err != nil {
		return err
	}
	return p.gpu.Wait(p.c, 0) // the next one writes the same memory
}

func (p *onGPU) read(from []byte) ([]byte, error) {
	if len(from) == 0 {
		return nil, nil
	}
	if err := p.gpu.Stream.Copy(p.staging[:len(from)], from); err != nil {
		return nil, err
	}
	return p.staging[:len(from)], p.gpu.Wait(p.c, 0)
}

// queue queues n calls.
func (p *onGPU) queue(call client.Timed, n int) error {
	_, err := p.c.Time(call, n)
	return err
}

func (p *onGPU) run(call client.Timed, n int) error {
	if p.launches == 0 || n == 0 {
		return errors.Join(p.queue(call, n), p.gpu.Wait(p.c, n))
	}
	return p.withGraph(call, n, func(graph *cuda.Exec) error {
		return errors.Join(graph.Launch(p.gpu.Stream), p.gpu.Wait(p.c, n))
	})
}

// withGraph captures n calls for f. What f launches has run when it returns.
func (p *onGPU) withGraph(call client.Timed, n int, f func(*cuda.Exec) error) error {
	graph, err := p.gpu.Stream.Capture(func() error { return p.queue(call, n) })
	if err != nil {
		return err
	}
	exec, err := graph.Instantiate()
	if err != nil {
		return errors.Join(err, graph.Destroy())
	}
	return errors.Join(f(exec), exec.Destroy(), graph.Destroy())
}

// align queues a call in which each rank waits for all others. Its end on the device is the begin of what is queued behind it.
func (p *onGPU) align(call client.Timed) error {
	switch call.Kind {
	case client.KindAllReduce, client.KindAllGather, client.KindReduceScatter, client.KindAllToAll:
		return p.queue(call, 1)
	}
	return p.c.Barrier()
}

// time of a graph is that of launches behind a first one, in which the ranks have met.
func (p *onGPU) time(call client.Timed, n int) (time.Duration, error) {
	if p.launches == 0 {
		times, err := p.between(1, n, func() error { return p.queue(call, n) })
		return sum(times), err
	}
	var all time.Duration
	err := p.withGraph(call, n, func(graph *cuda.Exec) error {
		launch := func() error { return graph.Launch(p.gpu.Stream) }
		if err := launch(); err != nil {
			return err
		}
		times, err := p.between(1, p.launches*n, func() error {
			for range p.launches {
				if err := launch(); err != nil {
					return err
				}
			}
			return nil
		})
		all = sum(times) / time.Duration(p.launches)
		return err
	})
	return all, err
}

// each of a graph is the time of a launch divided by its calls.
func (p *onGPU) each(call client.Timed, n int) (times []float64, err error) {
	add := func(measured []time.Duration, calls int) {
		for _, t := range measured {
			times = append(times, float64(t.Nanoseconds())/float64(calls))
		}
	}
	if p.launches == 0 {
		for left := n; left > 0 && err == nil; left -= timedAtOnce {
			var measured []time.Duration
			measured, err = p.between(min(left, timedAtOnce), 1, func() error { return p.queue(call, 1) })
			add(measured, 1)
		}
		return times, err
	}
	err = p.withGraph(call, n, func(graph *cuda.Exec) error {
		launch := func() error { return graph.Launch(p.gpu.Stream) }
		if err := launch(); err != nil {
			return err
		}
		measured, err := p.between(min(p.launches, mostLaunches), n, launch)
		add(measured, n)
		return err
	})
	return times, err
}

// between queues work several times, with an event before, between and behind, and returns the times between events. The work is of so
// many calls.
func (p *onGPU) between(times, calls int, work func() error) (measured []time.Duration, err error) {
	events := make([]*cuda.Event, times+1)
	defer func() {
		for _, e := range events {
			if e != nil {
				err = errors.Join(err, e.Destroy())
			}
		}
	}()
	for i := range events {
		if events[i], err = p.gpu.NewEvent(); err != nil {
			return nil, err
		}
	}
	for i, e := range events {
		if i > 0 {
			if err := work(); err != nil {
				return nil, err
			}
		}
		if err := e.Record(p.gpu.Stream); err != nil {
			return nil, err
		}
	}
	if err := p.gpu.Wait(p.c, times*calls); err != nil {
		return nil, err
	}
	for i := range times {
		t, err := events[i+1].Since(events[i])
		if err != nil {
			return nil, err
		}
		measured = append(measured, t)
	}
	return measured, nil
}

func sum(times []time.Duration) (all time.Duration) {
	for _, t := range times {
		all += t
	}
	return all
}

// algorithm asks for the choice, because calls that run later do not tell the host.
func (p *onGPU) algorithm(j *Job, bytes uint64) (ranAlgorithm, error) {
	if j.Op == ncclstyle.Sendrecv {
		return ranAlgorithm{ncclstyle.None, ncclstyle.None}, nil
	}
	name, why, err := p.c.Choice(string(j.Op), bytes, j.inWindows())
	return ranAlgorithm{name, why}, err
}

package measure

import (
	"time"

	"railhead/client"
)

// place is where a rank's buffers are and its calls run.
type place interface {
	// buffers returns two buffers of the size: in a window, or in ordinary memory of the place.
	buffers(bytes int, window bool) (first, second []byte, err error)
	// fill stores a byte everywhere.
	fill(to []byte, value byte) error
	// write stores what content makes. content gets the CPU's memory of the same size.
	write(to []byte, content func([]byte)) error
	// read returns the bytes for the CPU to read, valid until the next call.
	read(from []byte) ([]byte, error)
	// run makes n calls and waits for them.
	run(call client.Timed, n int) error
	// align lets the ranks begin what follows together.
	align(call client.Timed) error
	// time makes n calls back to back and returns the time of all.
	time(call client.Timed, n int) (time.Duration, error)
	// each returns the times in ns of single calls: of n, or of as many as the place measures.
	each(call client.Timed, n int) ([]float64, error)
	// algorithm is the one that ran a call of the operation, and why.
	algorithm(j *Job, bytes uint64) (ranAlgorithm, error)
}

// onCPU is a rank on the CPU: calls return when they have run.
type onCPU struct{ c *client.Comm }

func (p onCPU) buffers(bytes int, window bool) (first, second []byte, err error) {
	if !window {
		return make([]byte, bytes), make([]byte, bytes), nil
	}
	return inWindow(p.c, bytes)
}

// inWindow allocates two buffers in a window, which share no cache line.
func inWindow(c *client.Comm, bytes int) (first, second []byte, err error) {
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

func (p onCPU) fill(to []byte, value byte) error {
	for i := range to {
		to[i] = value
	}
	return nil
}

func (p onCPU) write(to []byte, content func([]byte)) error {
	content(to)
	return nil
}

func (p onCPU) read(from []byte) ([]byte, error) { return from, nil }

func (p onCPU) run(call client.Timed, n int) error {
	_, err := p.c.Time(call, n)
	return err
}

func (p onCPU) align(client.Timed) error { return p.c.Barrier() }

func (p onCPU) time(call client.Timed, n int) (time.Duration, error) { return p.c.Time(call, n) }

func (p onCPU) each(call client.Timed, n int) ([]float64, error) {
	times := make([]float64, n)
	for i := range times {
		t, err := p.c.Time(call, 1)
		if err != nil {
			return nil, err
		}
		times[i] = float64(t.Nanoseconds())
	}
	return times, nil
}

func (p onCPU) algorithm(*Job, uint64) (ranAlgorithm, error) {
	status, err := p.c.Status()
	return ranAlgorithm{status.Algorithm, status.Why}, err
}

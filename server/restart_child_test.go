package server

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"time"

	"railhead/client"
)

// What ranks do in their own processes while their daemon comes and goes.

// work repeats one kind of work until all ranks know that the stop file exists, and answers with the number of rounds.
func (c *child) work(o order) (a answer, err error) {
	f := workOf[o.Work]
	if f == nil {
		return a, fmt.Errorf("no such work: %q", o.Work)
	}
	for stopped := false; err == nil && !stopped; a.Value++ {
		if err = f(c.comm, a.Value); err == nil {
			stopped, err = heardStop(c.comm, o.Stop)
		}
	}
	state, statusErr := c.comm.Status()
	if err == nil {
		err = statusErr
	}
	a.State = state
	return a, err
}

// heardStop: rank 0 tests for the file and tells the others, so that all end after the same round.
func heardStop(c *client.Comm, file string) (bool, error) {
	in, out := make([]byte, 4), make([]byte, 4)
	if _, err := os.Stat(file); err == nil && c.Rank() == 0 {
		binary.LittleEndian.PutUint32(in, math.Float32bits(1))
	}
	err := c.AllReduce(in, out, 1, client.F32, client.Sum)
	return math.Float32frombits(binary.LittleEndian.Uint32(out)) == 1, err
}

var workOf = map[string]func(c *client.Comm, round int) error{
	"reduce": func(c *client.Comm, _ int) error { return reduce(c) },
	"windows": func(c *client.Comm, round int) error {
		return useWindow(c, 1+round%3*100_000)
	},
	"registered": func(c *client.Comm, _ int) error { return registerAndFree(c) },
	"split":      splitAndReduce,
	// With pauses, so that the daemon dies between calls too.
	"idle": func(c *client.Comm, _ int) error { time.Sleep(time.Millisecond); return c.Barrier() },
}

// useWindow allocates, writes, reads and frees a window. It must begin as zeros, even where a daemon died before it had released the pages.
func useWindow(c *client.Comm, bytes int) error {
	w, err := c.AllocWindow(bytes)
	if err != nil {
		return err
	}
	mine, err := w.Local()
	if err != nil {
		return err
	}
	for i, b := range mine {
		if b != 0 {
			return fmt.Errorf("byte %d of a new window is %d", i, b)
		}
	}
	for i := range mine {
		mine[i] = byte(1 + c.Rank())
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	next := (c.Rank() + 1) % c.WorldSize()
	theirs, err := w.Peer(next)
	if err != nil {
		return err
	}
	if theirs[0] != byte(1+next) || theirs[bytes-1] != byte(1+next) {
		return fmt.Errorf("rank %d's window begins with %d and ends with %d", next, theirs[0], theirs[bytes-1])
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	return w.Free()
}

func splitAndReduce(c *client.Comm, _ int) error {
	sub, err := c.Split(c.Rank()%2, 0)
	if err != nil {
		return err
	}
	if err := reduce(sub); err != nil {
		return err
	}
	return sub.Finalize()
}

package killrounds

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// order has the instructions for a rank, as JSON in its environment.
type order struct {
	Socket, Group string
	Rank, World   int
	Seed          uint64
	TimeoutMS     int
	// Shares of operations that are not plain collectives, in percent.
	Splits, Windows, Registers int
	Experts, Buffers           int  // rounds of MoE, and buffers created again; 0 Experts: no MoE
	Drop, Renormalize          bool // only rounds of MoE, in which survivors go on
	Dies                       bool // victims are killed, not stopped
}

// report is the last line that a rank prints.
type report struct {
	Result   wire.Result
	Culprit  int // -1 = not known
	Message  string
	AtNS     int64 // CLOCK_MONOTONIC when the call returned
	Ops      int
	Setup    bool  // in a call that needs the daemon
	Part     bool  // in a comm of a split, where rank r has rank r / parts
	Stopped  bool  // it ended because its stdin was closed
	LeftNS   int64 // how long it took to leave a broken group
	WaitedNS int64 // how long its threads had waited for a processor at the end
	Drop     *dropReport
}

// Lines that a rank prints where it may be killed or stopped.
const (
	lineStarted = "started"
	lineWorking = "working"
	lineSetup   = "setup" // the first split, window or registration
)

func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail for this clock
	return t.Nano()
}

// worker is the state of a rank.
type worker struct {
	order
	session *client.Session
	comm    *client.Comm
	experts *experts // nil: none
	drop    *dropReport
	random  *rand.Rand // the same on all ranks
	ops     int
	setup   bool // in a call that needs the daemon
	part    bool // in a split
	said    bool
	windows []*client.Window
	stop    atomic.Bool // the parent has closed stdin
}

func rankMain() error {
	var w worker
	if err := json.Unmarshal([]byte(os.Getenv("RAILHEAD_KILLROUNDS_ORDER")), &w.order); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		w.stop.Store(true)
	}()
	fmt.Println(lineStarted)
	err := w.work()
	r := report{Culprit: -1, AtNS: now(), Ops: w.ops, Setup: w.setup, Part: w.part, Drop: w.drop}
	var e *client.Error
	switch {
	case err == nil:
		r.Stopped = true
	case errors.As(err, &e):
		r.Result, r.Message = e.Result, e.Message
		if w.comm != nil {
			if st, err := w.comm.Status(); err == nil {
				r.Culprit = st.Culprit
			}
			if w.experts != nil && (e.Result == wire.ResultRankDead || e.Result == wire.ResultTimeout) {
				if r.LeftNS, err = w.leaveBroken(); err != nil {
					return err
				}
			}
		}
	default:
		return err // such as a wrong result
	}
	r.WaitedNS = waitedForProcessor(os.Getpid()).Nanoseconds()
	return json.NewEncoder(os.Stdout).Encode(r)
}

const heapBytes = 32 << 20

// leaveBroken checks that buffers and comm of a broken group can be ended, and returns how long that took.
func (w *worker) leaveBroken() (ns int64, err error) {
	began := time.Now()
	if err := w.experts.destroy(); err == nil {
		return 0, fmt.Errorf("rank %d: the buffers of a broken group were freed without an error", w.Rank)
	}
	if err := w.comm.Finalize(); err != nil {
		return 0, fmt.Errorf("rank %d: finalize of a broken group: %w", w.Rank, err)
	}
	return time.Since(began).Nanoseconds(), nil
}

// work runs operations until an error, or until rank 0's stdin is closed.
func (w *worker) work() error {
	timeout := time.Duration(w.TimeoutMS) * time.Millisecond
	w.setup = true
	var err error
	if w.session, err = client.Connect(w.Socket, timeout); err != nil {
		return err
	}
	config := client.CommConfig{Group: w.Group, Rank: w.Rank, World: w.World, Timeout: timeout, HeapBytes: heapBytes}
	if w.comm, err = w.session.Init(config); err != nil {
		return err
	}
	w.random = rand.New(rand.NewPCG(w.Seed, 1))
	if w.Drop {
		return w.dropWork()
	}
	if w.Experts > 0 {
		if w.experts, err = newExperts(w.comm, false, false); err != nil {
			return err
		}
	}
	w.setup = false
	for {
		if err := w.operation(); err != nil {
			return err
		}
		if w.ops++; w.ops == 3 {
			fmt.Println(lineWorking)
		}
		if w.ops%8 != 0 {
			continue
		}
		if done, err := w.agreeToStop(); done || err != nil {
			return err
		}
	}
}

// agreeToStop lets all ranks stop after the same operation.
func (w *worker) agreeToStop() (bool, error) {
	flag := []byte{0}
	if w.Rank == 0 && w.stop.Load() {
		flag[0] = 1
	}
	if err := w.comm.Broadcast(flag, flag, 1, client.U8, 0); err != nil || flag[0] == 0 {
		return false, err
	}
	w.setup = true
	return true, w.comm.Finalize()
}

// operation runs the next operation and checks its result.
func (w *worker) operation() error {
	kind := w.random.IntN(100)
	size := 1 + w.random.IntN(1<<w.random.IntN(18))
	switch {
	case kind < w.Splits:
		return w.inSetup(func() error { return w.split() })
	case kind < w.Splits+w.Windows:
		return w.inSetup(func() error { return w.window(size) })
	case kind < w.Splits+w.Windows+w.Registers:
		return w.inSetup(func() error { return w.register(size) })
	case kind < w.Splits+w.Windows+w.Registers+w.Experts:
		return w.experts.round(w.random.IntN(2), rand.New(rand.NewPCG(w.Seed, uint64(w.Rank)<<32|uint64(w.ops))), false)
	case kind < w.Splits+w.Windows+w.Registers+w.Experts+w.Buffers:
		return w.inSetup(func() error { return w.experts.remake(w.random.IntN(2)) })
	}
	return w.collective(w.comm, size)
}

func (w *worker) inSetup(f func() error) error {
	w.setup = true
	if !w.said {
		w.said = true
		fmt.Println(lineSetup)
	}
	err := f()
	if err == nil {
		w.setup = false
	}
	return err
}

// parts is the number of comms of a split: rank r has rank r/parts in comm r%parts.
const parts = 2

// split splits the comm, uses the new comm and finalizes it.
func (w *worker) split() error {
	w.part = true
	part, err := w.comm.Split(w.Rank%parts, 0)
	if err != nil {
		return err
	}
	if err := part.Barrier(); err != nil {
		return err
	}
	if err := part.Finalize(); err != nil {
		return err
	}
	w.part = false
	return nil
}

// window allocates another window. Before the fifth it frees all others.
func (w *worker) window(bytes int) error {
	if len(w.windows) == 4 {
		for _, old := range w.windows {
			if err := old.Free(); err != nil {
				return err
			}
		}
		w.windows = nil
	}
	window, err := w.comm.AllocWindow(bytes)
	if err == nil {
		w.windows = append(w.windows, window)
	}
	return err
}

func (w *worker) register(bytes int) error {
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(memory) }()
	window, err := w.comm.Register(client.RegisterConfig{Memory: memory, FD: -1})
	if err != nil {
		return err
	}
	return window.Free()
}

// collective runs a random collective of int32, of the given size in bytes, and checks every element.
func (w *worker) collective(c *client.Comm, size int) error {
	count := (size + 3) / 4
	seed := w.random.Uint64()
	kind, root := w.random.IntN(5), w.random.IntN(w.World)
	seeds := make([]uint64, w.World)
	for r := range seeds {
		seeds[r] = oracle.Seed(seed, r, 0)
	}
	send, recv := make([]byte, 4*count), make([]byte, 4*count*w.World)
	oracle.Fill(send, oracle.I32, oracle.Sum, seeds[w.Rank])
	var err error
	wrong := int64(0)
	switch kind {
	case 0:
		if err = c.AllReduce(send, recv[:4*count], count, client.I32, client.Sum); err == nil {
			wrong = oracle.WrongSums(recv[:4*count], oracle.I32, seeds, 0)
		}
	case 1:
		if err = c.AllGather(send, recv, count, client.I32); err == nil {
			for r := range seeds {
				wrong += oracle.WrongCopies(recv[4*count*r:4*count*(r+1)], oracle.I32, seeds[r], 0)
			}
		}
	case 2:
		if err = c.Broadcast(send, recv[:4*count], count, client.I32, root); err == nil {
			wrong = oracle.WrongCopies(recv[:4*count], oracle.I32, seeds[root], 0)
		}
	case 3:
		if err = c.Reduce(send, recv[:4*count], count, client.I32, client.Sum, root); err == nil && w.Rank == root {
			wrong = oracle.WrongSums(recv[:4*count], oracle.I32, seeds, 0)
		}
	default:
		err = c.Barrier()
	}
	if err == nil && wrong > 0 {
		return fmt.Errorf("rank %d: operation %d, kind %d of %d elements: %d are wrong", w.Rank, w.ops, kind, count, wrong)
	}
	return err
}

// Command abioverhead measures what the C ABI adds to the one-shot kernel: two ranks, 16 bytes, f32, in place.
//
// Both ranks are threads of this process. They run, in turn, a C loop around rh_all_reduce and a C loop around the bare
// kernel, several times; a loop reads the clock at its two ends only and, with a core for each rank, makes no system call:
// the program reports how often the kernel took a processor away or a rank slept meanwhile.
//
//	go run ./benchmarks/abioverhead
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/server"
)

const (
	ranks = 2
	count = 4 // f32: 16 bytes
)

type loop func(c *client.Comm, buf []byte, iterations int) (time.Duration, error)

func main() {
	iterations := flag.Int("n", 200000, "iterations of a loop")
	repeats := flag.Int("repeats", 21, "pairs of loops")
	flag.Parse()
	if err := measure(*iterations, *repeats); err != nil {
		fmt.Fprintln(os.Stderr, "abioverhead:", err)
		os.Exit(1)
	}
}

func measure(iterations, repeats int) error {
	if iterations < 1 || repeats < 1 {
		return errors.New("at least one iteration and one repeat")
	}
	dir, err := os.MkdirTemp("", "abioverhead-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := server.Start(server.Config{SocketPath: filepath.Join(dir, "rh.sock")})
	if err != nil {
		return err
	}
	defer s.Close()
	comms, err := form(s.SocketPath())
	if err != nil {
		return err
	}
	abi := func(c *client.Comm, buf []byte, n int) (time.Duration, error) {
		return c.Time(client.Timed{Kind: client.KindAllReduce, Send: buf, Recv: buf, Count: count, Dtype: client.F32, Op: client.Sum}, n)
	}
	kernel := func(c *client.Comm, buf []byte, n int) (time.Duration, error) {
		return c.TimeOneshotKernel(buf, buf, count, n)
	}
	if _, err := together(comms, abi, iterations); err != nil { // warm up
		return err
	}
	var abiNs, kernelNs, difference []float64
	before := switches()
	for range repeats {
		a, err := together(comms, abi, iterations)
		if err != nil {
			return err
		}
		k, err := together(comms, kernel, iterations)
		if err != nil {
			return err
		}
		abiNs, kernelNs, difference = append(abiNs, a), append(kernelNs, k), append(difference, a-k)
	}
	fmt.Printf("%d ranks, 16 bytes, f32, %d iterations x %d pairs, %d CPUs\n", ranks, iterations, repeats, runtime.NumCPU())
	fmt.Printf("ns an operation          min  median     max\n")
	for _, row := range []struct {
		name string
		ns   []float64
	}{{"rh_all_reduce", abiNs}, {"bare kernel", kernelNs}, {"difference", difference}} {
		sort.Float64s(row.ns)
		fmt.Printf("%-20s %7.1f %7.1f %7.1f\n", row.name, row.ns[0], row.ns[len(row.ns)/2], row.ns[len(row.ns)-1])
	}
	after := switches()
	fmt.Printf("context switches of the process meanwhile: %d voluntary, %d forced\n", after.Nvcsw-before.Nvcsw, after.Nivcsw-before.Nivcsw)
	return nil
}

func switches() unix.Rusage {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail for oneself
	return u
}

func form(socket string) ([]*client.Comm, error) {
	comms, errs := make([]*client.Comm, ranks), make([]error, ranks)
	var wg sync.WaitGroup
	for r := range ranks {
		wg.Go(func() {
			var sess *client.Session
			if sess, errs[r] = client.Connect(socket, time.Minute); errs[r] != nil {
				return
			}
			comms[r], errs[r] = sess.Init(client.CommConfig{Group: "overhead", Rank: r, World: ranks, Timeout: time.Minute})
		})
	}
	wg.Wait()
	return comms, errors.Join(errs...)
}

// together runs the loop on both ranks and returns the mean of their times of an operation, in ns.
func together(comms []*client.Comm, f loop, iterations int) (float64, error) {
	took, errs := make([]time.Duration, ranks), make([]error, ranks)
	var wg sync.WaitGroup
	for r, c := range comms {
		wg.Go(func() {
			// A processor each: two ranks on one would measure the scheduler. The thread ends with the goroutine.
			runtime.LockOSThread()
			var one unix.CPUSet
			one.Set(r)
			if errs[r] = unix.SchedSetaffinity(0, &one); errs[r] != nil {
				return
			}
			if errs[r] = c.Barrier(); errs[r] == nil {
				took[r], errs[r] = f(c, make([]byte, 16), iterations)
			}
		})
	}
	wg.Wait()
	return float64((took[0] + took[1]).Nanoseconds()) / ranks / float64(iterations), errors.Join(errs...)
}

// Command abioverhead measures what the C ABI adds to the one-shot kernel, and how much of that is the flight record: two
// ranks, 16 bytes, f32, in place.
//
// Both ranks are threads of this process, in two groups, one of which keeps no flight record. In turn, many times, they run a C loop around
// rh_all_reduce in each group, and a C loop around the bare kernel. A group of one rank does the same: it never waits, so the whole cost of
// the record shows. A loop reads the clock only at its start and end. With a processor for each rank it makes no system call: the program
// reports the context switches.
//
//	go run ./benchmarks/abioverhead
//	go run ./benchmarks/abioverhead -device cuda
//	go run ./benchmarks/abioverhead -device hollow
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
	"railhead/internal/tempdir"
	"railhead/server"
)

const (
	ranks = 2
	count = 4 // f32: 16 bytes
)

type loop func(c *client.Comm, buf []byte, iterations int) (time.Duration, error)

func main() {
	iterations := flag.Int("n", 5000, "iterations of a loop")
	repeats := flag.Int("repeats", 401, "rounds of the loops")
	device := flag.String("device", "cpu", "cpu; cuda: what a call adds to the launch of its kernel, on the first GPU; hollow: the same without a GPU, on a driver whose functions do nothing")
	flag.Parse()
	run := measure
	switch *device {
	case "cpu":
	case "cuda":
		run = measureLaunches
	case "hollow":
		run = measureLaunchesOfNothing
	default:
		fmt.Fprintf(os.Stderr, "abioverhead: -device %s: want cpu, cuda or hollow\n", *device)
		os.Exit(2)
	}
	if err := run(*iterations, *repeats); err != nil {
		fmt.Fprintln(os.Stderr, "abioverhead:", err)
		os.Exit(1)
	}
}

func measure(iterations, repeats int) error {
	if iterations < 1 || repeats < 1 {
		return errors.New("at least one iteration and one repeat")
	}
	temporary, err := tempdir.Make()
	if err != nil {
		return err
	}
	defer func() { _ = temporary.Remove() }()
	dir := temporary.Path()
	s, err := server.Start(server.Config{SocketPath: filepath.Join(dir, "rh.sock")})
	if err != nil {
		return err
	}
	defer s.Close()
	comms, err := form(s.SocketPath(), "on", ranks)
	if err != nil {
		return err
	}
	unrecorded, err := form(s.SocketPath(), "off", ranks)
	if err != nil {
		return err
	}
	alone, err := form(s.SocketPath(), "on", 1)
	if err != nil {
		return err
	}
	aloneUnrecorded, err := form(s.SocketPath(), "off", 1)
	if err != nil {
		return err
	}
	abi := func(c *client.Comm, buf []byte, n int) (time.Duration, error) {
		return c.Time(client.Timed{Kind: client.KindAllReduce, Send: buf, Recv: buf, Count: count, Dtype: client.F32, Op: client.Sum}, n)
	}
	kernel := func(c *client.Comm, buf []byte, n int) (time.Duration, error) {
		return c.TimeOneshotKernel(buf, buf, count, n)
	}
	loops := []struct {
		name  string
		comms []*client.Comm
		loop
		ns []float64
	}{
		{"rh_all_reduce", comms, abi, nil}, {"without flight record", unrecorded, abi, nil}, {"bare kernel", unrecorded, kernel, nil},
		{"1 rank", alone, abi, nil}, {"1 rank without record", aloneUnrecorded, abi, nil},
	}
	for i := range loops { // warm up
		if _, err := together(loops[i].comms, loops[i].loop, iterations); err != nil {
			return err
		}
	}
	before := switches()
	for round := range repeats {
		for k := range loops {
			l := &loops[(k+round)%len(loops)] // so that no loop always follows the same one
			ns, err := together(l.comms, l.loop, iterations)
			if err != nil {
				return err
			}
			l.ns = append(l.ns, ns)
		}
	}
	fmt.Printf("%d ranks, 16 bytes, f32, %d iterations x %d rounds, %d CPUs\n", ranks, iterations, repeats, runtime.NumCPU())
	fmt.Printf("ns an operation            min  median     max\n")
	printRow("C ABI with record", difference(loops[0].ns, loops[2].ns))
	printRow("flight record", difference(loops[0].ns, loops[1].ns))
	printRow("flight record, 1 rank", difference(loops[3].ns, loops[4].ns))
	for _, l := range loops {
		printRow(l.name, l.ns)
	}
	after := switches()
	fmt.Printf("context switches of the process meanwhile: %d voluntary, %d forced\n", after.Nvcsw-before.Nvcsw, after.Nivcsw-before.Nivcsw)
	return nil
}

func difference(a, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return d
}

// printRow sorts ns.
func printRow(name string, ns []float64) {
	sort.Float64s(ns)
	fmt.Printf("%-22s %7.1f %7.1f %7.1f\n", name, ns[0], ns[len(ns)/2], ns[len(ns)-1])
}

func switches() unix.Rusage {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail for this process
	return u
}

// form makes a group whose ranks keep a flight record, or none.
func form(socket, record string, world int) ([]*client.Comm, error) {
	if err := os.Setenv("RAILHEAD_FLIGHT_RECORD", record); err != nil {
		return nil, err
	}
	comms, errs := make([]*client.Comm, world), make([]error, world)
	var wg sync.WaitGroup
	for r := range world {
		wg.Go(func() {
			var sess *client.Session
			if sess, errs[r] = client.Connect(socket, time.Minute); errs[r] != nil {
				return
			}
			comms[r], errs[r] = sess.Init(client.CommConfig{Group: fmt.Sprintf("%d ranks, record %s", world, record), Rank: r, World: world, Timeout: time.Minute})
		})
	}
	wg.Wait()
	return comms, errors.Join(errs...)
}

// together runs the loop on all ranks and returns the mean of their times of an operation, in ns.
func together(comms []*client.Comm, f loop, iterations int) (float64, error) {
	took, errs := make([]time.Duration, len(comms)), make([]error, len(comms))
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
	var all time.Duration
	for _, d := range took {
		all += d
	}
	return float64(all.Nanoseconds()) / float64(len(comms)) / float64(iterations), errors.Join(errs...)
}

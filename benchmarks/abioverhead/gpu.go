package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"railhead/client"
	"railhead/client/device/cuda/fake"
	"railhead/internal/cuda"
	"railhead/internal/tempdir"
	"railhead/server"
)

// mostQueued is the largest number of launches of a loop: more than the driver queues would measure the kernels.
const mostQueued = 200

// onGPU is a rank with a stream and a buffer of its own on the first GPU.
type onGPU struct {
	*client.Comm
	stream *cuda.Stream
	buf    []byte
}

// measureLaunches measures what rh_all_reduce adds on the host to the launch of its kernel. Both ranks are threads of this process, on one GPU.
func measureLaunches(iterations, repeats int) error {
	if iterations < 1 || repeats < 1 {
		return errors.New("at least one iteration and one repeat")
	}
	iterations = min(iterations, mostQueued)
	temporary, err := tempdir.Make()
	if err != nil {
		return err
	}
	defer func() { _ = temporary.Remove() }()
	s, err := server.Start(server.Config{SocketPath: filepath.Join(temporary.Path(), "rh.sock")})
	if err != nil {
		return err
	}
	defer s.Close()
	group, err := formOnGPU(s.SocketPath())
	if err != nil {
		return err
	}
	abi := func(r onGPU) (time.Duration, error) {
		return r.Time(client.Timed{Kind: client.KindAllReduce, Send: r.buf, Recv: r.buf, Count: count, Dtype: client.F32, Op: client.Sum}, iterations)
	}
	launch := func(r onGPU) (time.Duration, error) { return r.TimeOneshotKernel(r.buf, r.buf, count, iterations) }
	var called, launched []float64
	for range repeats + 1 { // the first round warms up
		for _, l := range []struct {
			loop func(r onGPU) (time.Duration, error)
			ns   *[]float64
		}{{abi, &called}, {launch, &launched}} {
			ns, err := onBoth(group, l.loop, iterations)
			if err != nil {
				return err
			}
			*l.ns = append(*l.ns, ns)
		}
	}
	called, launched = called[1:], launched[1:]
	fmt.Printf("%d ranks on one GPU, 16 bytes, f32, %d calls x %d rounds\n", ranks, iterations, repeats)
	fmt.Printf("ns a call on the host      min  median     max\n")
	printRow("C ABI", difference(called, launched))
	printRow("rh_all_reduce", called)
	printRow("cuLaunchKernelEx", launched)
	return nil
}

// measureLaunchesOfNothing is measureLaunches on the driver for tests, hollow, so it measures what the library takes itself. It runs at the root of the
// repository.
func measureLaunchesOfNothing(iterations, repeats int) error {
	temporary, err := tempdir.Make()
	if err != nil {
		return err
	}
	defer func() { _ = temporary.Remove() }()
	driver, err := fake.Build(".", temporary.Path())
	if err != nil {
		return err
	}
	kernels, err := fake.BuildKernels(".", temporary.Path())
	if err != nil {
		return err
	}
	for name, value := range map[string]string{cuda.LibraryVariable: driver, "RAILHEAD_FAKE_CUDA_KERNELS": kernels, "RAILHEAD_FAKE_CUDA_HOLLOW": "1"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return measureLaunches(iterations, repeats)
}

func formOnGPU(socket string) ([]onGPU, error) {
	devices, err := cuda.Devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, errors.New("no GPU is visible")
	}
	c, err := devices[0].Retain()
	if err != nil {
		return nil, err
	}
	group, errs := make([]onGPU, ranks), make([]error, ranks)
	var wg sync.WaitGroup
	for r := range group {
		if group[r].stream, err = c.NewStream(); err != nil {
			return nil, err
		}
		if group[r].buf, err = c.Alloc(4 * count); err != nil {
			return nil, err
		}
		wg.Go(func() {
			var session *client.Session
			if session, errs[r] = client.Connect(socket, time.Minute); errs[r] != nil {
				return
			}
			var comm *client.Comm
			config := client.CommConfig{Group: "launches", Rank: r, World: ranks, Timeout: time.Minute, Device: client.DeviceCUDA, DeviceName: "0"}
			if comm, errs[r] = session.Init(config); errs[r] == nil {
				group[r].Comm = comm.OnStream(group[r].stream.Pointer())
			}
		})
	}
	wg.Wait()
	return group, errors.Join(errs...)
}

// onBoth runs the loop on both ranks, waits for what it has queued, and returns the mean of a call's time on the host, in ns.
func onBoth(group []onGPU, loop func(r onGPU) (time.Duration, error), iterations int) (float64, error) {
	took, errs := make([]time.Duration, len(group)), make([]error, len(group))
	var wg sync.WaitGroup
	for i, r := range group {
		wg.Go(func() {
			runtime.LockOSThread()
			if took[i], errs[i] = loop(r); errs[i] == nil {
				errs[i] = r.stream.Synchronize(context.Background())
			}
		})
	}
	wg.Wait()
	var all time.Duration
	for _, d := range took {
		all += d
	}
	return float64(all.Nanoseconds()) / float64(len(group)*iterations), errors.Join(errs...)
}

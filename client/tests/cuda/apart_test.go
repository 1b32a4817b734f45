package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/client/tests/harness"
	"railhead/internal/deep"
	"railhead/internal/oracle"
)

// runAsChild runs this rank's part of an operation in its memory and checks every byte of it. It says by which algorithm it ran.
func (o operation) runAsChild(t *testing.T, r rank, memory []byte) (algorithm string) {
	t.Helper()
	inputs := o.inputs(r.WorldSize())
	_, recvTimes := o.times(r.WorldSize())
	for i := range memory {
		memory[i] = 0xa5
	}
	sendAt, recvAt := o.places(r.Rank(), r.WorldSize(), len(memory))
	send, recv := memory[sendAt:sendAt+len(inputs[0])], memory[recvAt:recvAt+recvTimes*o.count*o.dtype.Size()]
	copy(send, inputs[r.Rank()])
	image := bytes.Clone(memory)
	// The others must not store to this rank's memory before it has been filled.
	if err := errors.Join(r.on().Barrier(), o.call(r.on(), send, recv), r.wait()); err != nil {
		t.Fatalf("%v: %v", o, err)
	}
	want := o.expected(inputs)[r.Rank()]
	if o.kind.reduces() && oracle.Differences(recv, want, o.dtype) != 0 || !o.kind.reduces() && !bytes.Equal(recv, want) {
		t.Fatalf("%v: rank %d: wrong results", o, r.Rank())
	}
	copy(image[recvAt:], recv)
	if !bytes.Equal(memory, image) {
		t.Fatalf("%v: rank %d: bytes beside the result were written", o, r.Rank())
	}
	s, err := r.Status()
	if err != nil {
		t.Fatal(err)
	}
	return s.Algorithm
}

// A child. Its memory is of cudaMalloc, and begins elsewhere in its allocation than that of the others.
func TestChildRunsOperationsInMemoryOfCudaMalloc(t *testing.T) {
	t.Setenv("RAILHEAD_ALGO", "pull")
	r := childRank(t)
	const size = 4 << 20
	memory := r.alloc(t, size+1024)[48*r.Rank():][:size]
	w, err := r.Register(client.RegisterConfig{Memory: memory, FD: -1})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := w.Sharing(); err != nil || !s.ZeroCopy {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, algorithm := range []string{"pull", "copy"} {
		if algorithm == "copy" {
			t.Setenv("RAILHEAD_ALGO", "copy")
			if r.Comm, err = r.session.Init(client.CommConfig{Group: "copies", Rank: -1, World: -1, Timeout: patience, Device: client.DeviceCUDA, DeviceName: fmt.Sprint(int(r.device))}); err != nil {
				t.Fatal(err)
			}
			if _, err = r.Register(client.RegisterConfig{Memory: memory, FD: -1}); err != nil {
				t.Fatal(err)
			}
		}
		for _, o := range zeroCopy(r.WorldSize(), 5) {
			want := algorithm
			if o.kind == "all_to_all" && o.inPlace {
				continue
			}
			if o.kind == "all_reduce" || o.kind == "reduce_scatter" {
				if algorithm == "copy" {
					continue
				}
				o.dtype, o.count = oracle.BF16, o.count*2-16 // whole tiles
			}
			if got := o.runAsChild(t, r, memory); got != want {
				t.Fatalf("%v ran by %q, want %q", o, got, want)
			}
		}
	}
	// Finalize closes what was opened for the windows that are still there.
	if err := errors.Join(r.Finalize(), r.session.Close()); err != nil {
		t.Fatal(err)
	}
	if now := account(t); now.Opened != 0 {
		t.Fatalf("afterwards %+v", now)
	}
}

func TestProcessesRunEveryZeroCopyOperationInMemoryOfCudaMalloc(t *testing.T) {
	t.Parallel()
	for _, world := range deep.First(t, 1, []int{3, 2}) {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			for _, c := range harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildRunsOperationsInMemoryOfCudaMalloc", world) {
				c.Succeeds(t)
			}
		})
	}
}

// A child. Its memory is of cudaMalloc; rank 1 cannot open that of the second of the other ranks, or has another alignment.
func TestChildStagesMemoryOfCudaMalloc(t *testing.T) {
	r := childRank(t)
	const size = 4 << 20
	memory := r.alloc(t, size+1024)[:size]
	words := []string{"rank 1 (", "CUDA error 2"}
	switch os.Getenv("RAILHEAD_TEST_MEMORY") {
	case "opening fails":
		if r.Rank() == 1 {
			if err := gpu.Fail("cuIpcOpenMemHandle", 2, outOfMemory); err != nil {
				t.Fatal(err)
			}
		}
	case "other alignment":
		memory = memory[4*r.Rank() : size-64]
		words = []string{"rank 0 (", "different remainders by 16"}
	}
	memory = memory[:2<<20]
	before := account(t)
	w, err := r.Register(client.RegisterConfig{Memory: memory, FD: -1})
	_ = gpu.Fail("*", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Sharing()
	if err == nil && s.ZeroCopy {
		err = errors.New("the window is shared")
	}
	if err := errors.Join(err, harness.Missing("the reason", s.Reason, words...)); err != nil {
		t.Fatal(err)
	}
	if now := account(t); now != before {
		t.Fatalf("before the registration %+v, afterwards %+v", before, now)
	}
	r.reduce(t, memory)
	if err := errors.Join(w.Free(), r.Finalize(), r.session.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestMemoryOfCudaMallocThatARankCannotOpenIsStagedOnAll(t *testing.T) {
	t.Parallel()
	for _, why := range []string{"opening fails", "other alignment"} {
		t.Run(why, func(t *testing.T) {
			for _, c := range harness.StartChildren(t, startDaemon(t).SocketPath(), "TestChildStagesMemoryOfCudaMalloc", 3, "RAILHEAD_TEST_MEMORY="+why) {
				c.Succeeds(t)
			}
		})
	}
}

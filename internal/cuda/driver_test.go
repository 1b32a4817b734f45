package cuda

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// newContext is the context of the last device, with a stream.
func newContext(t *testing.T) (*Context, *Stream) {
	t.Helper()
	devices, err := Devices()
	if err != nil || len(devices) != 2 {
		t.Fatalf("%d devices: %v", len(devices), err)
	}
	c, err := devices[1].Retain()
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Destroy(), c.Release()); err != nil {
			t.Error(err)
		}
	})
	return c, s
}

// must returns the value of a call, or ends the test.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestDevicesAreDescribed(t *testing.T) {
	all, err := Devices()
	if err != nil || len(all) != 2 {
		t.Fatalf("%d devices: %v", len(all), err)
	}
	for i, d := range all {
		if d.Ordinal != i || d.Name == "" || !strings.HasPrefix(d.UUID, "GPU-") || len(d.UUID) != len("GPU-")+36 || d.SM < 10 || d.Processors < 1 || d.MemoryBytes == 0 || len(d.BusID) < len("0000:00:00.0") {
			t.Errorf("%+v", d)
		}
	}
	if all[0].UUID == all[1].UUID || all[0].BusID == all[1].BusID {
		t.Errorf("two devices are alike: %+v", all)
	}
	if v, err := DriverVersion(); err != nil || v < 12000 {
		t.Errorf("version %d: %v", v, err)
	}
}

func TestWorkOfAStreamRunsInOrder(t *testing.T) {
	c, s := newContext(t)
	const n = 1 << 16
	device, host := must[[]byte](t)(c.Alloc(n)), must[[]byte](t)(c.AllocPinned(n))
	for i := range host {
		host[i] = byte(i)
	}
	want := bytes.Clone(host)
	clear(want[:n/2])
	if err := errors.Join(s.Copy(device, host), s.Fill(device[:n/2], 0), s.Copy(host, device), s.Synchronize(t.Context())); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(host, want) {
		t.Error("the bytes are not those of copy, fill and copy in this order")
	}
	if err := s.Copy(host[:1], device); err == nil || !strings.Contains(err.Error(), "copy of 65536 bytes into 1") {
		t.Errorf("different lengths: %v", err)
	}
	if err := errors.Join(c.Free(device), c.FreePinned(host)); err != nil {
		t.Error(err)
	}
}

func TestAnEventOrdersStreamsAndTellsTheTime(t *testing.T) {
	c, s := newContext(t)
	other := must[*Stream](t)(c.NewStream())
	from, to := must[*Event](t)(c.NewEvent()), must[*Event](t)(c.NewEvent())
	device, host := must[[]byte](t)(c.Alloc(1<<20)), must[[]byte](t)(c.AllocPinned(1<<20))
	steps := []error{from.Record(s)}
	for range 20 {
		steps = append(steps, s.Fill(device, 7))
	}
	steps = append(steps, to.Record(s), other.Wait(to), other.Copy(host, device), other.Synchronize(t.Context()), to.Synchronize(t.Context()))
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	if host[0] != 7 || host[len(host)-1] != 7 {
		t.Error("the other stream did not wait")
	}
	if took, err := to.Since(from); err != nil || took <= 0 || took > time.Minute {
		t.Errorf("%v, %v", took, err)
	}
	if err := errors.Join(from.Destroy(), to.Destroy(), other.Destroy(), c.Free(device), c.FreePinned(host)); err != nil {
		t.Error(err)
	}
}

func TestCapturedWorkRunsAtEachLaunchAndNotBefore(t *testing.T) {
	c, s := newContext(t)
	device, host := must[[]byte](t)(c.Alloc(64)), must[[]byte](t)(c.AllocPinned(64))
	if err := errors.Join(s.Fill(device, 1), s.Synchronize(t.Context())); err != nil {
		t.Fatal(err)
	}
	graph := must[*Graph](t)(s.Capture(func() error { return errors.Join(s.Copy(host, device), s.Fill(device, 9)) }))
	if n := must[int](t)(graph.Nodes()); n != 2 {
		t.Errorf("%d nodes, want 2", n)
	}
	exec := must[*Exec](t)(graph.Instantiate())
	for _, want := range []byte{1, 9} {
		host[0] = 0
		if err := s.Synchronize(t.Context()); err != nil || host[0] != 0 {
			t.Errorf("ran without a launch: %d, %v", host[0], err)
		}
		if err := errors.Join(exec.Launch(s), s.Synchronize(t.Context())); err != nil || host[0] != want {
			t.Errorf("%d, %v; want %d", host[0], err, want)
		}
	}
	if err := errors.Join(exec.Destroy(), graph.Destroy(), c.Free(device), c.FreePinned(host)); err != nil {
		t.Error(err)
	}
}

func TestACaptureThatFailsLeavesTheStreamUsable(t *testing.T) {
	_, s := newContext(t)
	failure := errors.New("the caller's")
	if _, err := s.Capture(func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	// A wait of the host is forbidden meanwhile, and ends the capture.
	_, err := s.Capture(func() error { return s.Synchronize(t.Context()) })
	var driver *Error
	if !errors.As(err, &driver) || driver.Code != errCaptureUnsafe && driver.Code != errCaptureInvalid {
		t.Errorf("%v", err)
	}
	if err := s.Synchronize(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	gaveUp := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	polls := 0
	err := wait(ctx, "cuStreamQuery", func() int32 {
		if polls++; polls == 3 {
			cancel(gaveUp)
		}
		return notReady
	})
	if !errors.Is(err, gaveUp) || !strings.Contains(err.Error(), "has not ended after") {
		t.Errorf("%v", err)
	}
}

func TestTooMuchMemoryIsAnErrorWithAHint(t *testing.T) {
	c, _ := newContext(t)
	_, err := c.Alloc(1 << 50)
	if err == nil || !strings.Contains(err.Error(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): ") || !strings.Contains(err.Error(), "nvidia-smi") {
		t.Errorf("%v", err)
	}
	for _, f := range []func(int) ([]byte, error){c.Alloc, c.AllocPinned} {
		if _, err := f(0); err == nil || !strings.Contains(err.Error(), "at least 1") {
			t.Errorf("0 bytes: %v", err)
		}
	}
}

package cuda

import (
	"errors"
	"testing"

	"railhead/client"
	"railhead/client/tests/gpu"
)

// An eager call asks the driver whether the stream is captured, and launches. A look at the current context would be a third call. Where the thread
// has another context, or none, the library makes its own current.
func TestCallsOfTheDriverInAnEagerCall(t *testing.T) {
	const rounds = 10
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	sum := newSum(t, ranks, 1000, nil)
	buf := [][]byte{ranks[0].alloc(t, 4000), ranks[1].alloc(t, 4000)}
	transfer := func(r rank) error { // rank 0 sends to rank 1
		if r.Rank() == 0 {
			return r.on().Send(buf[0], len(buf[0]), client.U8, 1)
		}
		return r.on().Recv(buf[1], len(buf[1]), client.U8, 0)
	}
	elsewhere := gpu.Device(7)
	for _, c := range []struct {
		name string
		on   func(r rank, f func() error) error
		most int // calls of the driver in one eager call
	}{
		{"with its context", func(r rank, f func() error) error { return r.device.On(f) }, 2},
		{"with no context", func(_ rank, f func() error) error { return f() }, 8},
		{"with its context again", func(r rank, f func() error) error { return r.device.On(f) }, 2},
		{"with another context", func(_ rank, f func() error) error { return elsewhere.On(f) }, 8},
	} {
		sum.fill(uint64(c.most))
		each(t, ranks, func(r rank) error { return c.on(r, func() error { return sum.put(r) }) }) // finds out how it is called
		each(t, ranks, func(r rank) error { return r.wait() })
		sum.check(t)
		all, launched := 0, 0
		for _, r := range ranks { // one after the other, so that nothing else counts
			err := c.on(r, func() error {
				before, launches := gpu.Calls("*"), gpu.Calls("cuLaunchKernelEx")
				var errs []error
				for range rounds {
					errs = append(errs, sum.put(r), transfer(r))
				}
				all, launched = all+gpu.Calls("*")-before, launched+gpu.Calls("cuLaunchKernelEx")-launches
				return errors.Join(errs...)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if calls := 2 * rounds * len(ranks); all > c.most*calls || launched < calls {
			t.Errorf("%s: %d calls of the driver, %d of them launches, in %d eager calls", c.name, all, launched, calls)
		}
		each(t, ranks, func(r rank) error { return r.wait() })
		sum.check(t)
	}
}

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
					errs = append(errs, sum.put(r))
				}
				all, launched = all+gpu.Calls("*")-before, launched+gpu.Calls("cuLaunchKernelEx")-launches
				return errors.Join(errs...)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if calls := rounds * len(ranks); all > c.most*calls || launched < calls {
			t.Errorf("%s: %d calls of the driver, %d of them launches, in %d eager calls", c.name, all, launched, calls)
		}
		each(t, ranks, func(r rank) error { return r.wait() })
		sum.check(t)
	}
}

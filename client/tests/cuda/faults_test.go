package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/gpu"
	"railhead/internal/deep"
)

// setUpCalls are the functions of the driver that comm_init and window_alloc call, but for cuModuleGetFunction: that a kernel is not there is no
// failure. Functions that only end something are left out: what they fail to end stays, by design.
var setUpCalls = []string{
	"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceGetPCIBusId", "cuDeviceTotalMem",
	"cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuStreamCreate", "cuEventCreate", "cuMemGetAllocationGranularity", "cuModuleLoadDataEx", "cuFuncLoad",
	"cuMemAddressReserve", "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
	"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemsetD8Async", "cuMemcpyAsync",
}

const (
	outOfMemory = 2 // CUDA_ERROR_OUT_OF_MEMORY
	// A rank that cannot find its GPU does not come, and the other one waits for it.
	missing = 3 * time.Second
)

// someOf returns the functions that a run plays: few in the ordinary run, a fifth of all, drawn anew, in the deep run, and all in `make soak`.
func someOf(t *testing.T, few, all []string) []string {
	t.Helper()
	switch n := deep.Rounds(t, 0, 1); {
	case n == 0:
		return few
	case n < 100:
		some := slices.Clone(all)
		rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		return some[:(len(some)+4)/5]
	}
	return all
}

// Each call of the driver in turn fails on one of two ranks. Both get an error, or both find another way. Nothing is left.
func TestAFailureOfAnyCallOfTheDriverIsOneOnAllRanks(t *testing.T) {
	s := startDaemon(t)
	life(t, s, 2, func(ranks []rank) { each(t, ranks, func(r rank) error { return r.Finalize() }) }) // opens contexts
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	for _, function := range someOf(t, []string{"cuDevicePrimaryCtxRetain", "cuModuleLoadDataEx", "cuMemImportFromShareableHandle"}, setUpCalls) {
		t.Run(function, func(t *testing.T) {
			ranks := []rank{connectRank(t, s, 0), connectRank(t, s, 1)}
			if err := liveTogether(ranks); err != nil { // afterwards the daemon has both sessions' leases
				t.Fatal(err)
			}
			nothingLeaks(t, func() {
				failures, since := 0, 0      // the last failure
				for n := 1; since < 4; n++ { // the probes for FABRIC handles, one on each rank, may fail
					since++
					if err := gpu.Fail(function, n, outOfMemory); err != nil {
						t.Fatal(err)
					}
					err := liveTogether(ranks)
					_ = gpu.Fail("*", 0, 0)
					if err == nil {
						continue
					}
					failures, since = failures+1, 0
					var e *client.Error
					if !errors.As(err, &e) || e.Message == "" {
						t.Errorf("call %d: %v", n, err)
					}
				}
				if failures == 0 && function != "cuMemAddressReserve" { // reserved again, without room for registered memory
					t.Error("no failure of the function was an error")
				}
			})
		})
	}
}

// liveTogether forms a group, allocates a window, and finalizes. The ranks must agree on whether each step fails; it returns rank 0's error of
// the first that does.
func liveTogether(ranks []rank) error {
	comms := make([]*client.Comm, len(ranks))
	defer func() {
		inParallel(len(ranks), func(i int) error {
			if comms[i] != nil {
				_ = comms[i].Finalize()
			}
			return nil
		})
	}()
	for _, step := range []func(i int) error{
		func(i int) (err error) {
			comms[i], err = ranks[i].session.Init(client.CommConfig{
				Group: "faults", Rank: i, World: len(ranks), Timeout: missing, Device: client.DeviceCUDA, DeviceName: strconv.Itoa(i),
			})
			return err
		},
		func(i int) error { _, err := comms[i].AllocWindow(4096); return err },
		func(i int) error { return comms[i].Finalize() },
	} {
		errs := inParallel(len(ranks), step)
		for _, err := range errs[1:] {
			if (err == nil) != (errs[0] == nil) {
				return errors.Join(append(errs, errors.New("only some ranks have failed"))...)
			}
		}
		if errs[0] != nil {
			return errs[0]
		}
	}
	return nil
}

// Each mapping of a peer's memory fails in turn. The peers that a rank maps after the one that failed do not make the window whole.
func TestAFailureToMapAnyPeersMemoryIsOneOnAllRanks(t *testing.T) {
	const function = "cuMemImportFromShareableHandle"
	s := startDaemon(t)
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	ranks := []rank{connectRank(t, s, 0), connectRank(t, s, 1), connectRank(t, s, 2)}
	before := gpu.Calls(function)
	if err := liveTogether(ranks); err != nil {
		t.Fatal(err)
	}
	for n := range gpu.Calls(function) - before {
		if err := gpu.Fail(function, n+1, outOfMemory); err != nil {
			t.Fatal(err)
		}
		err := liveTogether(ranks)
		_ = gpu.Fail("*", 0, 0)
		if e, ok := err.(*client.Error); !ok || e.Message == "" { // of all ranks
			t.Errorf("call %d: %v", n+1, err)
		}
	}
}

// A window that a rank cannot make or pass on fails on both ranks and leaves nothing mapped, so the next one has its addresses.
func TestAWindowThatARankCannotMakeLeavesNothing(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	t.Cleanup(func() { _ = gpu.Fail("*", 0, 0) })
	alloc := func() (windows [2]*client.Window, errs []error) {
		errs = inParallel(2, func(i int) (err error) { windows[i], err = ranks[i].AllocWindow(4000); return err })
		return windows, errs
	}
	before := account(t)
	for _, function := range []string{"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"} {
		if err := gpu.Fail(function, 1, outOfMemory); err != nil {
			t.Fatal(err)
		}
		_, failed := alloc()
		_ = gpu.Fail("*", 0, 0)
		for i, err := range failed {
			var e *client.Error
			if !errors.As(err, &e) {
				t.Errorf("%s: rank %d: %v", function, i, err)
			}
		}
		if now := account(t); now != before {
			t.Errorf("%s: before %+v, now %+v", function, before, now)
		}
		windows, errs := alloc()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("after a failure of %s: %v", function, err)
		}
		each(t, ranks, func(r rank) error { return windows[r.Rank()].Free() })
	}
}

package ranks

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// pin gives each rank a processor of its own where there are enough, as mpirun does: the scheduler would put two on one
// for a while, and a small operation would then take as long as a switch between them.
func pin(rank, world int) error {
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return fmt.Errorf("affinity: %w", err)
	}
	if allowed.Count() < world {
		return nil
	}
	for cpu, left := 0, rank; ; cpu++ {
		if !allowed.IsSet(cpu) {
			continue
		}
		if left == 0 {
			one.Set(cpu)
			break
		}
		left--
	}
	runtime.LockOSThread() // for good: this goroutine makes all calls of the rank
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("pin rank %d: %w", rank, err)
	}
	return nil
}

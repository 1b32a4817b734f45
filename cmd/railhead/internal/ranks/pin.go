package ranks

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// pin pins a rank to a processor of its own if there are enough, as mpirun does. Otherwise the scheduler may run two ranks on one
// processor for a while, and a small operation would take as long as a context switch.
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
	runtime.LockOSThread() // never unlocked: this goroutine makes all calls of the rank
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("pin rank %d: %w", rank, err)
	}
	return nil
}

package ranks

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Clock reads CLOCK_MONOTONIC, which all processes of a machine share. Go's own monotonic clock begins with the process. A Clock reads
// that one, because it needs no system call, and adds the difference.
type Clock struct {
	began time.Time
	at    int64 // CLOCK_MONOTONIC when began was read, in ns
}

// NewClock makes a clock. Of several readings of both clocks it uses the one during which the least time passed: an interruption between
// the two clocks would make the clock wrong.
func NewClock() (Clock, error) {
	var c Clock
	const readings = 16
	shortest := time.Duration(math.MaxInt64)
	for range readings {
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return c, fmt.Errorf("CLOCK_MONOTONIC: %w", err)
		}
		if took := time.Since(before); took < shortest {
			shortest = took
			c = Clock{began: before.Add(took / 2), at: ts.Nano()}
		}
	}
	return c, nil
}

// Now returns the time in ns.
func (c Clock) Now() int64 { return c.at + time.Since(c.began).Nanoseconds() }

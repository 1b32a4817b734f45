package ncclstyle

import "fmt"

// MaxRows bounds the rows of a run, so that a mistyped step does not make it last for days.
const MaxRows = 4096

// Sweep is the range of sizes of a run, in bytes: nccl-tests' -b, -e, -i and -f.
type Sweep struct {
	Min, Max   uint64
	StepBytes  uint64 // added from row to row where StepFactor is 0 or 1
	StepFactor uint64 // multiplied from row to row where it is above 1; then StepBytes is not used
}

// DefaultSweep is the sweep of nccl-tests without flags: 32 MiB only.
func DefaultSweep() Sweep {
	return Sweep{Min: DefaultMinBytes, Max: DefaultMaxBytes, StepBytes: DefaultStepBytes, StepFactor: DefaultStepFactor}
}

// Sizes lists the sizes from Min to at most Max. A range for which nccl-tests would loop forever is an error.
func (s Sweep) Sizes() ([]uint64, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	sizes := []uint64{s.Min}
	for size := s.Min; ; {
		// Both conditions are written so that nothing can overflow.
		switch {
		case s.StepFactor > 1 && size <= s.Max/s.StepFactor && size > 0:
			size *= s.StepFactor
		case s.StepFactor <= 1 && s.StepBytes > 0 && s.StepBytes <= s.Max-size:
			size += s.StepBytes
		default:
			return sizes, nil
		}
		if len(sizes) == MaxRows {
			return nil, fmt.Errorf("sizes from %d to %d bytes in steps of %d give more than %d rows; raise -i or use -f",
				s.Min, s.Max, s.StepBytes, MaxRows)
		}
		sizes = append(sizes, size)
	}
}

func (s Sweep) check() error {
	switch {
	case s.Min > s.Max:
		return fmt.Errorf("sizes from %d to %d bytes: -b must not be above -e", s.Min, s.Max)
	case s.Max > MaxBytes:
		return fmt.Errorf("sizes up to %d bytes: -e may be at most %d (64 TiB)", s.Max, uint64(MaxBytes))
	case s.Min == s.Max:
		return nil // one row
	case s.StepFactor > 1 && s.Min == 0:
		return fmt.Errorf("sizes from 0 to %d bytes by a factor of %d: zero times any factor is zero; give -b 1 or more, or steps with -i",
			s.Max, s.StepFactor)
	case s.StepFactor <= 1 && s.StepBytes == 0:
		return fmt.Errorf("sizes from %d to %d bytes in steps of 0: give -i 1 or more, or a factor with -f", s.Min, s.Max)
	}
	return nil
}

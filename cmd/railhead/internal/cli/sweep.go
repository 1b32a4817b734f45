package cli

import (
	"github.com/spf13/pflag"

	"railhead/internal/ncclstyle"
)

// Sweep holds the flags -b, -e, -i and -f: the message sizes to measure.
type Sweep struct {
	Min, Max, Step string // as given
	Factor         uint64
}

// AddTo adds -b, -e and -f.
func (s *Sweep) AddTo(f *pflag.FlagSet, smallest, largest string, factor uint64, factorUsage string) {
	f.StringVarP(&s.Min, "minbytes", "b", smallest, "smallest message size: bytes of the larger of a rank's two buffers")
	f.StringVarP(&s.Max, "maxbytes", "e", largest, "largest message size")
	f.Uint64VarP(&s.Factor, "stepfactor", "f", factor, factorUsage)
}

// AddStep adds -i.
func (s *Sweep) AddStep(f *pflag.FlagSet, step string) {
	f.StringVarP(&s.Step, "stepbytes", "i", step, "increment between message sizes")
}

// Parse parses the values.
func (s *Sweep) Parse() (ncclstyle.Sweep, error) {
	sweep := ncclstyle.Sweep{StepFactor: s.Factor}
	for _, size := range []struct {
		flag, text string
		out        *uint64
	}{{"-b", s.Min, &sweep.Min}, {"-e", s.Max, &sweep.Max}, {"-i", s.Step, &sweep.StepBytes}} {
		if size.text == "" {
			continue // a command without this flag
		}
		var err error
		if *size.out, err = ncclstyle.ParseBytes(size.text); err != nil {
			return sweep, Usagef("%s: %w", size.flag, err)
		}
	}
	return sweep, nil
}

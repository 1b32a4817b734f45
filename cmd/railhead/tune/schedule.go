package tune

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"railhead/cmd/railhead/internal/cli"
	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/launch"
	"railhead/internal/ncclstyle"
	"railhead/internal/wire"
)

// partBytes is the smallest part of a rank in a buffer that is divided among ranks, as in nccl-tests.
const partBytes = 16

// defaultChoice, as the algorithm of a case, finds out which algorithm runs without a table. It is not timed, because that algorithm
// has a case of its own.
const defaultChoice = "auto"

// schedule is what a run measures. It is determined by the flags and the machine.
type schedule struct {
	Collectives []string `json:"collectives"`
	Ranks       []int    `json:"ranks"`
	FromBytes   uint64   `json:"from_bytes"`
	ToBytes     uint64   `json:"to_bytes"`
	Factor      uint64   `json:"factor"`
	Processors  int      `json:"processors"` // that this process may use
	// Of ranks on CUDA devices, as Ranks: how many thread blocks of a kernel the GPUs can run at once for a rank. nil: ranks on the CPU.
	Blocks []int `json:"blocks,omitempty"`
}

// onCUDA says whether the ranks run on CUDA devices.
func (p *schedule) onCUDA() bool { return p.Blocks != nil }

func (p *schedule) device() wire.Device {
	if p.onCUDA() {
		return wire.DeviceCUDA
	}
	return wire.DeviceCPU
}

// allCollectives is the default of --op.
const allCollectives = "all"

// setting is the key of a table entry.
type setting struct {
	Collective string       `json:"collective"`
	Ranks      int          `json:"ranks"`
	Memory     tuner.Memory `json:"memory"`
}

func (s setting) String() string {
	return fmt.Sprintf("%s, %d ranks, memory %s", s.Collective, s.Ranks, s.Memory)
}

// algoCase is one algorithm in a setting, on CUDA devices with one grid.
type algoCase struct {
	setting
	Algorithm string `json:"algorithm"`
	Blocks    int    `json:"blocks,omitempty"`
	Threads   int    `json:"threads,omitempty"` // of a block
}

func (c algoCase) String() string { return c.setting.String() + ", " + c.Algorithm }

// planOf checks the flags. processors is how many ranks have a processor, or a GPU, each.
func planOf(f *flags, device wire.Device, processors int) (*schedule, error) {
	p := &schedule{Processors: processors}
	var err error
	if p.Collectives, err = parseCollectives(f.ops, device); err != nil {
		return nil, err
	}
	if p.Ranks, err = parseRanks(f.ranks, processors); err != nil {
		return nil, err
	}
	sweep, err := f.sizes.Parse()
	if err != nil {
		return nil, err
	}
	p.FromBytes, p.ToBytes, p.Factor = sweep.Min, sweep.Max, sweep.StepFactor
	if p.Factor < 2 {
		return nil, cli.Usagef("-f %d is below 2", p.Factor)
	}
	if least := uint64(partBytes * slices.Max(p.Ranks)); p.FromBytes < least {
		return nil, cli.Usagef("-b %d is too small: %d ranks need at least %d bytes", p.FromBytes, slices.Max(p.Ranks), least)
	}
	if _, err := p.asked().Sizes(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	return p, nil
}

// parseCollectives reads --op. It returns the collectives in the order of a table.
func parseCollectives(text string, device wire.Device) ([]string, error) {
	known := plan.TableAlgorithms(device)
	all := slices.Sorted(maps.Keys(known))
	if text == allCollectives {
		return all, nil
	}
	names, err := cli.List("--op", text, func(name string) (string, error) {
		if _, ok := known[name]; !ok {
			return "", fmt.Errorf("%.40q cannot be tuned; available: %s", name, strings.Join(all, ", "))
		}
		return name, nil
	})
	slices.Sort(names)
	return names, err
}

// parseRanks reads --ranks. The default is the powers of two from 2 to the number of processors.
func parseRanks(text string, processors int) ([]int, error) {
	if text == "" {
		var ranks []int
		for n := 2; n <= min(max(processors, 2), launch.MaxRanks); n *= 2 {
			ranks = append(ranks, n)
		}
		return ranks, nil
	}
	ranks, err := cli.List("--ranks", text, func(part string) (int, error) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 2 || n > launch.MaxRanks {
			return 0, fmt.Errorf("%.40q is not a number from 2 to %d", part, launch.MaxRanks)
		}
		return n, nil
	})
	slices.Sort(ranks)
	return ranks, err
}

// asked returns the message sizes of the flags.
func (p *schedule) asked() ncclstyle.Sweep {
	return ncclstyle.Sweep{Min: p.FromBytes, Max: p.ToBytes, StepFactor: p.Factor}
}

// sizes returns the message sizes of a setting: those of the flags, rounded to whole elements and equal parts.
func (p *schedule) sizes(s setting) []uint64 {
	asked, _ := p.asked().Sizes() // checked by planOf
	op := s.operation()
	sizes := make([]uint64, len(asked))
	for i, size := range asked {
		sizes[i] = op.Bytes(op.Count(size, dtype, s.Ranks), dtype, s.Ranks)
	}
	return slices.Compact(sizes)
}

// settings returns the table entries to measure: those with more than one possible algorithm. For each collective the entry for
// any memory comes first.
func (p *schedule) settings() []setting {
	var settings []setting
	for _, ranks := range p.Ranks {
		for _, collective := range p.Collectives {
			copying := copyingAlgorithms(collective)
			if len(copying) > 1 {
				settings = append(settings, setting{collective, ranks, tuner.AnyMemory})
			}
			if len(copying) < len(plan.Interchangeable(collective)) {
				settings = append(settings, setting{collective, ranks, tuner.InWindows})
			}
		}
	}
	return settings
}

// copyingAlgorithms returns the algorithms that an automatic choice may use for buffers outside windows.
func copyingAlgorithms(collective string) []string {
	return slices.DeleteFunc(plan.Interchangeable(collective), func(name string) bool { return name == tuner.WindowAlgorithm })
}

// algorithms returns the candidates of a setting.
func (s setting) algorithms() []string {
	if s.Memory == tuner.InWindows {
		return plan.Interchangeable(s.Collective)
	}
	return copyingAlgorithms(s.Collective)
}

// points are the sizes at which each case is measured.
func (p *schedule) points() map[algoCase][]uint64 {
	if p.onCUDA() {
		return p.cudaPoints()
	}
	points := map[algoCase][]uint64{}
	for _, c := range p.cases(1) {
		points[c] = p.sizes(c.setting)
	}
	return points
}

// cases returns the cases of a round (from 1). Algorithms that are compared with each other follow one another. The default choice is
// looked up in the first round only, since it is the same in all.
func (p *schedule) cases(round int) []algoCase {
	var cases []algoCase
	for _, s := range p.settings() {
		if round == 1 {
			cases = append(cases, algoCase{setting: s, Algorithm: defaultChoice})
		}
		for _, algorithm := range s.algorithms() {
			cases = append(cases, algoCase{setting: s, Algorithm: algorithm})
		}
	}
	return cases
}

// operation is the collective as an operation of bench.
func (s setting) operation() ncclstyle.Operation {
	if s.Collective == "send" {
		return ncclstyle.Sendrecv
	}
	ops := ncclstyle.Operations()
	i := slices.IndexFunc(ops, func(op ncclstyle.Operation) bool { return op.Command() == s.Collective })
	return ops[i] // bench has every collective that can be tuned
}

// forced is the value of RAILHEAD_ALGO that makes the algorithm of the case run.
func (c algoCase) forced() string {
	if !c.timed() {
		return defaultChoice
	}
	return c.Collective + ":" + c.Algorithm
}

// timed says whether the case is timed, in every round.
func (c algoCase) timed() bool { return c.Algorithm != defaultChoice }

// sizeName formats a size in the largest unit that gives a whole number.
func sizeName(bytes uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for bytes > 0 && bytes%1024 == 0 && unit < len(units)-1 {
		bytes /= 1024
		unit++
	}
	return fmt.Sprintf("%d %s", bytes, units[unit])
}

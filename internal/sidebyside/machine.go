package sidebyside

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Processors lists the CPUs that this process may use, in the order in which ranks are bound: one CPU of each core first.
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("cannot read this process's affinity mask: %w", err)
	}
	var allowed []int
	for cpu := 0; len(allowed) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	return coresFirst(allowed, coreOf), nil
}

// coreOf identifies the core of a CPU. Where the kernel does not report it, each CPU counts as a core.
func coreOf(cpu int) string {
	siblings, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return strconv.Itoa(cpu)
	}
	return string(siblings)
}

func coresFirst(cpus []int, core func(int) string) []int {
	seen := map[string]bool{}
	var first, rest []int
	for _, cpu := range cpus {
		if c := core(cpu); seen[c] {
			rest = append(rest, cpu)
		} else {
			seen[c] = true
			first = append(first, cpu)
		}
	}
	return append(first, rest...)
}

// CPUList is the argument by which rank.h binds ranks: a CPU for each rank, or "-" where there are too few.
func CPUList(cpus []int, ranks int) string {
	if ranks > len(cpus) {
		return "-"
	}
	var list []string
	for _, cpu := range cpus[:ranks] {
		list = append(list, strconv.Itoa(cpu))
	}
	return strings.Join(list, ",")
}

// Machine describes the machine of a measurement.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
}

// ThisMachine describes this machine.
func ThisMachine() Machine { return Machine{CPUModel(), runtime.NumCPU(), KernelRelease()} }

// CPUModel is the processor's name.
func CPUModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo") // where it cannot be read, the architecture is returned
	for _, line := range strings.Split(string(b), "\n") {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimLeft(name, "\t :")
		}
	}
	return runtime.GOARCH
}

// KernelRelease is the version of the running Linux.
func KernelRelease() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease") // always there
	return strings.TrimSpace(string(b))
}

// Median returns the median; for an even number of values, the mean of the middle two.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

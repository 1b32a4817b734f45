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

// Processors lists the CPUs that this process may use, one of each core first: the order in which ranks get them.
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for the own CPUs: %w", err)
	}
	var allowed []int
	for cpu := 0; len(allowed) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	return coresFirst(allowed, coreOf), nil
}

// coreOf names the core of a CPU; each is one of its own where the kernel does not tell.
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

// CPUList is what rank.h binds by: a CPU for each rank, or "-" where there are not enough.
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

// Machine is what a report says of where it was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
}

// ThisMachine is the one that this process runs on.
func ThisMachine() Machine { return Machine{CPUModel(), runtime.NumCPU(), KernelRelease()} }

// CPUModel is the processor's name.
func CPUModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo") // the architecture's name will do where it cannot be read
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

// Median of an even number of values is the mean of the middle two.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

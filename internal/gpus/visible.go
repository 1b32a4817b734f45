package gpus

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"railhead/engine/topo"
)

// VisibleVariable is the environment variable by which CUDA restricts a process to some GPUs.
const VisibleVariable = "CUDA_VISIBLE_DEVICES"

// Visible is a GPU, or a slice of one, that CUDA shows to a process.
type Visible struct {
	Entry string // of VisibleVariable, that means this one alone
	Dev   int    // the driver's number of the GPU
	Slice string // UUID of the slice (MIG); "" is the whole GPU
}

// VisibleGPUs lists what CUDA shows to a process whose environment has this value of VisibleVariable, by ordinal. If the variable is not set
// these are all GPUs, by UUID. Entries are numbers, or UUIDs of GPUs or slices, or beginnings of these that fit only one. CUDA ignores an entry
// that is wrong, and all behind it; here it is an error. Numbers are the driver's, which are CUDA's if CUDA_DEVICE_ORDER is PCI_BUS_ID
// or all GPUs are equal.
func VisibleGPUs(value string, set bool, gpus []topo.DriverGPU) ([]Visible, error) {
	if !set {
		var all []Visible
		for _, g := range gpus {
			all = append(all, Visible{Entry: g.UUID, Dev: g.Dev}.firstSlice(g))
		}
		return all, nil
	}
	if strings.TrimSpace(value) == "" {
		return nil, nil // CUDA shows none
	}
	entries, err := Entries(value)
	if err != nil {
		return nil, err
	}
	var visible []Visible
	for _, entry := range entries {
		v, err := lookUp(entry, gpus)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", VisibleVariable, err)
		}
		same := func(other Visible) bool { return other.Dev == v.Dev && other.Slice == v.Slice }
		if slices.ContainsFunc(visible, same) {
			return nil, fmt.Errorf("%s: %.60q names a GPU for the second time", VisibleVariable, entry)
		}
		visible = append(visible, v)
	}
	return visible, nil
}

// Entries splits a value of VisibleVariable, for a machine whose GPUs are not known.
func Entries(value string) ([]string, error) {
	entries := strings.Split(value, ",")
	for i := range entries {
		if entries[i] = strings.TrimSpace(entries[i]); entries[i] == "" || entries[i] == "-1" {
			return nil, fmt.Errorf("%s=%.100q: entry %d shows no GPU", VisibleVariable, value, i)
		}
	}
	return entries, nil
}

// firstSlice is what CUDA shows of a GPU that is divided: its first slice.
func (v Visible) firstSlice(g topo.DriverGPU) Visible {
	if len(g.Slices) > 0 {
		v.Slice, v.Entry = g.Slices[0], g.Slices[0]
	}
	return v
}

func lookUp(entry string, gpus []topo.DriverGPU) (Visible, error) {
	if number, err := strconv.Atoi(entry); err == nil {
		for _, g := range gpus {
			if g.Dev == number {
				return Visible{Entry: entry, Dev: g.Dev}.firstSlice(g), nil
			}
		}
		return Visible{}, fmt.Errorf("there is no GPU %d; the driver shows %d", number, len(gpus))
	}
	var found []Visible
	for _, g := range gpus {
		if strings.HasPrefix(entry, "GPU-") && strings.HasPrefix(g.UUID, entry) {
			found = append(found, Visible{Entry: entry, Dev: g.Dev}.firstSlice(g))
		}
		for _, s := range g.Slices {
			if strings.HasPrefix(entry, "MIG-") && strings.HasPrefix(s, entry) {
				found = append(found, Visible{Entry: entry, Dev: g.Dev, Slice: s})
			}
		}
	}
	switch len(found) {
	case 0:
		return Visible{}, fmt.Errorf("%.60q is neither a number nor the beginning of a UUID that `nvidia-smi -L` lists", entry)
	case 1:
		return found[0], nil
	}
	return Visible{}, fmt.Errorf("%.60q is the beginning of %d UUIDs: write more of it", entry, len(found))
}

// OfRank is the number of a rank's GPU: one each, as far as there are enough, else blocks of neighbours share one.
func OfRank(rank, ranks, gpus int) int {
	if ranks <= gpus {
		return rank
	}
	return rank * gpus / ranks
}

package membership

import (
	"fmt"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

// space is where a group's windows of one kind of memory lie: the same range of every rank's heap of that kind. Offsets of different
// spaces are independent.
type space struct {
	memory wire.Memory
	bytes  uint64 // of a rank's heap
	heap   *symm.Heap
}

// newSpaces makes the spaces of a new group: the CPU's, on which set-up calls run, and the device's. Each has room for the windows that the
// rank asks for.
func (m *Machine) newSpaces(j *wire.Join) ([]space, error) {
	hostBytes := m.heapBytesOf(j, m.config.Memory) + m.config.ScratchBytes
	if j.Own.Device == wire.DeviceCPU {
		host, err := newSpace(m.config.Memory, hostBytes, m.config.ScratchBytes)
		return []space{host}, err
	}
	// The kernels' scratch is a window, which the ranks allocate: of the device's memory or, where the GPUs cannot access each other's, of the
	// CPU's.
	cuda := &m.config.CUDA
	kernels := cuda.ScratchBytes(int(j.Common.World))
	host, err := newSpace(m.config.Memory, hostBytes+kernels, m.config.ScratchBytes)
	if err != nil {
		return nil, err
	}
	device, err := newSpace(cuda.Memory, m.heapBytesOf(j, cuda.Memory)+kernels, 0)
	if err != nil {
		return nil, fmt.Errorf("device %w", err)
	}
	return []space{host, device}, nil
}

func newSpace(memory wire.Memory, bytes, scratch uint64) (space, error) {
	heap, err := symm.NewHeap(bytes, scratch, uint64(memory.Granularity))
	return space{memory: memory, bytes: bytes, heap: heap}, err
}

// heapBytesOf is the window memory that a Join requests, rounded up to whole granules.
func (m *Machine) heapBytesOf(j *wire.Join, of wire.Memory) uint64 {
	n := j.Common.HeapBytes
	if n == 0 {
		n = m.config.HeapBytes
	}
	g := uint64(of.Granularity)
	return (n + g - 1) / g * g
}

// host is the space of the CPU's memory.
func (g *group) host() *space { return &g.spaces[wire.MemoryOfCPU] }

// onDevice says whether windows there are memory that their ranks create, and that the daemon passes to the others.
func (s *space) onDevice() bool { return s.memory.Kind == wire.MemoryCUDA }

// spaceOf is the index of the space of a kind of memory, false if the group has none.
func (g *group) spaceOf(kind wire.MemoryKind) (int, bool) {
	for i := range g.spaces {
		if g.spaces[i].memory.Kind == kind {
			return i, true
		}
	}
	return 0, false
}

// own is the last space: that of the device's memory, on a CPU of the CPU's. Registered windows are of its kind.
func (g *group) own() int { return len(g.spaces) - 1 }

// canRegister says whether ranks of the group can register memory of this kind.
func (g *group) canRegister(kind wire.MemoryKind) bool {
	if g.device == wire.DeviceCUDA {
		return kind == wire.MemoryCUDA || kind == wire.MemoryCUDAIPC
	}
	return kind == wire.MemoryCPU
}

// otherMemory refuses a kind of memory that a set-up call of the group does not take. The rank's library should have refused it before.
func (g *group) otherMemory(op wire.Op, kind wire.MemoryKind) refusal {
	return refuse(wire.ResultUnsupported, rank.None, "%s in group %q: %s memory is not supported for ranks on %s", op, g.name, kind, g.device)
}

// live is the number of windows in all heaps.
func (g *group) live() (n int) {
	for i := range g.spaces {
		n += g.spaces[i].heap.Live()
	}
	return n
}

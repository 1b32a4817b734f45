package topo

import (
	"fmt"
	"slices"
	"strings"
)

// PathType is the type of a path, which is that of its worst hop. Smaller is better.
type PathType int

// NCCL's path types, best first.
const (
	LOC PathType = iota // the same device, or cores of one NUMA node
	NVL                 // NVLink, through a switch or not
	NVB                 // NVLink through another GPU
	C2C                 // the link of a GPU to its own CPU
	PIX                 // one PCI switch
	PXB                 // several PCI switches, not the CPU
	P2C                 // a NIC behind the CPU that the GPU has a C2C link to
	PXN                 // a NIC near another GPU that NVLink reaches
	PHB                 // the CPU
	SYS                 // several NUMA nodes
	NET                 // the network
	DIS                 // no path
)

var pathTypeNames = []string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"}

func (t PathType) String() string {
	if t < 0 || int(t) >= len(pathTypeNames) {
		return fmt.Sprintf("PathType(%d)", int(t))
	}
	return pathTypeNames[t]
}

// ParsePathType reads the name of a path type.
func ParsePathType(s string) (PathType, error) {
	i := slices.Index(pathTypeNames, s)
	if i < 0 {
		return DIS, fmt.Errorf("unknown path type %.40q (known: %s)", s, strings.Join(pathTypeNames, " "))
	}
	return PathType(i), nil
}

// MarshalText writes the name.
func (t PathType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the name.
func (t *PathType) UnmarshalText(text []byte) error {
	v, err := ParsePathType(string(text))
	*t = v
	return err
}

// hopType is the type of the path that consists of one link, between a and b.
func hopType(l *Link, a, b Kind) PathType {
	either := func(k Kind) bool { return a == k || b == k }
	switch l.Kind {
	case LinkNVL:
		return NVL
	case LinkC2C:
		return C2C
	case LinkPCI:
		switch {
		case either(NUMA):
			return PHB
		case a == PCI && b == PCI:
			return PXB
		}
		return PIX
	case LinkSYS:
		return SYS
	case LinkNET:
		if a == Net && b == Net {
			return NET
		}
	}
	return LOC // within a NUMA node, and from a NIC to its own port
}

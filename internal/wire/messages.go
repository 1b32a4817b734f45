package wire

import (
	"fmt"
	"slices"

	"railhead/internal/rank"
)

// Bounds of the protocol, equal to those of wire.h; those of ranks are in internal/rank.
const (
	Magic      = 0x57484c52 // "RLHW"
	VersionMin = 4
	VersionMax = 4

	MaxMessage = 1024 // bytes
	NameBytes  = 64   // a name or token with its NUL
	TextBytes  = 320  // an error's text with its NUL

	ForcingBytes = 192 // a text of forced algorithms with its NUL

	ReasonBytes = 256 // why memory cannot be shared, with its NUL
	MaxRegion   = 255 // registered windows of a group, numbered from 1
	// MaxRegistered bounds the bytes that one rank registers, MaxFileOffset where they begin in their file.
	MaxRegistered = 1 << 40
	MaxFileOffset = 1 << 62
	HandleBytes   = 64 // a handle of CUDA_IPC memory
	UUIDBytes     = 16 // a device's UUID

	RegionShift = 48 // WindowFree.Offset has the region's number from this bit up
)

// Device is where a collective runs (rhw_device).
type Device uint32

// Devices.
const (
	DeviceCPU  Device = 0
	DeviceCUDA Device = 1
)

var deviceNames = [...]string{"cpu", "cuda"}

// Known says whether this version has the device.
func (d Device) Known() bool { return int(d) < len(deviceNames) }

// String is the name that JSON and error texts use.
func (d Device) String() string {
	if d.Known() {
		return deviceNames[d]
	}
	return fmt.Sprintf("device_%d", uint32(d))
}

// MarshalText implements encoding.TextMarshaler: JSON has the name.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Device) UnmarshalText(text []byte) error {
	i := slices.Index(deviceNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("device %.40q is unknown", text)
	}
	*d = Device(i)
	return nil
}

// UUID identifies a CUDA device, or a part of one that is used as a device. It is 0 of a CPU.
type UUID [UUIDBytes]byte

// String writes a UUID as nvidia-smi does, "" if it is 0.
func (u UUID) String() string {
	if u == (UUID{}) {
		return ""
	}
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// MemoryKind is what a window is made of, and how it is passed to other ranks (rhw_memory_kind).
type MemoryKind uint32

// Kinds of memory.
const (
	MemoryCPU     MemoryKind = 1 // a range of a memfd
	MemoryCUDA    MemoryKind = 2 // memory of a CUDA device, passed as a descriptor
	MemoryCUDAIPC MemoryKind = 3 // memory of a CUDA device, passed as a handle in the message; registered only
)

var memoryNames = [...]string{MemoryCPU: "cpu", MemoryCUDA: "cuda", MemoryCUDAIPC: "cuda_ipc"}

// Known says whether this version has the kind.
func (k MemoryKind) Known() bool { return k != 0 && int(k) < len(memoryNames) }

// HasFD says whether memory of this kind is passed as a descriptor.
func (k MemoryKind) HasFD() bool { return k == MemoryCPU || k == MemoryCUDA }

// String is the name that JSON and error texts use.
func (k MemoryKind) String() string {
	if k.Known() {
		return memoryNames[k]
	}
	return fmt.Sprintf("memory_%d", uint32(k))
}

// MarshalText implements encoding.TextMarshaler: JSON has the name.
func (k MemoryKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *MemoryKind) UnmarshalText(text []byte) error {
	i := slices.Index(memoryNames[:], string(text))
	if i < 1 {
		return fmt.Errorf("kind of memory %.40q is unknown", text)
	}
	*k = MemoryKind(i)
	return nil
}

// Type tells what a message is.
type Type uint16

// Message types; wire.h says who sends which.
const (
	TypeHello           Type = 1
	TypeWelcome         Type = 2
	TypeError           Type = 3
	TypeJoin            Type = 4
	TypeJoined          Type = 5
	TypeHeap            Type = 6
	TypeAttached        Type = 7
	TypeGroupReady      Type = 8
	TypeWindowAlloc     Type = 9
	TypeWindowCommit    Type = 10
	TypeWindowCommitted Type = 11
	TypeWindowReady     Type = 12
	TypeWindowFree      Type = 13
	TypeWindowFreed     Type = 14
	TypeLeave           Type = 15
	TypeLeft            Type = 16
	TypeDraining        Type = 17
	TypeRegister        Type = 18
	TypeRegisterPrivate Type = 19
	TypePeerMemory      Type = 20
	TypeRegisterMapped  Type = 21
	TypeRegistered      Type = 22
	TypeSessionLease    Type = 23
	TypeKVAgent         Type = 24
	TypeKVSocket        Type = 25

	TypeReannounce     Type = 30
	TypeReannounced    Type = 31
	TypeReannounceHeap Type = 32
)

// Header begins every message (24 bytes).
type Header struct {
	Magic    uint32
	Type     Type
	Version  uint16
	Size     uint32
	Reserved uint32
	Request  uint64
}

// Message is one of the structs below.
type Message interface {
	header() *Header
	kind() Type
	// check reports what is wrong with the values; the layout has been checked before.
	check() error
}

// Hello is a client's first message; it carries the client's pidfd.
type Hello struct {
	H                      Header
	VersionMin, VersionMax uint16
	PID                    uint32
	Software               Name
}

// Welcome answers Hello.
type Welcome struct {
	H         Header
	Version   uint16
	Reserved0 uint16
	Reserved1 uint32
	Session   uint64
	Daemon    uint64
	Software  Name
}

// Error answers a request that failed.
type Error struct {
	H       Header
	Code    Result
	Culprit rank.World
	Missing rank.LocalSet
	Text    Text
}

// Place says which rank a process is. The ranks of a node have consecutive world ranks.
type Place struct {
	Rank      rank.World
	Local     rank.Local
	Node      rank.Node
	LocalSize uint32 // ranks of the group on this node
}

// Common holds what must be equal on all ranks of a group; the daemon compares every field.
type Common struct {
	Token        Name
	World        uint32
	Nodes        uint32
	ReduceGroup  uint32
	Reproducible uint32 // 1 = sums are added in one order, whatever the algorithm
	HeapBytes    uint64
	Forcing      Forcing // the rank's RAILHEAD_ALGO
}

// Own holds what may differ between the ranks of a group.
type Own struct {
	Place     Place
	TimeoutMS uint32
	Device    Device  // the same on all ranks
	CPUs      CPUMask // processors that the calling thread may run on; empty = not known
	// Of a CUDA device; on a CPU all 0. Ranks with the same UUID share the GPU's multiprocessors.
	DeviceUUID            UUID
	DeviceMultiprocessors uint32
	DeviceArchitecture    uint32 // 10 times major + minor compute capability
}

// Join asks to become a rank of a group.
type Join struct {
	H      Header
	Group  Name
	Common Common
	Own    Own
}

// OneNode is the place of a rank in a group on one node.
func OneNode(r, world int) Place {
	return Place{Rank: rank.World(r), Local: rank.Local(r), LocalSize: uint32(world)}
}

// Joined says that every rank of the group has joined; it carries the control segment's fd.
type Joined struct {
	H            Header
	Group        uint64
	Incarnation  uint64
	ControlBytes uint64
	HeapBytes    uint64
	ScratchBytes uint64
	World        uint32
	LocalSize    uint32
	ReduceGroup  uint32
	SpinNS       uint32
	YieldNS      uint32
	BlockBytes   uint32

	PipeSlotBytes      uint32
	BroadcastSlotBytes uint32

	// Of a group on CUDA devices; else 0. The kernels' scratch is the first window of each device heap.
	DeviceHeapBytes    uint64 // the scratch included
	DeviceScratchBytes uint64
	DeviceSlotBytes    uint64 // of a peer's inbox in the scratch
	DeviceGranularity  uint32
	Reserved0          uint32
}

// Heap carries the fd of one rank's heap.
type Heap struct {
	H     Header
	Group uint64
	Local rank.Local
	PID   uint32
}

// Attached says that the client has mapped everything and holds its lease, or why not.
type Attached struct {
	H         Header
	Group     uint64
	Error     int32 // errno
	Reserved0 uint32
}

// GroupReady says that every rank is attached.
type GroupReady struct {
	H     Header
	Group uint64
}

// WindowAlloc asks, on every rank, for a window.
type WindowAlloc struct {
	H         Header
	Group     uint64
	Bytes     uint64
	Memory    MemoryKind
	Reserved0 uint32
}

// WindowCommit asks a client to back a range of its heap with pages.
type WindowCommit struct {
	H           Header
	Group       uint64
	Offset      uint64
	Bytes       uint64
	Memory      MemoryKind
	Granularity uint32 // bytes of a granule of that memory
}

// WindowCommitted answers WindowCommit. Of CUDA memory that was created it carries the fd.
type WindowCommitted struct {
	H      Header
	Group  uint64
	Offset uint64
	Error  int32 // errno, or a CUresult
	Memory MemoryKind
}

// WindowReady says that the window exists on every rank.
type WindowReady struct {
	H      Header
	Group  uint64
	Offset uint64
}

// WindowFree asks, on every rank, to give a window back.
type WindowFree struct {
	H         Header
	Group     uint64
	Offset    uint64     // in the heap, or region << RegionShift: a registered window
	Memory    MemoryKind // of the heap; 0 of a registered window
	Reserved0 uint32
}

// WindowFreed says that the window is gone on every rank.
type WindowFreed struct {
	H      Header
	Group  uint64
	Offset uint64
}

// Leave is the collective finalize.
type Leave struct {
	H     Header
	Group uint64
}

// Left says that every rank has left, or that the group is broken.
type Left struct {
	H     Header
	Group uint64
}

// Draining says that the daemon takes no new groups.
type Draining struct {
	H Header
}

func (m *Hello) header() *Header           { return &m.H }
func (m *Welcome) header() *Header         { return &m.H }
func (m *Error) header() *Header           { return &m.H }
func (m *Join) header() *Header            { return &m.H }
func (m *Joined) header() *Header          { return &m.H }
func (m *Heap) header() *Header            { return &m.H }
func (m *Attached) header() *Header        { return &m.H }
func (m *GroupReady) header() *Header      { return &m.H }
func (m *WindowAlloc) header() *Header     { return &m.H }
func (m *WindowCommit) header() *Header    { return &m.H }
func (m *WindowCommitted) header() *Header { return &m.H }
func (m *WindowReady) header() *Header     { return &m.H }
func (m *WindowFree) header() *Header      { return &m.H }
func (m *WindowFreed) header() *Header     { return &m.H }
func (m *Leave) header() *Header           { return &m.H }
func (m *Left) header() *Header            { return &m.H }
func (m *Draining) header() *Header        { return &m.H }

func (*Hello) kind() Type           { return TypeHello }
func (*Welcome) kind() Type         { return TypeWelcome }
func (*Error) kind() Type           { return TypeError }
func (*Join) kind() Type            { return TypeJoin }
func (*Joined) kind() Type          { return TypeJoined }
func (*Heap) kind() Type            { return TypeHeap }
func (*Attached) kind() Type        { return TypeAttached }
func (*GroupReady) kind() Type      { return TypeGroupReady }
func (*WindowAlloc) kind() Type     { return TypeWindowAlloc }
func (*WindowCommit) kind() Type    { return TypeWindowCommit }
func (*WindowCommitted) kind() Type { return TypeWindowCommitted }
func (*WindowReady) kind() Type     { return TypeWindowReady }
func (*WindowFree) kind() Type      { return TypeWindowFree }
func (*WindowFreed) kind() Type     { return TypeWindowFreed }
func (*Leave) kind() Type           { return TypeLeave }
func (*Left) kind() Type            { return TypeLeft }
func (*Draining) kind() Type        { return TypeDraining }

// New returns an empty message of the type, nil for an unknown type.
func New(t Type) Message {
	switch t {
	case TypeHello:
		return &Hello{}
	case TypeWelcome:
		return &Welcome{}
	case TypeError:
		return &Error{}
	case TypeJoin:
		return &Join{}
	case TypeJoined:
		return &Joined{}
	case TypeHeap:
		return &Heap{}
	case TypeAttached:
		return &Attached{}
	case TypeGroupReady:
		return &GroupReady{}
	case TypeWindowAlloc:
		return &WindowAlloc{}
	case TypeWindowCommit:
		return &WindowCommit{}
	case TypeWindowCommitted:
		return &WindowCommitted{}
	case TypeWindowReady:
		return &WindowReady{}
	case TypeWindowFree:
		return &WindowFree{}
	case TypeWindowFreed:
		return &WindowFreed{}
	case TypeLeave:
		return &Leave{}
	case TypeLeft:
		return &Left{}
	case TypeDraining:
		return &Draining{}
	case TypeRegister:
		return &Register{}
	case TypeRegisterPrivate:
		return &RegisterPrivate{}
	case TypePeerMemory:
		return &PeerMemory{}
	case TypeRegisterMapped:
		return &RegisterMapped{}
	case TypeRegistered:
		return &Registered{}
	case TypeKVAgent:
		return &KVAgent{}
	case TypeKVSocket:
		return &KVSocket{}
	case TypeSessionLease:
		return &SessionLease{}
	case TypeReannounce:
		return &Reannounce{}
	case TypeReannounced:
		return &Reannounced{}
	case TypeReannounceHeap:
		return &ReannounceHeap{}
	}
	return nil
}

// CarriesFD says whether a message carries a file descriptor.
func CarriesFD(m Message) bool {
	switch m := m.(type) {
	case *Hello, *Joined, *Heap, *SessionLease, *KVSocket, *Reannounce, *ReannounceHeap:
		return true
	case *WindowCommitted:
		return m.Memory == MemoryCUDA && m.Error == 0
	case *Register:
		return m.Memory.HasFD()
	case *PeerMemory:
		return m.Memory.HasFD()
	}
	return false
}

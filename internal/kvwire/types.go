package kvwire

// Bounds and constants of kv.h.
const (
	Magic         = 0x564b4852
	SegmentMagic  = 0x31474553564b4852
	Version       = 1
	NameBytes     = 64
	TextBytes     = 184
	RefBytes      = 48
	RingsAt       = 4096
	MaxEntries    = 65536
	MaxArena      = 1 << 30
	MaxMessage    = 196608
	MaxPayload    = 65536
	MaxRegions    = 65536
	MaxCaches     = 256
	Descriptors   = 3
	noRecord      = 0xffffffff
	maxPriority   = 3
	maxRegionByte = 1 << 46
)

// Type is the type of a message (rhk_type).
type Type uint32

// The types.
const (
	TypeHello Type = iota + 1
	TypeResult
	TypeRegion
	TypeRegionPrivate
	TypeRegionFree
	TypeCache
	TypeGrant
	TypeRevoke
	TypeReuse
	TypeMissing
)

// Op is what a submission asks for (rhk_op).
type Op uint32

// The operations.
const (
	OpRead Op = iota + 1
	OpWrite
	OpResume
	OpCancel
	OpNotify
)

func (o Op) String() string {
	return [...]string{"?", "read", "write", "resume", "cancel", "notify"}[min(o, OpNotify)]
}

// EachLayer (rhk_flag) asks for a completion whenever more layers have arrived.
const EachLayer = 1

// Kind is what a completion says (rhk_kind).
type Kind uint32

// The kinds.
const (
	KindEnded Kind = iota + 1
	KindLayers
	KindGrantEnded
	KindBlockFree
)

// Name is a NUL-terminated name.
type Name [NameBytes]byte

// Text is a NUL-terminated text.
type Text [TextBytes]byte

// Reference is the wire format of a grant's reference.
type Reference [RefBytes]byte

// Submission is rhk_submission; kv.h says what its fields mean.
type Submission struct {
	ID           uint64
	Op           Op
	Flags        uint32
	ArenaAt      uint64
	ArenaBytes   uint32
	Cache        uint32
	TimeoutNs    uint64
	Priority     uint32
	FirstLayer   uint32
	Layers       uint32
	PeerToken    uint32
	OwnToken     uint32
	Tokens       uint32
	PeerBlocks   uint32
	OwnBlocks    uint32
	PayloadBytes uint32
	Scale        float32
	Reference    Reference
}

// Completion is rhk_completion.
type Completion struct {
	ID        uint64
	Kind      Kind
	Result    int32
	Layers    uint32
	Missing   uint32
	Bytes     uint64
	Grant     uint64
	Cache     uint32
	Block     uint32
	Reason    uint32
	Reserved0 uint32
	Reserved1 uint64
	Text      Text
	Reserved2 uint64
}

// Record is rhk_record.
type Record struct {
	Bytes        uint32
	PayloadBytes uint32
	Incarnation  uint64
	Sequence     uint64
	Sender       Name
}

// Header begins every message.
type Header struct {
	Magic    uint32
	Type     Type
	Size     uint32
	Reserved uint32
	Request  uint64
}

// Hello is rhk_hello.
type Hello struct {
	H            Header
	Version      uint32
	Reserved0    uint32
	Incarnation  uint64
	SegmentBytes uint64
}

// Result is rhk_result.
type Result struct {
	H         Header
	Code      int32
	Number    uint32
	Reference Reference
	Text      Text
}

// Region is rhk_region. It carries a descriptor.
type Region struct {
	H             Header
	Offset, Bytes uint64
}

// RegionPrivate is rhk_region_private.
type RegionPrivate struct {
	H              Header
	Address, Bytes uint64
}

// RegionFree is rhk_region_free.
type RegionFree struct {
	H                 Header
	Region, Reserved0 uint32
}

// Place is rhk_place.
type Place struct {
	Offset            uint64
	Region, Reserved0 uint32
}

// Strided is the form of a cache whose strides are given (rhk_form). The others are paged.Form's.
const Strided = 4

// Cache is rhk_cache.
type Cache struct {
	H                                             Header
	Layers, Parts, Blocks, BlockTokens            uint32
	Heads, HeadDim, Dtype                         uint32
	FirstLayer, FirstHead, NumPlaces, Form, Order uint32
	BlockStride, TokenStride, HeadStride          uint64
}

// Range is rhk_range: neighbouring blocks.
type Range struct{ First, Count uint32 }

// Grant is rhk_grant.
type Grant struct {
	H                 Header
	Cache, Rights     uint32
	TTLNs             uint64
	Ranges, Reserved0 uint32
	Reader            Name
}

// Revoke is rhk_revoke.
type Revoke struct {
	H         Header
	Reference Reference
}

// Reuse is rhk_reuse.
type Reuse struct {
	H             Header
	Cache, Ranges uint32
}

// Missing is rhk_missing.
type Missing struct {
	H          Header
	ID         uint64
	From, Most uint32
}

// Piece is rhk_piece.
type Piece struct{ Layer, FirstBlock, Blocks, Reserved0 uint32 }

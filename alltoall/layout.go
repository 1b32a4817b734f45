package alltoall

// Sizes in bytes that do not depend on the config.
const (
	stateBytes = 4096 // counters of the rank itself
	linkBytes  = 64   // flags of one peer: a cache line of its own, against false sharing
	line       = 64
)

// Layout is the layout of a rank's window: offsets and sizes of its parts, in bytes. With P = R - 1 peers, Lmax the largest number
// of experts on a rank, and align64 rounding up to a multiple of 64:
//
//	state     4096
//	links     64 R
//	counts    2 P align64(4 (1 + Lmax))
//	dispatch  P S (align64(C headerStride) + C rowStride)
//	combine   P S C combineStride
//
//	headerStride   8 + 8 min(K, Lmax)
//	rowStride      align64(Config.RowBytes)
//	combineStride  align64(Config.CombineRowBytes)
//	LL             S = 2 slots (two dispatches in flight) of C = T tokens
//	HT, CPU        S = 4 slots of C = max(1, min(T, floor(262144 / rowStride))) tokens
//	HT, CUDA       S = 4 slots of C = max(1, min(floor(T / 4), floor(2097152 / rowStride))) tokens
//
// A rank's tokens to itself do not pass through the window, so with R = 1 it has state and links only.
type Layout struct {
	Links, Counts, Dispatch, Combine uint64 // offsets of the parts; the state is at 0
	Bytes                            uint64 // of the window

	CountsStride  uint64 // of the counts of one peer and dispatch
	Slots         int    // S, for each peer
	SlotTokens    int    // C
	HeaderStride  uint64
	RowStride     uint64
	SlotBytes     uint64 // of the headers and rows of a slot
	CombineStride uint64
}

// About the size of a slot of HT. On a CPU it is a chunk that stays in the cache until it is read. On a GPU all blocks share the slots of a
// pair of ranks, which together hold no more tokens than a dispatch.
const (
	htChunkBytes    = 256 << 10
	htGPUChunkBytes = 2 << 20
)

// NewLayout checks a config and computes the layout.
func NewLayout(c Config, world int) (Layout, error) {
	p, err := NewPlacement(c, world)
	if err != nil {
		return Layout{}, err
	}
	l := Layout{
		Slots: 2, SlotTokens: c.MaxTokensPerRank,
		CountsStride:  align(4*(1+uint64(p.MaxLocal)), line),
		HeaderStride:  8 + 8*uint64(min(c.TopK, p.MaxLocal)),
		RowStride:     align(uint64(c.RowBytes()), line),
		CombineStride: align(uint64(c.CombineRowBytes()), line),
	}
	if c.Mode == HT {
		l.Slots = 4
		l.SlotTokens = max(1, min(c.MaxTokensPerRank, int(htChunkBytes/l.RowStride)))
		if c.DeviceKind == CUDA {
			l.SlotTokens = max(1, min(c.MaxTokensPerRank/l.Slots, int(htGPUChunkBytes/l.RowStride)))
		}
	}
	tokens, slots := uint64(l.SlotTokens), uint64(l.Slots)*uint64(world-1)
	l.SlotBytes = align(tokens*l.HeaderStride, line) + tokens*l.RowStride
	l.Links = stateBytes
	l.Counts = l.Links + linkBytes*uint64(world)
	l.Dispatch = l.Counts + 2*uint64(world-1)*l.CountsStride
	l.Combine = l.Dispatch + slots*l.SlotBytes
	l.Bytes = l.Combine + slots*tokens*l.CombineStride
	return l, nil
}

// BufferBytes is the exact size of a rank's window.
func BufferBytes(c Config, world int) (uint64, error) {
	l, err := NewLayout(c, world)
	return l.Bytes, err
}

func align(bytes, to uint64) uint64 { return (bytes + to - 1) / to * to }

// ScaleColumns is the number of scales of a row on the wire: one a block of 128 elements, none without FP8 or with a static scale.
func (c *Config) ScaleColumns() int {
	if c.WireDtype != FP8E4M3 || c.ScaleFormat == ScaleStatic {
		return 0
	}
	return (c.Hidden + ScaleBlock - 1) / ScaleBlock
}

// ScaleBytes is the size of a row's scales: 4 bytes each (F32) or 1.
func (c *Config) ScaleBytes() int {
	if c.ScaleFormat == ScaleF32 {
		return 4 * c.ScaleColumns()
	}
	return c.ScaleColumns()
}

// RowBytes is the size of a row on the wire: its elements, then, at a multiple of 4, its scales.
func (c *Config) RowBytes() int {
	elements := c.Hidden * c.WireDtype.Size()
	if c.ScaleColumns() == 0 {
		return elements
	}
	return int(align(uint64(elements), 4)) + c.ScaleBytes()
}

// CombineRowBytes is the size of a partial sum on the wire.
func (c *Config) CombineRowBytes() int { return c.Hidden * c.CombineDtype.Size() }

package alltoall

// Bytes of a window that do not depend on the config.
const (
	stateBytes = 4096 // own rank's counters
	linkBytes  = 64   // flags of one rank: a line, so that ranks do not write the same one
	line       = 64
)

// Layout is where the parts of a rank's window begin, and how large their pieces are, in bytes. With P = R - 1 peers, Lmax the
// most local experts of a rank, and align64 rounding up to a multiple of 64:
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
//	HT             S = 4 slots of C = min(T, max(1, floor(262144 / rowStride))) tokens
//
// A rank's own tokens do not go through its window: with R = 1 there are only state and links.
type Layout struct {
	Links, Counts, Dispatch, Combine uint64 // where these parts begin; the state begins at 0
	Bytes                            uint64 // of the window

	CountsStride  uint64 // counts of one peer and dispatch
	Slots         int    // S, of each peer
	SlotTokens    int    // C
	HeaderStride  uint64
	RowStride     uint64
	SlotBytes     uint64 // headers and rows of a slot
	CombineStride uint64
}

// htChunkBytes is about what a slot of HT holds: a chunk that stays in a cache between its writer and its reader.
const htChunkBytes = 262144

// NewLayout checks the config.
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
		l.SlotTokens = min(c.MaxTokensPerRank, max(1, int(htChunkBytes/l.RowStride)))
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

// BufferBytes is the size of a rank's window, to the byte.
func BufferBytes(c Config, world int) (uint64, error) {
	l, err := NewLayout(c, world)
	return l.Bytes, err
}

func align(bytes, to uint64) uint64 { return (bytes + to - 1) / to * to }

// ScaleColumns is how many scales travel with a row: one for each block of 128 elements, none without FP8 or with a static scale.
func (c *Config) ScaleColumns() int {
	if c.WireDtype != FP8E4M3 || c.ScaleFormat == ScaleStatic {
		return 0
	}
	return (c.Hidden + ScaleBlock - 1) / ScaleBlock
}

// ScaleBytes is the size of a row's scales: floats, or one byte each.
func (c *Config) ScaleBytes() int {
	if c.ScaleFormat == ScaleF32 {
		return 4 * c.ScaleColumns()
	}
	return c.ScaleColumns()
}

// RowBytes is the size of a row on the wire: its elements, then at a multiple of 4 its scales.
func (c *Config) RowBytes() int {
	elements := c.Hidden * c.WireDtype.Size()
	if c.ScaleColumns() == 0 {
		return elements
	}
	return int(align(uint64(elements), 4)) + c.ScaleBytes()
}

// CombineRowBytes is the size of a partial sum on its way back.
func (c *Config) CombineRowBytes() int { return c.Hidden * c.CombineDtype.Size() }

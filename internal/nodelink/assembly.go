package nodelink

import (
	"fmt"
	"sort"
)

// place is where a payload goes.
type place struct {
	slices [][]byte
	ends   []int // of each slice, in the payload
}

func newPlace(slices [][]byte, bytes int) (place, error) {
	p := place{slices, make([]int, len(slices))}
	end := 0
	for i, s := range slices {
		end += len(s)
		p.ends[i] = end
	}
	if end != bytes {
		return place{}, fmt.Errorf("a place of %d bytes for a payload of %d", end, bytes)
	}
	return p, nil
}

// at appends the slices where a piece goes.
func (p place) at(to [][]byte, position, bytes int) [][]byte {
	i := sort.SearchInts(p.ends, position+1)
	offset := position - p.ends[i] + len(p.slices[i])
	for ; bytes > 0; i++ {
		s := p.slices[i][offset:]
		s, offset = s[:min(len(s), bytes)], 0
		bytes -= len(s)
		to = append(to, s)
	}
	return to
}

// incoming is a message of several pieces of which some have not arrived.
type incoming struct {
	kind    uint16
	header  []byte
	total   int
	place   place
	err     error    // the payload is dropped, or was damaged
	dropped bool     // it has no place
	claimed []uint64 // a bit for each piece that has arrived or is being read
	missing int      // pieces that have not arrived
}

func newIncoming(h head, header []byte) *incoming {
	n := int((h.position + PieceBytes - 1) / PieceBytes)
	return &incoming{kind: h.kind, header: append([]byte(nil), header...), total: int(h.position), claimed: make([]uint64, (n+63)/64), missing: n}
}

// claim says that the piece at a position is being read. A piece comes once, so no two streams write to the same place.
func (in *incoming) claim(position uint64, bytes uint32) error {
	if position >= uint64(in.total) || uint64(bytes) != min(PieceBytes, uint64(in.total)-position) {
		return broken("a piece of %d bytes at %d, of a payload of %d", bytes, position, in.total)
	}
	i := position / PieceBytes
	if in.claimed[i/64]&(1<<(i%64)) != 0 {
		return broken("the piece at %d came twice", position)
	}
	in.claimed[i/64] |= 1 << (i % 64)
	return nil
}

// assembly is the messages of several pieces that arrive on a link: a state machine without I/O, lock and clock.
type assembly struct {
	open map[uint64]*incoming // by number; nil until the message has its place
}

// begin makes room for a message whose first piece has come.
func (a *assembly) begin(number uint64) error {
	if _, ok := a.open[number]; ok {
		return broken("message %d begins twice", number)
	}
	if len(a.open) == maxLarge {
		return broken("message %d begins while %d of several pieces have not arrived", number, maxLarge)
	}
	a.open[number] = nil
	return nil
}

// placed says that the message's other pieces can be read.
func (a *assembly) placed(number uint64, in *incoming) { a.open[number] = in }

// claim returns the message of a piece, nil if its first piece has not come yet.
func (a *assembly) claim(h head) (*incoming, error) {
	in := a.open[h.number]
	if in == nil {
		return nil, nil
	}
	return in, in.claim(h.position, h.piece)
}

// arrived says that a piece was read. It returns whether the message is there.
func (a *assembly) arrived(number uint64, in *incoming, err error) bool {
	if in.err == nil {
		in.err = err
	}
	in.missing--
	if in.missing == 0 {
		delete(a.open, number)
	}
	return in.missing == 0
}

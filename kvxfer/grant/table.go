// Package grant decides who may read and write which blocks of a process's KV caches, and when the process may use the blocks again.
//
// A grant is made for blocks, and fenced by their generations: when the owner uses a block again, its generation changes, and what was
// granted before answers ErrStale. A read is checked before and after the copy. A write pins its blocks: the owner gets them when the copy
// has left.
//
// The table is a state machine without I/O: it has no clock, no lock and no goroutine, and is used by one goroutine. It trusts its owner;
// what peers show is checked.
package grant

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"
)

// What a reference is refused for. Errors of Open and Close wrap one of them.
var (
	ErrForeign = errors.New("the reference is of another process or an earlier one of that name: ask the owner for a new one")
	ErrForged  = errors.New("the reference was not made by its owner: it was changed on its way, or made up")
	ErrExpired = errors.New("the grant has expired: ask the owner for a new one")
	ErrRevoked = errors.New("the grant was revoked: ask the owner for a new one")
	ErrRights  = errors.New("the grant does not allow this: ask the owner for one that does")
	ErrReader  = errors.New("the grant is another process's: ask the owner for one of your own")
	ErrRange   = errors.New("the blocks are not among those of the grant: their places are counted from its first one, 0")
	ErrStale   = errors.New("the owner has used the block again: its contents are of another sequence, not of the one that was granted")
	ErrWritten = errors.New("the block is being written: read it again when the write has ended")
)

// Bounds of a table.
const (
	MaxGrants      = 1 << 16
	MaxGrantBlocks = 1 << 20
)

// Table is the grants of one process.
type Table struct {
	incarnation uint64
	key         []byte
	caches      map[uint32]*cache
	grants      map[uint64]*grant
	last        uint64 // number of the latest grant; numbers are not used again
	events      []Event
}

type cache struct {
	blocks []block
}

type block struct {
	generation uint64
	writes     uint64 // opened so far
	pins       int    // open writes
	wanted     bool   // the owner waits for it
}

type grant struct {
	Reference
	reader      string
	blocks      []uint32
	generations []uint64
	writes      int  // open ones
	ended       bool // no longer opened; forgotten when its writes have ended
	why         Reason
}

// Reason says why a grant has ended.
type Reason uint8

// The reasons.
const (
	Revoked Reason = iota + 1
	Expired
	ReaderGone
)

func (r Reason) String() string {
	return []string{"none", "revoked", "expired", "its reader has gone"}[min(r, ReaderGone)]
}

// err is what a use of such a grant is refused for.
func (r Reason) err() error {
	if r == Expired {
		return ErrExpired
	}
	return ErrRevoked
}

// Event tells the owner what it may do. Either a grant has ended and nothing writes its blocks any more through it, or a block that it
// wanted is its own.
type Event struct {
	Ended  Reason // 0: the event is about a block
	Number uint64 // of the grant
	Blocks []uint32
	Cache  uint32
}

// NewTable returns a table without caches. key signs references: at least 16 random bytes, known to this process only.
func NewTable(incarnation uint64, key []byte) (*Table, error) {
	if len(key) < 16 {
		return nil, fmt.Errorf("KV grants: a key of %d bytes: at least 16 random ones", len(key))
	}
	return &Table{incarnation: incarnation, key: key, caches: map[uint32]*cache{}, grants: map[uint64]*grant{}}, nil
}

// AddCache adds a cache with so many blocks.
func (t *Table) AddCache(number uint32, blocks int) error {
	if _, known := t.caches[number]; known {
		return fmt.Errorf("KV grants: cache %d is there already", number)
	}
	t.caches[number] = &cache{make([]block, blocks)}
	return nil
}

// Grant lets reader use blocks until expiry, in nanoseconds of the owner's clock. Forget ends what a reader has.
func (t *Table) Grant(number uint32, blocks []uint32, rights Rights, expiry int64, reader string) (Reference, error) {
	c := t.caches[number]
	switch {
	case c == nil:
		return Reference{}, fmt.Errorf("KV grant: cache %d is not known", number)
	case rights == 0 || rights&^(Read|Write) != 0:
		return Reference{}, fmt.Errorf("KV grant: %v: read, write, or both", rights)
	case len(blocks) == 0 || len(blocks) > MaxGrantBlocks:
		return Reference{}, fmt.Errorf("KV grant: %d blocks: must be 1 to %d", len(blocks), MaxGrantBlocks)
	case len(t.grants) == MaxGrants:
		return Reference{}, fmt.Errorf("KV grant: there are %d grants, the most: revoke some, or let them expire earlier", MaxGrants)
	}
	g := &grant{reader: reader, blocks: append([]uint32(nil), blocks...), generations: make([]uint64, len(blocks))}
	for i, b := range blocks {
		if uint64(b) >= uint64(len(c.blocks)) {
			return Reference{}, fmt.Errorf("KV grant: block %d, number %d of the list: cache %d has %d", b, i, number, len(c.blocks))
		}
		if c.blocks[b].wanted {
			return Reference{}, fmt.Errorf("KV grant: block %d of cache %d: its owner waits for it", b, number)
		}
		g.generations[i] = c.blocks[b].generation
	}
	t.last++
	g.Reference = Reference{Rights: rights, Cache: number, Incarnation: t.incarnation, Number: t.last, Expiry: expiry}
	g.MAC = g.mac(t.key)
	t.grants[t.last] = g
	return g.Reference, nil
}

// Reuse asks for a block. True: it is the owner's, and what was granted before is stale. False: a write is still open; the block is the
// owner's with a later event, and no other write is opened.
func (t *Table) Reuse(number, at uint32) (bool, error) {
	c := t.caches[number]
	if c == nil || uint64(at) >= uint64(len(c.blocks)) {
		return false, fmt.Errorf("KV grants: block %d of cache %d is not known", at, number)
	}
	b := &c.blocks[at]
	if b.pins > 0 {
		b.wanted = true
		return false, nil
	}
	b.generation++
	return true, nil
}

// Revoke ends a grant. The event says when its writes have ended. A grant that is not known has ended already.
func (t *Table) Revoke(number uint64) {
	if g := t.grants[number]; g != nil {
		t.end(g, Revoked)
	}
}

// Expire ends the grants whose time is over.
func (t *Table) Expire(now int64) {
	t.endAll(Expired, func(g *grant) bool { return now >= g.Expiry })
}

// Forget ends the grants of a reader that has gone.
func (t *Table) Forget(reader string) {
	t.endAll(ReaderGone, func(g *grant) bool { return g.reader == reader })
}

// endAll ends grants in the order of their numbers, so that the same calls give the same events.
func (t *Table) endAll(why Reason, which func(*grant) bool) {
	var numbers []uint64
	for number, g := range t.grants {
		if which(g) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	for _, number := range numbers {
		t.end(t.grants[number], why)
	}
}

func (t *Table) end(g *grant, why Reason) {
	if !g.ended {
		g.ended, g.why = true, why
	}
	if g.writes == 0 {
		delete(t.grants, g.Number)
		t.events = append(t.events, Event{Ended: g.why, Number: g.Number, Cache: g.Cache, Blocks: g.blocks})
	}
}

// Events returns what happened since the last call.
func (t *Table) Events() []Event {
	events := t.events
	t.events = nil
	return events
}

// Use is an open read or write of some blocks of a grant.
type Use struct {
	table  *Table
	grant  *grant
	rights Rights
	places []uint32 // in the grant's list
	blocks []uint32
	writes []uint64 // of a read: how often its blocks had been written
	closed bool
}

// Blocks are the blocks that are used, in the order of Open's places.
func (u *Use) Blocks() []uint32 { return u.blocks }

// Open checks what reader shows, and begins to read or to write the blocks at some places of the grant's list.
func (t *Table) Open(r Reference, reader string, rights Rights, places []uint32, now int64) (*Use, error) {
	g, err := t.find(r, reader, rights, now)
	if err != nil {
		return nil, fmt.Errorf("KV %v by grant %d: %w", rights, r.Number, err)
	}
	if len(places) == 0 {
		return nil, fmt.Errorf("KV %v by grant %d: no block: %w", rights, r.Number, ErrRange)
	}
	u := &Use{table: t, grant: g, rights: rights, places: places, blocks: make([]uint32, len(places))}
	for i, p := range places {
		if uint64(p) >= uint64(len(g.blocks)) {
			return nil, fmt.Errorf("KV %v by grant %d: place %d of %d: %w", rights, r.Number, p, len(g.blocks), ErrRange)
		}
		u.blocks[i] = g.blocks[p]
	}
	if err := u.current(); err != nil {
		return nil, err
	}
	blocks := t.caches[g.Cache].blocks
	if rights == Read {
		u.writes = make([]uint64, 0, len(places))
		for i, b := range u.blocks {
			if blocks[b].pins > 0 {
				return nil, u.refuse(i, ErrWritten)
			}
			u.writes = append(u.writes, blocks[b].writes)
		}
		return u, nil
	}
	g.writes++
	for _, b := range u.blocks {
		blocks[b].pins++
		blocks[b].writes++
	}
	return u, nil
}

// refuse says why a block cannot be used.
func (u *Use) refuse(i int, why error) error {
	return fmt.Errorf("KV %v by grant %d: block %d, number %d of the grant: %w", u.rights, u.grant.Number, u.blocks[i], u.places[i], why)
}

// find returns the grant of a reference that is valid now.
func (t *Table) find(r Reference, reader string, rights Rights, now int64) (*grant, error) {
	if r.Incarnation != t.incarnation {
		return nil, ErrForeign
	}
	if mac := r.mac(t.key); !hmac.Equal(mac[:], r.MAC[:]) {
		return nil, ErrForged
	}
	g := t.grants[r.Number]
	switch {
	case now >= r.Expiry:
		return nil, ErrExpired
	case g == nil || g.ended:
		return nil, ErrRevoked
	case (rights != Read && rights != Write) || g.Rights&rights == 0:
		return nil, ErrRights
	case reader != g.reader:
		return nil, ErrReader
	}
	return g, nil
}

// current refuses blocks that the owner has used again since the grant, or waits for.
func (u *Use) current() error {
	blocks := u.table.caches[u.grant.Cache].blocks
	for i, b := range u.blocks {
		if blocks[b].generation != u.grant.generations[u.places[i]] || blocks[b].wanted {
			return u.refuse(i, ErrStale)
		}
	}
	return nil
}

// Close ends a use: the copy has left. After an error, what was read is not to be used, and what was written is the owner's to forget: the
// grant has ended meanwhile, or a block that was read has changed.
func (u *Use) Close() error {
	if u.closed {
		return errors.New("KV use: closed twice")
	}
	u.closed = true
	if u.rights == Write {
		u.unpin()
	}
	if g := u.grant; g.ended {
		return fmt.Errorf("KV %v by grant %d: the grant has ended (%v): %w", u.rights, g.Number, g.why, g.why.err())
	}
	if u.rights == Write {
		return nil
	}
	for i, b := range u.blocks {
		if u.table.caches[u.grant.Cache].blocks[b].writes != u.writes[i] {
			return u.refuse(i, ErrWritten)
		}
	}
	return u.current()
}

// unpin gives blocks that the owner waits for to the owner, and tells it when the last write of a grant that has ended has left.
func (u *Use) unpin() {
	t, g := u.table, u.grant
	for _, at := range u.blocks {
		b := &t.caches[g.Cache].blocks[at]
		b.pins--
		if b.pins == 0 && b.wanted {
			b.wanted = false
			b.generation++
			t.events = append(t.events, Event{Cache: g.Cache, Blocks: []uint32{at}})
		}
	}
	g.writes--
	if g.ended {
		t.end(g, g.why)
	}
}

//go:build linux

package kvwire

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// header is rhk_segment.
type header struct {
	magic        uint64
	version      uint32
	entries      uint32
	incarnation  uint64
	arenaBytes   uint64
	inboxBytes   uint64
	_            [24]byte
	submitted    uint64
	_            [56]byte
	taken        uint64
	proxySleeps  uint32
	_            [52]byte
	completed    uint64
	_            [56]byte
	reaped       uint64
	clientSleeps uint32
	_            [52]byte
	inboxWritten uint64
	_            [56]byte
	inboxRead    uint64
	_            [56]byte
}

// Sizes of a segment's parts. Each is a power of two.
type Sizes struct {
	Entries    uint32 // of the rings
	ArenaBytes uint64
	InboxBytes uint64
}

func (s Sizes) check() error {
	power := func(n uint64) bool { return n != 0 && n&(n-1) == 0 }
	switch {
	case !power(uint64(s.Entries)) || s.Entries > MaxEntries:
		return fmt.Errorf("kvwire: rings of %d entries: a power of two, at most %d", s.Entries, MaxEntries)
	case !power(s.ArenaBytes) || s.ArenaBytes < 4096 || s.ArenaBytes > MaxArena:
		return fmt.Errorf("kvwire: an arena of %d bytes: a power of two, 4096 to %d", s.ArenaBytes, MaxArena)
	case !power(s.InboxBytes) || s.InboxBytes < 2*MaxPayload || s.InboxBytes > MaxArena:
		return fmt.Errorf("kvwire: an inbox of %d bytes: a power of two, %d to %d", s.InboxBytes, 2*MaxPayload, MaxArena)
	}
	return nil
}

// layout is where the parts begin.
type layout struct{ submissions, completions, arena, inbox, end uint64 }

func (s Sizes) layout() (l layout) {
	l.submissions = RingsAt
	l.completions = l.submissions + uint64(s.Entries)*uint64(unsafe.Sizeof(Submission{}))
	l.arena = l.completions + uint64(s.Entries)*uint64(unsafe.Sizeof(Completion{}))
	l.inbox = l.arena + s.ArenaBytes
	l.end = l.inbox + s.InboxBytes
	return l
}

// Segment is the proxy's side of the segment that it shares with an agent. Take is called by one goroutine, Complete and Deliver by one at
// a time. The client may write any byte at any time: the proxy keeps its own counters, and reads each of the client's words once.
type Segment struct {
	sizes  Sizes
	layout layout
	fd     int
	memory []byte
	h      *header

	taken, completed, written uint64 // the proxy's own counters
}

// ErrClient: the client has written nonsense into the segment. The agent is to be ended.
var ErrClient = errors.New("the agent has written nonsense into its rings")

// NewSegment makes a segment.
func NewSegment(sizes Sizes, incarnation uint64) (*Segment, error) {
	if err := sizes.check(); err != nil {
		return nil, err
	}
	s := &Segment{sizes: sizes, layout: sizes.layout()}
	fd, err := unix.MemfdCreate("railhead-kv", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("kvwire: memfd_create: %w", err)
	}
	s.fd = fd
	if err := s.fill(incarnation); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("kvwire: segment of %d bytes: %w", s.layout.end, err)
	}
	return s, nil
}

func (s *Segment) fill(incarnation uint64) error {
	if err := unix.Ftruncate(s.fd, int64(s.layout.end)); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return err
	}
	memory, err := unix.Mmap(s.fd, 0, int(s.layout.end), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	s.memory = memory
	s.h = (*header)(unsafe.Pointer(&memory[0]))
	s.h.magic, s.h.version, s.h.entries, s.h.incarnation = SegmentMagic, Version, s.sizes.Entries, incarnation
	s.h.arenaBytes, s.h.inboxBytes = s.sizes.ArenaBytes, s.sizes.InboxBytes
	return nil
}

// FD is the segment's descriptor. Bytes is its size.
func (s *Segment) FD() int { return s.fd }

// Bytes is the segment's size.
func (s *Segment) Bytes() uint64 { return s.layout.end }

// Close unmaps the segment. Nothing of it is used afterwards.
func (s *Segment) Close() error {
	return errors.Join(unix.Munmap(s.memory), unix.Close(s.fd))
}

// at is an entry of a ring.
func at[T any](s *Segment, ring uint64, n uint64) *T {
	var t T
	return (*T)(unsafe.Pointer(&s.memory[ring+(n&uint64(s.sizes.Entries-1))*uint64(unsafe.Sizeof(t))]))
}

// Waiting reports whether a submission has not been taken.
func (s *Segment) Waiting() bool { return atomic.LoadUint64(&s.h.submitted) != s.taken }

// Take reads the next submission and its bytes in the arena, and gives their places back to the client. An error wraps ErrClient.
func (s *Segment) Take() (sub Submission, bytes []byte, ok bool, err error) {
	// Acquire: pairs with the client's release of `submitted`.
	submitted := atomic.LoadUint64(&s.h.submitted)
	if submitted == s.taken {
		return sub, nil, false, nil
	}
	if submitted-s.taken > uint64(s.sizes.Entries) {
		return sub, nil, false, fmt.Errorf("%w: %d submissions in a ring of %d", ErrClient, submitted-s.taken, s.sizes.Entries)
	}
	sub = *at[Submission](s, s.layout.submissions, s.taken)
	if n := uint64(sub.ArenaBytes); n > 0 {
		begin := sub.ArenaAt & (s.sizes.ArenaBytes - 1)
		if n > s.sizes.ArenaBytes || begin > s.sizes.ArenaBytes-n {
			return sub, nil, false, fmt.Errorf("%w: %d bytes at %d of an arena of %d", ErrClient, n, begin, s.sizes.ArenaBytes)
		}
		bytes = append(bytes, s.memory[s.layout.arena+begin:s.layout.arena+begin+n]...)
	}
	s.taken++
	// Release: the copies above are complete before the client uses the places again.
	atomic.StoreUint64(&s.h.taken, s.taken)
	return sub, bytes, true, nil
}

// Sleep announces that the proxy is about to wait for its bell. False: there is a submission, it must not.
func (s *Segment) Sleep() bool {
	// Sequentially consistent, as the client's store of `submitted` and its load of `proxySleeps`: one of both sees the other's store.
	atomic.StoreUint32(&s.h.proxySleeps, 1)
	if s.Waiting() {
		s.Awake()
		return false
	}
	return true
}

// Awake takes the announcement back.
func (s *Segment) Awake() { atomic.StoreUint32(&s.h.proxySleeps, 0) }

// Complete appends a completion. False: the ring is full, the client has not read the oldest ones.
func (s *Segment) Complete(c *Completion) bool {
	if s.completed-atomic.LoadUint64(&s.h.reaped) >= uint64(s.sizes.Entries) {
		return false
	}
	*at[Completion](s, s.layout.completions, s.completed) = *c
	s.completed++
	// Release: publishes the completion, and the bytes that a transfer has moved.
	atomic.StoreUint64(&s.h.completed, s.completed)
	return true
}

// Deliver appends a notification to the inbox. False: it is full.
func (s *Segment) Deliver(r Record, payload []byte) bool {
	size := uint64(unsafe.Sizeof(r))
	r.PayloadBytes = uint32(len(payload))
	r.Bytes = uint32((size + uint64(len(payload)) + 7) &^ 7)
	free := s.sizes.InboxBytes - (s.written - atomic.LoadUint64(&s.h.inboxRead))
	if free > s.sizes.InboxBytes {
		return false // the client's counter is nonsense: nothing is free
	}
	place := s.written & (s.sizes.InboxBytes - 1)
	skip := uint64(0)
	if left := s.sizes.InboxBytes - place; left < uint64(r.Bytes) {
		skip = left
	}
	if free < skip+uint64(r.Bytes) {
		return false
	}
	if skip > 0 {
		// At least 8 bytes are left, because every record has a multiple of 8.
		*(*[2]uint32)(unsafe.Pointer(&s.memory[s.layout.inbox+place])) = [2]uint32{uint32(skip), noRecord}
		place = 0
	}
	begin := s.layout.inbox + place
	*(*Record)(unsafe.Pointer(&s.memory[begin])) = r
	copy(s.memory[begin+size:], payload)
	s.written += skip + uint64(r.Bytes)
	// Release: publishes the record.
	atomic.StoreUint64(&s.h.inboxWritten, s.written)
	return true
}

// WakeClient reports whether the client sleeps, and its bell is to be rung. It is called after Complete and Deliver.
func (s *Segment) WakeClient() bool {
	return atomic.LoadUint32(&s.h.clientSleeps) != 0 && atomic.SwapUint32(&s.h.clientSleeps, 0) != 0
}

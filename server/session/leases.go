package session

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/lease"
	"railhead/symm"
)

// Leases watches the leases of sessions. A death ends the session, and its membership in groups, long before its socket closes. The
// death of a client without a lease is seen by socket and pidfd alone. Leases is the Family of SessionLease.
type Leases struct {
	core Core
	log  *slog.Logger

	mu    sync.Mutex // of taken and last
	taken map[File]*held
	last  File

	// The core's.
	held     map[*Session]*held
	watchers []*lease.Watcher // lease.MaxWatched words each
}

// held is the segment of one session.
type held struct {
	segment *symm.Segment
	mapping *symm.Mapping
	watcher *lease.Watcher
	watched *lease.Watched
}

// NewLeases returns Leases without a watch.
func NewLeases(core Core, log *slog.Logger) *Leases {
	return &Leases{core: core, log: log, taken: map[File]*held{}, held: map[*Session]*held{}}
}

// Handlers implements Family.
func (l *Leases) Handlers() []Handler { return []Handler{On(l.watch)} }

// Take implements Family: it maps the segment. If it is invalid, the session goes on without a lease.
func (l *Leases) Take(s *Session, m wire.Message, fd int) (wire.Message, File) {
	message, ok := m.(*wire.SessionLease)
	if !ok {
		_ = unix.Close(fd)
		return m, 0
	}
	h, err := openSegment(fd, message.Client)
	if err != nil {
		l.log.Warn("a session has no valid lease; its death is seen by socket and pidfd", "session", s.id, "pid", s.PID(), "error", err)
		return m, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.taken[l.last] = h
	return m, l.last
}

// openSegment takes fd over.
func openSegment(fd int, client uint64) (*held, error) {
	segment, err := symm.OpenSegment("railhead-session", fd, wire.SessionBytes)
	if err != nil {
		return nil, err
	}
	h := &held{segment: segment}
	if h.mapping, err = segment.Map(); err != nil {
		h.release()
		return nil, err
	}
	var header wire.Session
	_, err = binary.Decode(h.mapping.Bytes(0, uint64(binary.Size(header))), binary.LittleEndian, &header)
	if err == nil && (header.Magic != wire.SessionMagic || header.Version != wire.SessionVersion || header.Client != client) {
		err = fmt.Errorf("session segment with magic %#x, version %d, of client %#x; expected %#x, %d, %#x", header.Magic, header.Version,
			header.Client, uint64(wire.SessionMagic), wire.SessionVersion, client)
	}
	if err != nil {
		h.release()
		return nil, err
	}
	return h, nil
}

func (h *held) release() {
	if h.mapping != nil {
		_ = h.mapping.Unmap()
	}
	_ = h.segment.Release()
}

func (l *Leases) give(f File) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.taken[f]
	delete(l.taken, f)
	return h
}

// Drop implements Family.
func (l *Leases) Drop(f File) {
	if h := l.give(f); h != nil {
		h.release()
	}
}

// watch watches a session's first lease and drops any other.
func (l *Leases) watch(s *Session, _ *wire.SessionLease, f File) {
	h := l.give(f)
	if h == nil {
		return
	}
	if l.held[s] != nil {
		h.release()
		return
	}
	h.watched = lease.Of(h.mapping.Word32(wire.SessionLeaseOffset), func() { l.core.Ended(s, "lease") })
	for _, w := range l.watchers {
		if h.watcher == nil && w.Add(h.watched) {
			h.watcher = w
		}
	}
	if h.watcher == nil {
		h.watcher = lease.Start(lease.Rescan, func(err error) {
			l.log.Error("cannot watch the leases of sessions; deaths are still seen by socket and pidfd", "error", err)
		}, h.watched)
		l.watchers = append(l.watchers, h.watcher)
	}
	l.held[s] = h
}

// Ended implements Family.
func (l *Leases) Ended(s *Session, _ string) {
	if h := l.held[s]; h != nil {
		delete(l.held, s)
		h.watcher.Remove(h.watched, h.release)
	}
}

// Wait ends the watchers and unmaps all memory. No other goroutine may use the leases any more.
func (l *Leases) Wait() {
	for s := range l.held {
		l.Ended(s, "")
	}
	for _, w := range l.watchers {
		w.Stop()
	}
	for f := range l.taken {
		l.Drop(f)
	}
}

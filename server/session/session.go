package session

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
)

const (
	writeTimeout  = 5 * time.Second      // for a client to take a message
	inFlightPause = 5 * time.Millisecond // before another attempt to send a descriptor
	// SendQueue is the limit of messages queued for a client: the answers to Join of 63 groups of 64 ranks.
	SendQueue = 4096
)

// Descriptor is what a message can carry. It is counted, and closed with the last reference.
type Descriptor interface {
	FD() int
	Retain() error
	Release() error
}

// ID names a session. A daemon never reuses one.
type ID uint64

// Session is one client connection. Its goroutines: Listener.handle (its owner, in read), write and watchProcess; all end when
// the connection does, which the core, the client and the end of the daemon can bring about.
type Session struct {
	id      ID
	conn    *wire.Conn
	peer    wire.Peer
	version uint16
	process *os.File // the client's pidfd; nil = its process cannot be watched
	once    sync.Once
	done    chan struct{}
	ready   chan struct{} // has an element when the writer should empty the queue

	mu      sync.Mutex // of what follows
	queue   []Outgoing // at most SendQueue
	sending bool       // the writer has taken a message out and not sent it yet
	ended   bool       // the writer is gone
}

// Outgoing is a message on its way to the client. It holds a reference to its descriptor until it is sent or dropped.
type Outgoing struct {
	Msg     wire.Message
	Request uint64
	Carries Descriptor // nil = none
}

// ID is the session's number.
func (s *Session) ID() ID { return s.id }

// PID is the client's process, as the kernel names it; 0 = in another pid namespace.
func (s *Session) PID() int { return s.peer.PID }

// Watched says whether the end of the client's process is seen by its pidfd.
func (s *Session) Watched() bool { return s.process != nil }

// Close ends the connection. Any goroutine, any number of times.
func (s *Session) Close() {
	s.once.Do(func() {
		close(s.done)
		_ = s.conn.Close()
		_ = s.process.Close()
	})
}

// Enqueue never blocks; false means that the client is too far behind.
func (s *Session) Enqueue(o Outgoing) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return true // no goroutine would close the descriptor; the core is about to learn that the session has ended
	}
	if len(s.queue) == SendQueue {
		return false
	}
	if o.Carries != nil {
		if err := o.Carries.Retain(); err != nil {
			return true // its owner is gone, and with it the answer
		}
	}
	s.queue = append(s.queue, o)
	select {
	case s.ready <- struct{}{}:
	default: // the writer is about to
	}
	return true
}

func (s *Session) dequeue() (o Outgoing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.queue, s.sending = nil, false
		return Outgoing{}, false
	}
	o, s.queue, s.sending = s.queue[0], s.queue[1:], true
	return o, true
}

// Unsent is the number of messages that the kernel does not have yet.
func (s *Session) Unsent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending {
		return len(s.queue) + 1
	}
	return len(s.queue)
}

func (o Outgoing) drop() {
	if o.Carries != nil {
		_ = o.Carries.Release()
	}
}

// write sends what the core has queued.
func (s *Session) write(core Core) {
	defer s.dropQueue()
	for {
		select {
		case <-s.done:
			return
		case <-s.ready:
		}
		for o, ok := s.dequeue(); ok; o, ok = s.dequeue() {
			if err := s.sendOne(o); err != nil {
				core.Ended(s, "socket")
				return
			}
		}
	}
}

// dropQueue releases the unsent messages. Nothing is queued after it.
func (s *Session) dropQueue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.queue {
		o.drop()
	}
	s.queue, s.sending, s.ended = nil, false, true
}

func (s *Session) sendOne(o Outgoing) error {
	defer o.drop()
	fd := -1
	if o.Carries != nil {
		fd = o.Carries.FD()
	}
	deadline := time.Now().Add(writeTimeout)
	if err := s.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	for {
		err := s.conn.Send(o.Msg, s.version, o.Request, fd)
		// The kernel bounds a user's descriptors in flight (by RLIMIT_NOFILE, root excepted). A large group can exceed the bound until
		// its first ranks have received theirs.
		if !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(inFlightPause):
		case <-s.done:
			return err
		}
	}
}

// watchProcess waits for the client's process to end. A forked child may keep the socket open; nothing keeps a pidfd
// from becoming readable.
func (s *Session) watchProcess(core Core) {
	raw, err := s.process.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n == 1
	})
	if err != nil {
		return // closed
	}
	core.Ended(s, "pidfd")
}

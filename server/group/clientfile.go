package group

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/server/session"
)

// clientFile is the descriptor of a client's memory, to be sent to the other ranks. It is closed with the last reference.
type clientFile struct {
	mu   sync.Mutex
	fd   int
	refs int
}

func (f *clientFile) FD() int { return f.fd }

func (f *clientFile) Retain() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refs == 0 {
		return errors.New("group: a client's file was closed already")
	}
	f.refs++
	return nil
}

func (f *clientFile) Release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refs--
	if f.refs > 0 {
		return nil
	}
	return unix.Close(f.fd)
}

// clientFiles are the clients' files by FileID. Any goroutine.
type clientFiles struct {
	mu   sync.Mutex
	last membership.FileID
	held map[membership.FileID]*clientFile
}

// add takes fd over.
func (f *clientFiles) add(fd int) membership.FileID {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = map[membership.FileID]*clientFile{}
	}
	f.last++
	f.held[f.last] = &clientFile{fd: fd, refs: 1}
	return f.last
}

func (f *clientFiles) get(id membership.FileID) *clientFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[id]
}

// take removes a descriptor from the table and hands it to the caller, -1 if it is not there.
func (f *clientFiles) take(id membership.FileID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.held[id]
	if file == nil {
		return -1
	}
	delete(f.held, id)
	return file.fd
}

// close drops the table's reference to a file; unsent messages that carry the file keep theirs.
func (f *clientFiles) close(id membership.FileID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.held[id]; file != nil {
		delete(f.held, id)
		_ = file.Release()
	}
}

// closeAll closes the files whose events never reached the core. It runs at the end, when no other goroutine uses the table.
func (f *clientFiles) closeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range f.held {
		_ = file.Release()
	}
	f.held = nil
}

// takeMemory decides, on the session's goroutine, whether a client's descriptor may be sent to the other ranks. If not, it closes the
// descriptor and returns a RegisterPrivate in place of the message. A handle of CUDA memory needs no check here: the driver that a rank
// gives it to refuses what is none, and such memory cannot be truncated.
func (g *Groups) takeMemory(s *session.Session, r *wire.Register, fd int) (wire.Message, membership.FileID) {
	if r.Memory == wire.MemoryCUDAIPC { // it has no descriptor
		return r, 0
	}
	var err error
	if r.Memory == wire.MemoryCPU {
		err = checkShareable(fd, r.FdOffset, r.Bytes)
	}
	if err == nil {
		return r, g.files.add(fd)
	}
	_ = unix.Close(fd)
	g.log.Warn("a client's memory cannot be shared", "session", s.ID(), "pid", s.PID(), "error", err)
	return &wire.RegisterPrivate{
		H: r.H, Group: r.Group, Bytes: r.Bytes,
		Reason: wire.MakeReason(fmt.Sprintf("the daemon cannot give the memory of pid %d to other ranks: %v", s.PID(), err)),
	}, 0
}

// checkShareable checks that other ranks can map bytes at offset for reading and writing, and that no process can shrink the file,
// which would turn their accesses into SIGBUS. It reads the seals first: only memory file systems have them, and no other call is made on a file
// that may be on a file system that the client controls.
func checkShareable(fd int, offset, bytes uint64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("its descriptor is no memfd (%w)", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return errors.New("the memfd is not sealed against shrinking (F_SEAL_SHRINK)")
	}
	if seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return errors.New("the memfd is sealed against writing")
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		return errors.New("the memfd is not open for reading and writing")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if size := uint64(stat.Size); offset > size || bytes > size-offset {
		return fmt.Errorf("the memfd has %d bytes, %d at %d were registered", size, bytes, offset)
	}
	return nil
}

//go:build linux

package symm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// MaxSegmentBytes bounds a segment at 64 TiB, half of the 47-bit address
	// space that an amd64 process has.
	MaxSegmentBytes = 1 << 46

	// maxSegmentName is the kernel's limit for the name of a memfd, in bytes:
	// NAME_MAX less the length of its prefix "memfd:".
	maxSegmentName = 249

	// commitStep is the largest range of one fallocate call, in bytes. Before
	// Linux 6.11 (ca86a5d2f9fe) any signal ends the call with EINTR and undoes
	// its work, so a call for a large range would never finish while a CPU
	// profile sends 100 signals a second. 2 MiB take well under a millisecond,
	// and are the size of a huge page.
	commitStep = 2 << 20

	// maxInterrupts bounds the attempts at one step. Signals that keep arriving
	// faster than a step completes are an error of the machine.
	maxInterrupts = 1000

	// statBlockBytes is the unit of st_blocks, whatever the page size: stat(2).
	statBlockBytes = 512
)

// ErrReleased is returned by operations on a segment whose last reference is
// gone, or on a mapping that is unmapped.
var ErrReleased = errors.New("released already")

// Segment is the CPU memory of one rank's heap: a memfd of the heap's maximum
// size, which is fixed, while pages are committed and decommitted. Reserved
// bytes cost no memory; committed ones do.
//
// A new segment has one reference, its creator's. The descriptor is closed when
// the last reference is released. Mappings, here and in other processes, stay
// valid.
type Segment struct {
	name string
	size uint64

	mu   sync.Mutex
	fd   int // -1 once closed
	refs int // held by callers
	busy int // operations that use fd, which stays open until they end
}

// NewSegment creates a sparse memfd of size bytes, a multiple of the page size,
// and seals it against shrinking and growing. The name is what /proc/PID/maps
// and /proc/PID/fd show.
func NewSegment(name string, size uint64) (*Segment, error) {
	page := uint64(os.Getpagesize())
	switch {
	case name == "" || len(name) > maxSegmentName || strings.ContainsRune(name, 0):
		return nil, fmt.Errorf("symm: new segment %.64q: the name must have 1 to %d bytes, none of them zero", name, maxSegmentName)
	case size == 0 || size%page != 0:
		return nil, fmt.Errorf("symm: new segment %q: size %d bytes must be a positive multiple of the page size, %d bytes", name, size, page)
	case size > min(MaxSegmentBytes, math.MaxInt): // MaxInt: a mapping is a slice
		return nil, fmt.Errorf("symm: new segment %q: size %d bytes exceeds %d bytes", name, size, uint64(min(MaxSegmentBytes, math.MaxInt)))
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("symm: new segment %q: memfd_create: %w", name, err)
	}
	if err := sizeAndSeal(fd, size); err != nil {
		return nil, errors.Join(fmt.Errorf("symm: new segment %q: %w", name, err), unix.Close(fd))
	}
	return &Segment{name: name, size: size, fd: fd, refs: 1}, nil
}

// OpenSegment makes a segment from a descriptor that another process has sent.
// It takes ownership of the descriptor, also where it fails. The descriptor
// must be as NewSegment makes it for the same size: a memfd for reading and
// writing that cannot be resized.
func OpenSegment(name string, fd int, size uint64) (*Segment, error) {
	if err := checkOpened(fd, size); err != nil {
		return nil, errors.Join(fmt.Errorf("symm: open segment %q: %w", name, err), unix.Close(fd))
	}
	return &Segment{name: name, size: size, fd: fd, refs: 1}, nil
}

// checkOpened checks the seals first. Only memfds have them, so no other system
// call is made on a file that may be on a file system of the other process.
func checkOpened(fd int, size uint64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("it is not a memfd: %w", err)
	}
	const must, mustNot = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW, unix.F_SEAL_WRITE | unix.F_SEAL_FUTURE_WRITE
	if seals&must != must || seals&mustNot != 0 {
		return fmt.Errorf("its seals are %#x, expected %#x and none of %#x", seals, must, mustNot)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		return errors.New("it is not open for reading and writing")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if uint64(stat.Size) != size {
		return fmt.Errorf("it has %d bytes, expected %d", stat.Size, size)
	}
	return nil
}

// File identifies the segment's memory in all processes: two descriptors of one
// memfd have the same FileID.
func (s *Segment) File() (id FileID, err error) {
	err = s.withFD(func(fd int) error {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			return fmt.Errorf("symm: segment %q: fstat: %w", s.name, err)
		}
		id = FileID{stat.Dev, stat.Ino}
		return nil
	})
	return id, err
}

// FileID identifies a memfd.
type FileID struct{ device, inode uint64 }

// sizeAndSeal also seals the set of seals, so that no holder of the descriptor
// can add F_SEAL_WRITE, which would break the others.
func sizeAndSeal(fd int, size uint64) error {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fmt.Errorf("ftruncate to %d bytes: %w", size, err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("add seals: %w", err)
	}
	return nil
}

// Name returns the name given to NewSegment.
func (s *Segment) Name() string { return s.name }

// Size returns the reserved size in bytes. It never changes.
func (s *Segment) Size() uint64 { return s.size }

// FD returns the descriptor, to be passed to another process. It is valid as
// long as the caller holds a reference, and -1 after the last release.
func (s *Segment) FD() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == 0 {
		return -1
	}
	return s.fd
}

// Retain adds a reference. It fails after the last release: the descriptor is
// closed, and its number may belong to another file.
func (s *Segment) Retain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == 0 {
		return fmt.Errorf("symm: retain segment %q: %w", s.name, ErrReleased)
	}
	s.refs++
	return nil
}

// Release drops a reference. With the last one it closes the descriptor, or
// leaves that to an operation that another goroutine has under way. One Release
// too many changes nothing and is an error.
func (s *Segment) Release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == 0 {
		return fmt.Errorf("symm: release segment %q: %w", s.name, ErrReleased)
	}
	s.refs--
	if err := s.closeIfUnused(); err != nil {
		return fmt.Errorf("symm: release segment %q: close: %w", s.name, err)
	}
	return nil
}

// Commit backs a range with pages, so that a later access cannot fail for lack
// of memory. It keeps the contents. Offset and bytes are multiples of the page
// size.
//
// After an error any part of the range may be committed. Contents are kept.
// Call it again, or Decommit.
func (s *Segment) Commit(offset, bytes uint64) error {
	return s.fallocate("commit", 0, offset, bytes)
}

// Decommit frees the pages of a range. The range stays reserved and mapped, and
// reads as zero. An access commits it again. Offset and bytes are multiples of
// the page size.
func (s *Segment) Decommit(offset, bytes uint64) error {
	return s.fallocate("decommit", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, bytes)
}

// Sweep is Decommit for a large range with few pages or none. It makes one
// system call, so its time depends on the number of pages, not on the range.
func (s *Segment) Sweep(offset, bytes uint64) error {
	err := s.checkRange(offset, bytes)
	if err == nil {
		err = s.withFD(func(fd int) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(offset), int64(bytes))
		})
	}
	if err != nil {
		return fmt.Errorf("symm: sweep %d bytes at %d of segment %q: %w", bytes, offset, s.name, err)
	}
	return nil
}

// Committed returns the bytes of committed pages, swapped ones included,
// whichever process has committed them.
func (s *Segment) Committed() (uint64, error) {
	var stat unix.Stat_t
	err := s.withFD(func(fd int) error { return unix.Fstat(fd, &stat) })
	if err != nil {
		return 0, fmt.Errorf("symm: committed bytes of segment %q: %w", s.name, err)
	}
	return uint64(stat.Blocks) * statBlockBytes, nil
}

// HasData says whether a range has pages. Unlike a read through a mapping it
// commits none. With huge pages it may be true because of a store beside the
// range.
func (s *Segment) HasData(offset, bytes uint64) (bool, error) {
	if bytes == 0 || offset > s.size || bytes > s.size-offset {
		return false, fmt.Errorf("symm: data of %d bytes at %d of segment %q: it has %d bytes", bytes, offset, s.name, s.size)
	}
	var at int64
	err := s.withFD(func(fd int) (err error) {
		at, err = unix.Seek(fd, int64(offset), unix.SEEK_DATA)
		return err
	})
	switch {
	case errors.Is(err, unix.ENXIO): // none up to the end
		return false, nil
	case err != nil:
		return false, fmt.Errorf("symm: data of segment %q: %w", s.name, err)
	}
	return uint64(at) < offset+bytes, nil
}

func (s *Segment) fallocate(op string, mode uint32, offset, bytes uint64) error {
	if err := s.checkRange(offset, bytes); err != nil {
		return fmt.Errorf("symm: %s %d bytes at %d of segment %q: %w", op, bytes, offset, s.name, err)
	}
	err := s.withFD(func(fd int) error {
		return inSteps(offset, bytes, func(offset, bytes uint64) error {
			return unix.Fallocate(fd, mode, int64(offset), int64(bytes))
		})
	})
	if err != nil {
		return fmt.Errorf("symm: %s %d bytes at %d of segment %q: %w", op, bytes, offset, s.name, err)
	}
	return nil
}

// checkRange accepts whole pages within the segment. It refuses parts of pages,
// since a hole in a part would zero the bytes and free no memory.
func (s *Segment) checkRange(offset, bytes uint64) error {
	page := uint64(os.Getpagesize())
	switch {
	case bytes == 0:
		return errors.New("the range is empty")
	case offset%page != 0 || bytes%page != 0:
		return fmt.Errorf("offset and bytes must be multiples of the page size, %d bytes", page)
	case offset > s.size || bytes > s.size-offset:
		return fmt.Errorf("the range ends beyond the %d bytes of the segment", s.size)
	}
	return nil
}

// inSteps splits a range at multiples of commitStep and calls do for each piece,
// in order. It repeats a call that was interrupted.
func inSteps(offset, bytes uint64, do func(offset, bytes uint64) error) error {
	for bytes > 0 {
		step := min(bytes, commitStep-offset%commitStep)
		err := do(offset, step)
		for attempts := 1; errors.Is(err, unix.EINTR) && attempts < maxInterrupts; attempts++ {
			err = do(offset, step)
		}
		if err != nil {
			return fmt.Errorf("fallocate %d bytes at %d: %w", step, offset, err)
		}
		offset, bytes = offset+step, bytes-step
	}
	return nil
}

// withFD calls use with the descriptor, which stays open during the call.
func (s *Segment) withFD(use func(fd int) error) error {
	s.mu.Lock()
	if s.refs == 0 {
		s.mu.Unlock()
		return ErrReleased
	}
	s.busy++
	fd := s.fd
	s.mu.Unlock()

	err := use(fd)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	_ = s.closeIfUnused() // an error of close does not change the operation's result
	return err
}

// closeIfUnused must be called with mu held.
func (s *Segment) closeIfUnused() error {
	if s.refs > 0 || s.busy > 0 || s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1 // Linux frees the number even when close reports an error
	return unix.Close(fd)
}

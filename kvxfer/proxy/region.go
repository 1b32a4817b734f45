//go:build linux

package proxy

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// region is memory that an agent has registered. Its agent's mutex guards uses and freed.
type region struct {
	number uint32
	pages  []byte // the mapping, of whole pages
	memory []byte
	uses   int  // pieces that move bytes of it
	freed  bool // no piece begins to use it
}

// mapRegion maps a part of a file. Only a memfd that cannot shrink is accepted: an access behind the end of a file ends the process.
func mapRegion(fd int, offset, bytes uint64) (*region, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("the descriptor is of no memfd with F_SEAL_SHRINK: use rh_kv_alloc or a window, or seal the file")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if size := uint64(st.Size); offset > size || bytes > size-offset {
		return nil, fmt.Errorf("%d bytes at %d of a file of %d", bytes, offset, size)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDWR || seals&unix.F_SEAL_WRITE != 0 {
		return nil, fmt.Errorf("the descriptor cannot be written: open it for reading and writing, without F_SEAL_WRITE")
	}
	page := uint64(st.Blksize) // of a memfd the size of its pages, which may be huge
	lead := offset % page
	pages, err := unix.Mmap(fd, int64(offset-lead), int((lead+bytes+page-1)/page*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", bytes, err)
	}
	return &region{pages: pages, memory: pages[lead : lead+bytes]}, nil
}

func (r *region) unmap() error { return unix.Munmap(r.pages) }

// newBell makes an eventfd, which the Go runtime can wait for.
func newBell() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "bell"), nil
}

package tests

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

// unshareable makes memory that other ranks cannot map; words are those of the reason.
type unshareable struct {
	name  string
	make  func(t *testing.T) (owned, client.RegisterConfig)
	words []string
}

func withoutFD(o owned) (owned, client.RegisterConfig) {
	return o, client.RegisterConfig{Memory: o.Memory, FD: -1}
}

func withFD(o owned) (owned, client.RegisterConfig) { return o, o.Config() }

// mapFile creates a file in dir and maps it.
func mapFile(t *testing.T, dir string) owned {
	t.Helper()
	f, err := os.CreateTemp(dir, "railhead-test-ü-with a name that is longer than any name of a file should be, by far")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(f.Name()) })
	defer func() { _ = f.Close() }()
	if err := f.Truncate(2 * page); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return mapOwned(t, fd, 0, 2*page, unix.MAP_SHARED)
}

func unshareables() []unshareable {
	const size = 2 * page
	sealed := func(t *testing.T, seal int) owned {
		o := ownMemfd(t, size)
		if _, err := unix.FcntlInt(uintptr(o.FD), unix.F_ADD_SEALS, seal); err != nil {
			t.Fatal(err)
		}
		return o
	}
	return []unshareable{
		{"anonymous memory", func(t *testing.T) (owned, client.RegisterConfig) {
			return withoutFD(mapOwned(t, -1, 0, size, unix.MAP_PRIVATE))
		}, []string{"private memory", "malloc", "rh_window_alloc", "memfd"}},
		{"shared anonymous memory", func(t *testing.T) (owned, client.RegisterConfig) {
			return withoutFD(mapOwned(t, -1, 0, size, unix.MAP_SHARED))
		}, []string{"without a descriptor", "/dev/zero", "memfd"}},
		{"a private mapping of a memfd", func(t *testing.T) (owned, client.RegisterConfig) {
			return withoutFD(mapOwned(t, memfd(t, size, unix.MFD_ALLOW_SEALING), 0, size, unix.MAP_PRIVATE))
		}, []string{"private memory"}},
		{"a file of /dev/shm", func(t *testing.T) (owned, client.RegisterConfig) {
			return withoutFD(mapFile(t, "/dev/shm"))
		}, []string{"mapped from /dev/shm/railhead-test-??-with", "cut short", "memfd"}},
		{"a file of /dev/shm with its descriptor", func(t *testing.T) (owned, client.RegisterConfig) {
			return withFD(mapFile(t, "/dev/shm"))
		}, []string{"cut short", "memfd"}},
		{"a file", func(t *testing.T) (owned, client.RegisterConfig) {
			return withoutFD(mapFile(t, t.TempDir()))
		}, []string{"mapped from /", "cut short", "memfd"}},
		{"a file with its descriptor", func(t *testing.T) (owned, client.RegisterConfig) {
			return withFD(mapFile(t, t.TempDir()))
		}, []string{"cut short", "memfd"}},
		{"a memfd without seals", func(t *testing.T) (owned, client.RegisterConfig) {
			return withFD(mapOwned(t, memfd(t, size, 0), 0, size, unix.MAP_SHARED))
		}, []string{"cannot be sealed", "MFD_ALLOW_SEALING"}},
		{"a memfd whose seals are sealed", func(t *testing.T) (owned, client.RegisterConfig) {
			return withoutFD(sealed(t, unix.F_SEAL_SEAL))
		}, []string{"cannot be sealed", "MFD_ALLOW_SEALING"}},
		{"a memfd sealed against later writing", func(t *testing.T) (owned, client.RegisterConfig) {
			return withFD(sealed(t, unix.F_SEAL_FUTURE_WRITE))
		}, []string{"sealed against writing"}},
		{"a descriptor for reading", func(t *testing.T) (owned, client.RegisterConfig) {
			o := ownMemfd(t, size)
			fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", o.FD), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(o.FD)
			return withFD(owned{FD: fd, Memory: o.Memory})
		}, []string{"O_RDWR"}},
		{"a mapping for reading", func(t *testing.T) (owned, client.RegisterConfig) {
			o := ownMemfd(t, size)
			if err := unix.Mprotect(o.Memory, unix.PROT_READ); err != nil {
				t.Fatal(err)
			}
			return withoutFD(o)
		}, []string{"reading and writing"}},
		{"a memfd that is shorter than the mapping", func(t *testing.T) (owned, client.RegisterConfig) {
			return withFD(mapOwned(t, memfd(t, size-1, unix.MFD_ALLOW_SEALING), 0, size, unix.MAP_SHARED))
		}, []string{"ends at 8191", "ftruncate"}},
		{"two files side by side", func(t *testing.T) (owned, client.RegisterConfig) {
			o := ownMemfd(t, size)
			other := memfd(t, size, unix.MFD_ALLOW_SEALING)
			defer func() { _ = unix.Close(other) }()
			overlay(t, o.Memory[page:], other, page)
			return withoutFD(o)
		}, []string{"only the first 4096 of 8192 bytes are one consecutive part of one file", "each part by itself"}},
		{"a memfd with private memory behind it", func(t *testing.T) (owned, client.RegisterConfig) {
			o := ownMemfd(t, size)
			overlayPrivate(t, o.Memory[page:])
			return withoutFD(o)
		}, []string{"only the first 4096 of 8192 bytes are one consecutive part of one file", "each part by itself"}},
		{"pages of a file in another order", func(t *testing.T) (owned, client.RegisterConfig) {
			o := ownMemfd(t, size)
			overlay(t, o.Memory[page:], o.FD, 0)
			return withoutFD(o)
		}, []string{"only the first 4096 of 8192 bytes are one consecutive part"}},
	}
}

func TestUnshareableMemoryIsStagedOnAllRanksWithTheReason(t *testing.T) {
	s := startDaemon(t)
	for _, c := range unshareables() {
		t.Run(c.name, func(t *testing.T) {
			nothingLeaks(t, func() {
				ranks := formGroup(t, s, client.CommConfig{World: 3})
				bad, config := c.make(t)
				memory := []owned{ownMemfd(t, 2*page), bad, mapOwned(t, -1, 0, 2*page, unix.MAP_PRIVATE)}
				windows := registerAll(t, ranks, func(r int) client.RegisterConfig {
					if r == 1 {
						return config
					}
					return client.RegisterConfig{Memory: memory[r].Memory, FD: -1}
				})
				// Rank 2's memory cannot be shared either, but the lowest rank is named.
				wantSharing(t, windows, 1, append([]string{"rank 1: 0x"}, c.words...)...)
				all(t, ranks, func(m member) error {
					own, err := windows[m.Rank()].Local()
					if err == nil && &own[0] != &memory[m.Rank()].Memory[0] {
						err = fmt.Errorf("rank %d's part of the window is not its memory", m.Rank())
					}
					return err
				})
				_, err := windows[0].Peer(2)
				wantError(t, err, wire.ResultUnsupported, "window_pointer: rank 0", "rank 2", "staged", c.words[0])
				freeAll(t, ranks, windows)
				for _, o := range memory {
					o.Release()
				}
				all(t, ranks, finalize)
				all(t, ranks, closeSession)
			})
		})
	}
}

// A process with sufficient rights can open a closed memfd again through the mapping.
func TestAClosedMemfdIsSharedIfTheKernelAllowsToOpenIt(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2})
	closed, open := ownMemfd(t, page), ownMemfd(t, page)
	defer open.Release()
	_ = unix.Close(closed.FD)
	closed.FD = -1
	defer closed.Release()
	memory := []owned{open, closed}
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })
	if s, err := windows[0].Sharing(); err != nil || s.ZeroCopy {
		wantSharing(t, windows, -1)
		seesAllStores(t, ranks, windows, func(r int) []byte { return memory[r].Memory })
	} else {
		wantSharing(t, windows, 1, "rank 1: 0x", "not open in this process", "keep its fd open")
	}
	freeAll(t, ranks, windows)
}

// Without a descriptor from the caller the library looks for one of the same file. Another thread may reuse its number for another file
// between the look and the duplication. The library seals what it shares, so it must not have sealed that file.
func TestADescriptorWhoseNumberIsReusedIsNotTakenForTheMemorys(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 1})
	o, other := ownMemfd(t, page), memfd(t, page, unix.MFD_ALLOW_SEALING)
	defer o.Release()
	defer func() { _ = unix.Close(other) }()
	again, err := unix.FcntlInt(uintptr(o.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(again) }()
	stop, stopped := make(chan bool), make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err = unix.Dup3(other, o.FD, unix.O_CLOEXEC); err == nil {
				err = unix.Dup3(again, o.FD, unix.O_CLOEXEC)
			}
		}
		stopped <- err
	}()
	for range deep.Rounds(t, 300, 3000) {
		windows := registerAll(t, ranks, func(int) client.RegisterConfig { return client.RegisterConfig{Memory: o.Memory, FD: -1} })
		freeAll(t, ranks, windows)
		if seals, err := unix.FcntlInt(uintptr(other), unix.F_GET_SEALS, 0); err != nil || seals != 0 {
			t.Errorf("the other file has seals %#x, %v", seals, err)
			break
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

//go:build linux

package symm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const mib = 1 << 20

// newSegment returns a segment that is named after the test, so that openFDs
// does not count those of other tests. The test holds its one reference.
func newSegment(t *testing.T, size uint64) *Segment {
	t.Helper()
	s, err := NewSegment(t.Name(), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for s.Release() == nil {
		}
	})
	return s
}

// openFDs counts the descriptors of this process that are the named memfd.
func openFDs(t *testing.T, name string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, entry := range entries {
		// The descriptor of this listing is closed by now, so an error is ignored.
		link, _ := os.Readlink("/proc/self/fd/" + entry.Name())
		if strings.HasPrefix(link, "/memfd:"+name+" ") {
			count++
		}
	}
	return count
}

func committed(t *testing.T, s *Segment) uint64 {
	t.Helper()
	bytes, err := s.Committed()
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestSealsHoldForAnotherOpenerOfTheSegment(t *testing.T) {
	s := newSegment(t, 4*mib)
	other, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", s.FD()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fd := int(other.Fd())

	for name, err := range map[string]error{
		"shrink":               unix.Ftruncate(fd, 4*mib-4096),
		"truncate to zero":     unix.Ftruncate(fd, 0),
		"grow":                 unix.Ftruncate(fd, 5*mib),
		"fallocate at the end": unix.Fallocate(fd, 0, 4*mib, mib),
		"seal against writes":  addSeal(fd, unix.F_SEAL_FUTURE_WRITE),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v, want EPERM", name, err)
		}
	}
	info, err := other.Stat()
	if err != nil || info.Size() != 4*mib {
		t.Errorf("size is %d, %v; want %d", info.Size(), err, 4*mib)
	}
	if _, err := other.WriteAt([]byte{1}, 4*mib-1); err != nil {
		t.Errorf("writing the last byte: %v; the seals must not stop stores", err)
	}
}

func addSeal(fd, seal int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
	return err
}

func TestASegmentIsNotInheritedAcrossExec(t *testing.T) {
	flags, err := unix.FcntlInt(uintptr(newSegment(t, mib).FD()), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v; want FD_CLOEXEC", flags, err)
	}
}

func TestReserving64GiBAndMappingThemCostsNoMemory(t *testing.T) {
	const size = 64 << 30
	s := newSegment(t, size)
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	if got := committed(t, s); got != 0 {
		t.Errorf("%d bytes committed, want 0", got)
	}
	*m.Word64(size - 8) = 7
	// One page; 2 MiB where shared memory has huge pages.
	if got := committed(t, s); got == 0 || got > 2*mib {
		t.Errorf("%d bytes committed after one store, want one page", got)
	}
	if s.Size() != size || s.Name() != t.Name() {
		t.Errorf("segment is %q of %d bytes", s.Name(), s.Size())
	}
}

// Ranges are multiples of 2 MiB, so that the counts are exact with huge pages.
func TestCommittedFollowsAModelOfCommitAndDecommit(t *testing.T) {
	const pieces, piece = 8, 2 * mib
	rapid.Check(t, func(rt *rapid.T) {
		s, err := NewSegment(t.Name(), pieces*piece)
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Release()
		var model [pieces]bool
		for range rapid.IntRange(1, 12).Draw(rt, "calls") {
			lo := rapid.IntRange(0, pieces-1).Draw(rt, "first piece")
			hi := rapid.IntRange(lo+1, pieces).Draw(rt, "end piece")
			call, commit := s.Decommit, rapid.Bool().Draw(rt, "commit")
			if commit {
				call = s.Commit
			}
			if err := call(uint64(lo)*piece, uint64(hi-lo)*piece); err != nil {
				rt.Fatal(err)
			}
			for i := lo; i < hi; i++ {
				model[i] = commit
			}
			want := uint64(0)
			for _, is := range model {
				if is {
					want += piece
				}
			}
			if got, err := s.Committed(); err != nil || got != want {
				rt.Fatalf("Committed() = %d, %v; want %d for %v", got, err, want, model)
			}
		}
	})
}

func TestHasDataFindsPagesWithoutCommittingAny(t *testing.T) {
	const step = 4 * mib // no page is larger
	s := newSegment(t, 4*step)
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	has := func(offset, bytes uint64) bool {
		t.Helper()
		ok, err := s.HasData(offset, bytes)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if has(0, 4*step) || committed(t, s) != 0 {
		t.Errorf("a new segment has data, or %d bytes of memory", committed(t, s))
	}
	*m.Word64(2*step + 8) = 1
	before := committed(t, s)
	for _, c := range []struct {
		offset, bytes uint64
		want          bool
	}{
		{0, 4 * step, true}, {0, 2 * step, false}, {2 * step, 16, true}, {step, step + 16, true}, {3 * step, step, false}, {4*step - 1, 1, false},
	} {
		if got := has(c.offset, c.bytes); got != c.want {
			t.Errorf("data of %d bytes at %d: %t", c.bytes, c.offset, got)
		}
	}
	if now := committed(t, s); now != before {
		t.Errorf("the segment had %d bytes of memory, has %d", before, now)
	}
	if err := s.Decommit(2*step, step); err != nil || has(0, 4*step) {
		t.Errorf("there is data after Decommit (%v)", err)
	}
	for _, c := range []struct{ offset, bytes uint64 }{{0, 0}, {4 * step, 1}, {step, 4 * step}, {8, math.MaxUint64}, {math.MaxUint64, 8}} {
		if _, err := s.HasData(c.offset, c.bytes); err == nil {
			t.Errorf("HasData(%d, %d) succeeded", c.offset, c.bytes)
		}
	}
}

func TestCommitKeepsContentsAndDecommitZeroesOnlyItsRange(t *testing.T) {
	page := uint64(os.Getpagesize())
	s := newSegment(t, 4*page)
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	for i := range uint64(4) {
		*m.Word64(i * page) = i + 1
	}
	if err := s.Commit(0, 4*page); err != nil {
		t.Fatal(err)
	}
	if err := s.Decommit(page, 2*page); err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{1, 0, 0, 4} {
		if got := *m.Word64(uint64(i) * page); got != want {
			t.Errorf("page %d holds %d, want %d", i, got, want)
		}
	}
}

func TestCommitAndDecommitRefuseRangesBeforeAnySideEffect(t *testing.T) {
	page := uint64(os.Getpagesize())
	s := newSegment(t, 4*page)
	if err := s.Commit(0, page); err != nil {
		t.Fatal(err)
	}
	before := committed(t, s)
	for _, c := range []struct{ offset, bytes uint64 }{
		{0, 0}, {1, page}, {0, page + 1}, {0, page / 2}, {0, 5 * page}, {4 * page, page}, {3 * page, 2 * page},
		{5 * page, page}, {page, math.MaxUint64 - page + 1}, {math.MaxUint64 - page + 1, page},
		{math.MaxUint64 - page + 1, 2 * page}, {1 << 63, page},
	} {
		if err := s.Commit(c.offset, c.bytes); err == nil {
			t.Errorf("Commit(%d, %d) succeeded", c.offset, c.bytes)
		}
		if err := s.Decommit(c.offset, c.bytes); err == nil {
			t.Errorf("Decommit(%d, %d) succeeded", c.offset, c.bytes)
		}
	}
	if got := committed(t, s); got != before || got == 0 {
		t.Errorf("%d bytes committed, want the %d from before", got, before)
	}
}

func TestNewSegmentRefusesInvalidNamesAndSizes(t *testing.T) {
	page := uint64(os.Getpagesize())
	for _, c := range []struct {
		name string
		size uint64
	}{
		{"", page}, {strings.Repeat("n", maxSegmentName+1), page}, {"a\x00b", page},
		{"n", 0}, {"n", page - 1}, {"n", page + 1}, {"n", MaxSegmentBytes + page}, {"n", math.MaxUint64 - page + 1},
	} {
		if s, err := NewSegment(c.name, c.size); err == nil || s != nil {
			t.Errorf("NewSegment(%.20q, %d) = %v, %v; want an error", c.name, c.size, s, err)
		}
	}
	longest, err := NewSegment(strings.Repeat("n", maxSegmentName), page)
	if err != nil {
		t.Fatalf("the longest name that is allowed: %v", err)
	}
	if err := longest.Release(); err != nil {
		t.Error(err)
	}
}

func TestTheDescriptorIsClosedAtTheLastReleaseAndNotBefore(t *testing.T) {
	s := newSegment(t, mib)
	if err := s.Retain(); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if n := openFDs(t, t.Name()); n != 1 || s.FD() < 0 {
		t.Fatalf("%d descriptors open and FD() = %d with a reference left, want 1", n, s.FD())
	}
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if n := openFDs(t, t.Name()); n != 0 || s.FD() != -1 {
		t.Fatalf("%d descriptors open and FD() = %d after the last Release, want 0 and -1", n, s.FD())
	}
}

func TestAReleasedSegmentRefusesEverything(t *testing.T) {
	page := uint64(os.Getpagesize())
	s := newSegment(t, page)
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	_, committedErr := s.Committed()
	_, dataErr := s.HasData(0, page)
	_, mapErr := s.Map()
	for name, err := range map[string]error{
		"Release": s.Release(), "Retain": s.Retain(), "Commit": s.Commit(0, page),
		"Decommit": s.Decommit(0, page), "Committed": committedErr, "HasData": dataErr, "Map": mapErr,
	} {
		if !errors.Is(err, ErrReleased) {
			t.Errorf("%s: %v, want ErrReleased", name, err)
		}
	}
}

func TestTheLastReleaseWaitsForAnOperationThatUsesTheDescriptor(t *testing.T) {
	s := newSegment(t, mib)
	err := s.withFD(func(fd int) error {
		if err := s.Release(); err != nil {
			return err
		}
		if s.FD() != -1 {
			t.Errorf("FD() = %d with no reference, want -1", s.FD())
		}
		if err := s.Retain(); !errors.Is(err, ErrReleased) {
			t.Errorf("Retain with no reference: %v, want ErrReleased", err)
		}
		var stat unix.Stat_t
		return unix.Fstat(fd, &stat) // EBADF if it had been closed
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := openFDs(t, t.Name()); n != 0 {
		t.Errorf("%d descriptors open after the operation, want 0", n)
	}
}

func TestAnySchedulingOfUsersAndReleasesLeavesNoDescriptor(t *testing.T) {
	page := uint64(os.Getpagesize())
	const users, rounds = 8, 50
	for range rounds {
		s := newSegment(t, users*page)
		var done sync.WaitGroup
		for i := range uint64(users) {
			done.Go(func() {
				if err := s.Retain(); err == nil {
					defer s.Release()
				}
				_, committedErr := s.Committed()
				for _, err := range []error{s.Commit(i*page, page), committedErr, s.Decommit(i*page, page)} {
					if err != nil && !errors.Is(err, ErrReleased) {
						t.Error(err)
					}
				}
			})
		}
		if err := s.Release(); err != nil {
			t.Error(err)
		}
		done.Wait()
		if n := openFDs(t, t.Name()); n != 0 {
			t.Fatalf("%d descriptors open after all have released, want 0", n)
		}
	}
}

//go:build linux

package symm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// newMapping maps s until the test ends.
func newMapping(t *testing.T, s *Segment) *Mapping {
	t.Helper()
	m, err := s.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unmap() }) // the test may have unmapped it
	return m
}

func TestTwoMappingsSeeTheSameMemoryAtDifferentAddresses(t *testing.T) {
	s := newSegment(t, mib)
	a, b := newMapping(t, s), newMapping(t, s)
	if a.Word64(0) == b.Word64(0) {
		t.Fatal("both mappings have the same address")
	}
	atomic.StoreUint64(a.Word64(mib-8), 0x1122334455667788)
	if got := atomic.LoadUint64(b.Word64(mib - 8)); got != 0x1122334455667788 {
		t.Errorf("the other mapping holds %#x", got)
	}
	copy(b.Bytes(100, 5), "hello")
	if got := a.Bytes(100, 5); !bytes.Equal(got, []byte("hello")) {
		t.Errorf("the other mapping holds %q", got)
	}
}

func TestAtomicsThroughDifferentMappingsLoseNoUpdate(t *testing.T) {
	const goroutines, rounds = 4, 5000
	s := newSegment(t, mib)
	var done sync.WaitGroup
	for range goroutines {
		m := newMapping(t, s)
		done.Go(func() {
			for range rounds {
				atomic.AddUint32(m.Word32(4), 1)
				atomic.AddUint64(m.Word64(8), 1)
			}
		})
	}
	done.Wait()
	m := newMapping(t, s)
	if a, b := *m.Word32(4), *m.Word64(8); a != goroutines*rounds || b != goroutines*rounds {
		t.Errorf("counted %d and %d, want %d", a, b, goroutines*rounds)
	}
}

func TestWordsAndBytesAreGivenExactlyWhenAlignedAndWithin(t *testing.T) {
	size := uint64(os.Getpagesize())
	m := newMapping(t, newSegment(t, size))
	anywhere := rapid.OneOf(
		rapid.Uint64Range(0, 2*size), rapid.Uint64Range(size-16, size+16), rapid.Uint64Range(math.MaxUint64-16, math.MaxUint64),
	)
	rapid.Check(t, func(t *rapid.T) {
		off, n, value := anywhere.Draw(t, "offset"), anywhere.Draw(t, "bytes"), rapid.Uint64().Draw(t, "value")
		if p := m.Word32(off); (p != nil) != (off%4 == 0 && off < size) {
			t.Fatalf("Word32(%d) = %p", off, p)
		} else if p != nil {
			*p = uint32(value)
			if got := binary.NativeEndian.Uint32(m.Bytes(off, 4)); got != uint32(value) {
				t.Fatalf("Word32(%d) is not at its offset: stored %#x, bytes hold %#x", off, uint32(value), got)
			}
		}
		if p := m.Word64(off); (p != nil) != (off%8 == 0 && off < size) {
			t.Fatalf("Word64(%d) = %p", off, p)
		} else if p != nil {
			*p = value
			if got := binary.NativeEndian.Uint64(m.Bytes(off, 8)); got != value {
				t.Fatalf("Word64(%d) is not at its offset: stored %#x, bytes hold %#x", off, value, got)
			}
		}
		within := off <= size && n <= size-off
		if b := m.Bytes(off, n); (b != nil) != within || (within && (uint64(len(b)) != n || uint64(cap(b)) != n)) {
			t.Fatalf("Bytes(%d, %d) has %d bytes, capacity %d", off, n, len(b), cap(b))
		}
	})
}

func TestAMappingOutlivesTheSegment(t *testing.T) {
	s := newSegment(t, mib)
	m := newMapping(t, s)
	*m.Word32(0) = 42
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if got := *m.Word32(0); got != 42 {
		t.Errorf("holds %d, want 42", got)
	}
}

func TestAnUnmappedMappingGivesNothingAndCannotBeUnmappedAgain(t *testing.T) {
	m := newMapping(t, newSegment(t, mib))
	if err := m.Unmap(); err != nil {
		t.Fatal(err)
	}
	if m.Word32(0) != nil || m.Word64(0) != nil || m.Bytes(0, 1) != nil {
		t.Error("an unmapped mapping still gives memory")
	}
	if err := m.Unmap(); !errors.Is(err, ErrReleased) {
		t.Errorf("the second Unmap: %v, want ErrReleased", err)
	}
}

func TestUnmapRacingWithUnmapSucceedsOnce(t *testing.T) {
	for range 50 {
		m := newMapping(t, newSegment(t, mib))
		var succeeded atomic.Int32
		var done sync.WaitGroup
		for range 4 {
			done.Go(func() {
				m.Bytes(0, 1)
				if m.Unmap() == nil {
					succeeded.Add(1)
				}
			})
		}
		done.Wait()
		if n := succeeded.Load(); n != 1 {
			t.Fatalf("%d calls of Unmap succeeded, want 1", n)
		}
	}
}

package wire

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/internal/rank"
)

func TestPartsLieInsideTheSegmentWithoutOverlap(t *testing.T) {
	for local := 1; local <= rank.MaxPerNode; local++ {
		p, bytes := layOut(local)
		if err := p.Check(local, bytes); err != nil || bytes != ControlBytes(local) || bytes > MaxControl {
			t.Fatalf("%d ranks: %d bytes: %v", local, bytes, err)
		}
		needs := p.need(local)
		slices.SortFunc(needs, func(a, b struct {
			name string
			part *Part
			need Part
		}) int {
			return int(a.part.Offset) - int(b.part.Offset)
		})
		end := uint64(0)
		for _, n := range needs {
			if n.part.Offset < end {
				t.Errorf("%d ranks: the %s begin at %d, before %d", local, n.name, n.part.Offset, end)
			}
			end = n.part.Offset + n.part.Bytes()
		}
	}
}

func TestLargerPartsOfALaterVersionAreAccepted(t *testing.T) {
	p, _ := layOut(3)
	p.Lines.Stride += 64
	p.Regions.Count += 1000
	p.Counters.Offset += 1 << 20
	p.Regions.Offset += 1 << 24
	p.Windows.Offset += 1 << 25
	if err := p.Check(3, 1<<26); err != nil {
		t.Error(err)
	}
	if got, want := p.Lines.At(2), p.Lines.Offset+2*(rankLineBytes+64); got != want {
		t.Errorf("line 2 at %d, want %d", got, want)
	}
}

// Words of an element that began at half a word could not be loaded and stored atomically.
func TestPartsWithElementsThatAreNoWholeWordsAreRefused(t *testing.T) {
	for i := range (&Parts{}).need(3) {
		p, bytes := layOut(3)
		n := p.need(3)[i]
		n.part.Stride += 4
		if err := p.Check(3, 2*bytes); err == nil || !strings.Contains(err.Error(), n.name) {
			t.Errorf("%s of %d bytes each: %v", n.name, n.part.Stride, err)
		}
	}
}

// Parts that pass Check stay inside the segment, whatever another process has written.
func TestPartsThatPassCheckLieInTheSegment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		local := rapid.IntRange(1, rank.MaxPerNode).Draw(t, "local")
		p, bytes := layOut(local)
		parts := p.need(local)
		n := parts[rapid.IntRange(0, len(parts)-1).Draw(t, "which")]
		switch rapid.IntRange(0, 2).Draw(t, "field") {
		case 0:
			n.part.Offset = rapid.Uint64().Draw(t, "offset")
		case 1:
			n.part.Count = rapid.Uint32().Draw(t, "count")
		default:
			n.part.Stride = rapid.Uint32().Draw(t, "stride")
		}
		err := p.Check(local, bytes)
		last := uint64(n.need.Count-1)*uint64(n.part.Stride) + uint64(n.need.Stride)
		inside := n.part.Offset >= segmentUnit && n.part.Offset <= bytes && last <= bytes-n.part.Offset
		if err == nil && !inside {
			t.Fatalf("%s of %+v in %d bytes", n.name, *n.part, bytes)
		}
		if err != nil && !strings.Contains(err.Error(), n.name) {
			t.Fatalf("%v does not name the %s", err, n.name)
		}
	})
}

func TestWindowWordRoundTrips(t *testing.T) {
	l := Ledger{Memory: [MaxMemories]Memory{{MemoryCPU, 64 << 10}, {}, {7, 2 << 20}}}
	rapid.Check(t, func(t *rapid.T) {
		memory := rapid.SampledFrom([]uint32{0, 2}).Draw(t, "memory")
		g := uint64(l.Memory[memory].Granularity)
		offset, bytes := g*rapid.Uint64Range(0, 1<<28-1).Draw(t, "offset"), g*rapid.Uint64Range(1, 1<<28-1).Draw(t, "bytes")
		word, err := l.WindowEntry(offset, bytes, memory)
		if err != nil {
			t.Fatal(err)
		}
		if o, b, m, ok := l.ParseWindowEntry(word); !ok || o != offset || b != bytes || m != memory {
			t.Fatalf("%d bytes at %d of memory %d became %d at %d of %d, %t", bytes, offset, memory, b, o, m, ok)
		}
	})
	for _, bad := range [][3]uint64{{0, 0, 0}, {1, 64 << 10, 0}, {0, 4096, 0}, {0, 64 << 10, 1}, {0, 64 << 10, 4}, {64 << 38, 64 << 10, 0}, {0, 64 << 38, 0}} {
		if w, err := l.WindowEntry(bad[0], bad[1], uint32(bad[2])); err == nil {
			t.Errorf("%v became %#x", bad, w)
		}
	}
	for _, none := range []uint64{0, 1 << 28, 1 | 1<<56, 1 | MaxMemories<<56, 1 | 255<<56} {
		if _, _, _, ok := l.ParseWindowEntry(none); ok {
			t.Errorf("%#x reads as a window", none)
		}
	}
}

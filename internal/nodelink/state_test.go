package nodelink

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSmallMessagesTakeTurnsWithLargeOnes(t *testing.T) {
	q := queue{limit: 100, waiting: map[*outgoing]struct{}{}}
	large := &outgoing{total: 3 * PieceBytes, payload: [][]byte{make([]byte, 3*PieceBytes)}}
	small := &outgoing{total: PieceBytes, payload: [][]byte{make([]byte, PieceBytes)}}
	for _, m := range []*outgoing{large, small} {
		if err := q.put(m); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []*outgoing{large, small, large, large} {
		var b batch
		q.takePieces(&b)
		if len(b.frames) != 1 || b.frames[0].message != want {
			t.Fatalf("turn %d is another message's", i)
		}
		if whole := q.written(want); whole != (want == small || i == 3) {
			t.Errorf("turn %d: written in whole: %t", i, whole)
		}
	}
	if len(q.waiting) != 0 || q.withPayload != 0 || q.turns.count != 0 || q.large != 1 {
		t.Errorf("%+v", q)
	}
}

// A peer whose frames are written in any order, and taken when they are whole, gets each byte of each message once.
func TestAQueueSendsEachByteOnceAndAReceiverTakesIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queue{limit: 1000, waiting: map[*outgoing]struct{}{}}
		a := assembly{open: map[uint64]*incoming{}}
		memory := make([]byte, 3*PieceBytes)
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, PieceBytes, PieceBytes + 1, 3 * PieceBytes}), 1, 150).Draw(t, "sizes")
		control := 0
		for i, n := range sizes {
			if err := q.put(&outgoing{kind: uint16(i), total: int64(n), payload: [][]byte{memory[:n/2], nil, memory[n/2 : n]}}); err != nil {
				t.Fatal(err)
			}
		}
		got, last, begun := make([]int, len(sizes)), -1, map[uint64]int{}
		for len(q.waiting) > 0 {
			var b batch
			if control++; control%2 == 0 {
				q.takeControl(&b)
			} else {
				q.takePieces(&b)
			}
			if len(b.frames) > maxBatch || b.bytes > 2*PieceBytes {
				t.Fatalf("a batch of %d frames, %d bytes", len(b.frames), b.bytes)
			}
			for _, f := range b.frames {
				i, sum := int(f.message.kind), 0
				for _, s := range b.slices[f.from:f.to] {
					sum += len(s)
				}
				if sum != int(f.head.piece) {
					t.Fatalf("%d bytes, the head says %d", sum, f.head.piece)
				}
				got[i] += sum
				if f.head.frame == frameMessage {
					if i <= last {
						t.Fatalf("message %d comes after %d", i, last)
					}
					last = i
				}
				var head [headBytes]byte
				f.head.encode(head[:], nil)
				if _, err := decodeHead(head[:], limits{control: control%2 == 0, maxPayload: 3 * PieceBytes}); err != nil {
					t.Fatal(err)
				}
				if sizes[i] > PieceBytes {
					receive(t, &a, &q, f.head, begun)
				}
				q.written(f.message)
			}
		}
		for i, n := range sizes {
			if got[i] != n {
				t.Fatalf("message %d: %d bytes of %d", i, got[i], n)
			}
		}
		if len(a.open) != 0 || q.large != 0 {
			t.Fatalf("%d are open, %d not taken", len(a.open), q.large)
		}
	})
}

// receive takes a piece of a message of several.
func receive(t *rapid.T, a *assembly, q *queue, h head, begun map[uint64]int) {
	if h.frame == frameFirst {
		if err := a.begin(h.number); err != nil {
			t.Fatal(err)
		}
		in := newIncoming(h, nil)
		if err := in.claim(0, h.piece); err != nil {
			t.Fatal(err)
		}
		a.placed(h.number, in)
		a.arrived(h.number, in, nil)
		begun[h.number] = int(h.position) - int(h.piece)
		return
	}
	in, err := a.claim(h)
	if err != nil || in == nil {
		t.Fatal(in, err)
	}
	begun[h.number] -= int(h.piece)
	if whole := a.arrived(h.number, in, nil); whole != (begun[h.number] == 0) {
		t.Fatalf("message %d is whole: %t, and %d bytes are missing", h.number, whole, begun[h.number])
	} else if whole {
		if err := q.taken(1); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLargeMessagesWaitUntilThePeerHasTakenEarlierOnes(t *testing.T) {
	q := queue{limit: 1000, waiting: map[*outgoing]struct{}{}}
	payload := [][]byte{make([]byte, PieceBytes+1)}
	for range maxLarge + 2 {
		if err := q.put(&outgoing{total: PieceBytes + 1, payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	begun := func() (n int) {
		for q.turns.count > 0 {
			var b batch
			q.takePieces(&b)
			for _, f := range b.frames {
				if f.head.frame == frameFirst {
					n++
				}
			}
		}
		return n
	}
	if n := begun(); n != maxLarge {
		t.Errorf("%d were begun, not %d", n, maxLarge)
	}
	if err := q.taken(1); err != nil || begun() != 1 {
		t.Errorf("none more was begun, or too many: %v", err)
	}
	if err := q.taken(maxLarge + 1); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
}

func TestAPingIsAnsweredOrThePeerIsLost(t *testing.T) {
	for _, c := range []struct {
		ping, dead time.Duration
		ticks      int
	}{{time.Second, 3 * time.Second, 3}, {time.Second, 2500 * time.Millisecond, 3}, {time.Second, 2 * time.Second, 2}} {
		limit := patience(Config{Ping: c.ping, Dead: c.dead})
		if limit != c.ticks {
			t.Fatalf("%v: %d ticks", c, limit)
		}
		var w watch
		for number := uint64(1); number < 4; number++ { // the answer comes at the last moment
			if ping, lost := w.tick(limit); !ping || lost || w.number != number {
				t.Fatal(ping, lost, w)
			}
			for range limit - 1 {
				if ping, lost := w.tick(limit); ping || lost {
					t.Fatal(ping, lost, w)
				}
			}
			if err := w.pong(number + 1); !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
			if err := w.pong(number); err != nil {
				t.Error(err)
			}
			if err := w.pong(number); !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
		}
		w.tick(limit)
		for i := range limit {
			if _, lost := w.tick(limit); lost != (i == limit-1) {
				t.Errorf("%v: lost %t after %d ticks", c, lost, i+1)
			}
		}
	}
}

// Whatever pieces come: none is read twice, none beyond its payload, and a message is whole when all have arrived.
func FuzzAssembly(f *testing.F) {
	f.Add([]byte{0, 1, 2}, uint8(2))
	f.Fuzz(func(t *testing.T, pieces []byte, size uint8) {
		total := uint64(size)*PieceBytes/2 + PieceBytes + 1
		n := int((total + PieceBytes - 1) / PieceBytes)
		a := assembly{open: map[uint64]*incoming{}}
		if err := a.begin(1); err != nil {
			t.Fatal(err)
		}
		if in, err := a.claim(head{number: 1}); in != nil || err != nil {
			t.Fatal("a piece was read before its message had a place")
		}
		a.placed(1, newIncoming(head{position: total}, nil))
		seen := map[int]bool{}
		for _, p := range pieces {
			i := int(p)
			position := uint64(i) * PieceBytes
			length := uint32(PieceBytes)
			if position < total {
				length = uint32(min(PieceBytes, total-position))
			}
			in, err := a.claim(head{number: 1, position: position, piece: length})
			if ok := i < n && !seen[i]; ok != (err == nil) {
				t.Fatalf("piece %d of %d, seen %t: %v", i, n, seen[i], err)
			}
			if err != nil {
				continue
			}
			seen[i] = true
			if whole := a.arrived(1, in, nil); whole != (len(seen) == n) {
				t.Fatalf("%d of %d pieces: whole %t", len(seen), n, whole)
			} else if whole {
				return
			}
		}
	})
}

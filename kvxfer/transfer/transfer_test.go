package transfer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// three is a transfer of three pieces of 100 bytes, two in flight at once, at least 100 bytes in 10 ns, done by 1000.
func three(t *testing.T) *Transfer {
	t.Helper()
	bytes := []uint64{100, 100, 100}
	x, err := New(bytes, Options{Deadline: 1000, Interval: 10, Progress: 100, Window: 2})
	if err != nil {
		t.Fatal(err)
	}
	clear(bytes) // the caller's
	return x
}

// transcript plays steps such as "next 5", "arrive 0 7", and checks what the transfer is after each: "step -> state".
func transcript(t *testing.T, x *Transfer, steps ...string) {
	t.Helper()
	for n, line := range steps {
		step, want, _ := strings.Cut(line, " -> ")
		var name string
		var a, b int
		fmt.Sscanf(step, "%s %d %d", &name, &a, &b)
		got := ""
		switch name {
		case "next":
			if i, ok := x.Next(int64(a)); ok {
				got = fmt.Sprintf("piece %d, ", i)
			}
		case "arrive":
			x.Arrive(a, int64(b))
		case "refuse":
			x.Refuse(a, ErrStale)
		case "drop":
			x.Drop(a, ErrPath)
		case "lose":
			x.Lose()
		case "cancel":
			x.Cancel()
		case "tick":
			x.Tick(int64(a))
		default:
			t.Fatalf("step %q", step)
		}
		got += x.State().String()
		for _, why := range []error{ErrDeadline, ErrStalled, ErrCancelled, ErrPath, ErrRefused, ErrStale} {
			if errors.Is(x.Err(), why) {
				got += ": " + why.Error()
			}
		}
		if x.Done() {
			got += ", done"
		}
		if got != want {
			t.Fatalf("line %d, %s: %s, want %s", n+1, step, got, want)
		}
	}
}

func TestTranscripts(t *testing.T) {
	deadline, stalled, cancelled, path, stale := ": "+ErrDeadline.Error(), ": "+ErrStalled.Error(), ": "+ErrCancelled.Error(), ": "+ErrPath.Error(), ": "+ErrStale.Error()
	for _, c := range []struct {
		name  string
		steps []string
		left  []int
	}{
		{"all arrive, in any order", []string{
			"tick 500 -> posted", "next 600 -> piece 0, running", "next 600 -> piece 1, running", "next 600 -> running", "arrive 1 605 -> running",
			"next 606 -> piece 2, running", "arrive 2 607 -> running", "arrive 0 608 -> ended, done", "next 609 -> ended, done", "tick 2000 -> ended, done",
			"cancel -> ended, done", "lose -> ended, done",
		}, nil},
		{"the deadline, before anything began", []string{"next 999 -> piece 0, running", "tick 1000 -> ending" + deadline, "arrive 0 1001 -> ended" + deadline}, []int{1, 2}},
		{"the deadline of one that never began", []string{"tick 999 -> posted", "next 1000 -> ended" + deadline}, []int{0, 1, 2}},
		{"what arrives late does not make it done", []string{
			"next 1 -> piece 0, running", "next 1 -> piece 1, running", "arrive 0 2 -> running", "next 2 -> piece 2, running", "cancel -> ending" + cancelled,
			"next 3 -> ending" + cancelled, "arrive 1 3 -> ending" + cancelled, "arrive 2 3 -> ended" + cancelled,
		}, nil},
		{"the last piece arrives at the deadline", []string{
			"next 991 -> piece 0, running", "next 991 -> piece 1, running", "arrive 0 992 -> running", "next 993 -> piece 2, running", "arrive 1 994 -> running", "arrive 2 1000 -> ended, done",
		}, nil},
		{"a stopped peer", []string{
			"next 100 -> piece 0, running", "next 100 -> piece 1, running", "tick 109 -> running", "arrive 0 109 -> running", "tick 110 -> running", "tick 119 -> running",
			"tick 120 -> ending" + stalled, "lose -> ended" + stalled,
		}, []int{1, 2}},
		{"the path is lost", []string{"next 1 -> piece 0, running", "next 1 -> piece 1, running", "arrive 1 2 -> running", "lose -> ended" + path, "arrive 0 3 -> ended" + path}, []int{0, 2}},
		{"a piece is dropped", []string{"next 1 -> piece 0, running", "next 1 -> piece 1, running", "drop 0 -> ending" + path, "drop 0 -> ending" + path, "arrive 1 2 -> ended" + path}, []int{0, 2}},
		{"a refused piece stops no other", []string{
			"next 1 -> piece 0, running", "next 1 -> piece 1, running", "refuse 0 -> running" + stale, "next 2 -> piece 2, running" + stale, "arrive 1 3 -> running" + stale,
			"arrive 2 4 -> ended" + stale,
		}, []int{0}},
		{"the last piece is refused", []string{
			"next 1 -> piece 0, running", "next 1 -> piece 1, running", "arrive 0 2 -> running", "next 2 -> piece 2, running", "arrive 1 3 -> running", "refuse 2 -> ended" + stale,
		}, []int{2}},
		{"a refusal, then the deadline: the first reason counts", []string{
			"next 995 -> piece 0, running", "next 995 -> piece 1, running", "refuse 0 -> running" + stale, "tick 1000 -> ending" + stale, "refuse 1 -> ended" + stale,
		}, []int{0, 1, 2}},
		{"cancelled before it began", []string{"cancel -> ended" + cancelled, "cancel -> ended" + cancelled}, []int{0, 1, 2}},
		{"said twice", []string{"next 1 -> piece 0, running", "arrive 0 2 -> running", "arrive 0 3 -> running", "refuse 0 -> running", "arrive 2 3 -> running", "arrive 7 3 -> running", "arrive -1 3 -> running"}, []int{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := three(t)
			transcript(t, x, c.steps...)
			if got := x.Missing(); !slices.Equal(got, c.left) {
				t.Errorf("%v are missing, want %v", got, c.left)
			}
		})
	}
}

func TestAnErrorNamesHowFarTheTransferWas(t *testing.T) {
	x := three(t)
	transcript(t, x, "next 1 -> piece 0, running", "next 1 -> piece 1, running", "arrive 1 2 -> running", "cancel -> ending: "+ErrCancelled.Error())
	if got := x.Err().Error(); !strings.HasPrefix(got, "KV transfer: 1 of 3 pieces have arrived, 1 are in flight: ") {
		t.Error(got)
	}
	x = three(t)
	x.Next(1)
	x.Refuse(0, fmt.Errorf("block 7: %w", ErrStale))
	if got := x.Err().Error(); !strings.HasPrefix(got, "KV transfer: piece 0 of 3: block 7: ") {
		t.Error(got)
	}
}

func TestTransfersWithoutAnEndAreRefused(t *testing.T) {
	good := Options{Deadline: 1, Interval: 1, Progress: 1, Window: 1}
	for _, c := range []struct {
		bytes  []uint64
		change func(*Options)
		want   string
	}{
		{nil, func(*Options) {}, "no pieces"},
		{[]uint64{1}, func(o *Options) { o.Window = 0 }, "0 pieces in flight at once"},
		{[]uint64{1}, func(o *Options) { o.Interval = 0 }, "1 bytes in 0 ns"},
		{[]uint64{1}, func(o *Options) { o.Progress = 0 }, "0 bytes in 1 ns"},
	} {
		o := good
		c.change(&o)
		if _, err := New(c.bytes, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// Whatever happens in whatever order, a piece begins once and not after the transfer has failed; the first reason stays; the transfer has
// ended only if nothing is in flight; it is done only if all has arrived; and time alone, with what is in flight lost, ends it.
func TestNoTransferEndsWithSomethingInFlightOrIsDoneInPart(t *testing.T) {
	done, failed := 0, 0
	property := func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "pieces")
		bytes := make([]uint64, n)
		for i := range bytes {
			bytes[i] = rapid.Uint64Range(1, 100).Draw(t, "bytes")
		}
		o := Options{Deadline: rapid.Int64Range(1, 200).Draw(t, "deadline"), Interval: rapid.Int64Range(1, 40).Draw(t, "interval"), Progress: rapid.Uint64Range(1, 100).Draw(t, "progress"), Window: rapid.IntRange(1, 3).Draw(t, "window")}
		x, err := New(bytes, o)
		if err != nil {
			t.Fatal(err)
		}
		now, began := int64(0), map[int]bool{}
		inFlight := func() (pieces []int) {
			for i := range n {
				if x.Piece(i) == InFlight {
					pieces = append(pieces, i)
				}
			}
			return pieces
		}
		check := func(before error, state State) {
			switch flying := len(inFlight()); {
			case before != nil && x.Err() != before:
				t.Fatalf("%v became %v", before, x.Err())
			case x.State() < state:
				t.Fatalf("%v after %v", x.State(), state)
			case flying > o.Window:
				t.Fatalf("%d pieces in flight", flying)
			case x.State() == Ended && flying > 0, x.State() == Ending && flying == 0:
				t.Fatalf("%v with %d pieces in flight", x.State(), flying)
			case x.Done() && len(x.Missing()) > 0:
				t.Fatalf("done, and %v are missing", x.Missing())
			case x.State() == Ended && x.Err() == nil && !x.Done():
				t.Fatal("ended, neither done nor failed")
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before, state := x.Err(), x.State()
			flying := inFlight()
			if len(flying) == 0 {
				flying = []int{0}
			}
			which := rapid.SampledFrom(flying).Draw(t, "which")
			switch rapid.IntRange(0, 12).Draw(t, "step") {
			case 0, 1, 2, 3:
				if i, ok := x.Next(now); ok {
					if began[i] || state >= Ending {
						t.Fatalf("piece %d begins in state %v, or again", i, state)
					}
					began[i] = true
				}
			case 4, 5, 6, 7:
				x.Arrive(which, now)
			case 8:
				x.Refuse(which, ErrRefused)
			case 9:
				x.Drop(which, ErrPath)
			case 10:
				if rapid.Bool().Draw(t, "lose") {
					x.Lose()
				} else {
					x.Cancel()
				}
			default:
				now += rapid.Int64Range(0, 30).Draw(t, "passes")
				x.Tick(now)
			}
			check(before, state)
		}
		before, state := x.Err(), x.State()
		x.Tick(o.Deadline)
		if x.State() < Ending {
			t.Fatalf("%v after the deadline", x.State())
		}
		x.Lose()
		check(before, state)
		if x.State() != Ended {
			t.Fatalf("%v with nothing in flight", x.State())
		}
		var moved uint64
		for i := range n {
			if x.Piece(i) == Arrived {
				moved += bytes[i]
			}
		}
		if moved != x.Moved() {
			t.Fatalf("%d bytes have arrived, stated %d", moved, x.Moved())
		}
		if x.Done() {
			done++
		} else {
			failed++
		}
	}
	rapid.Check(t, property)
	for round := 0; round < 50 && (done == 0 || failed == 0); round++ {
		rapid.Check(t, property) // until what the test is about has happened
	}
	if done == 0 || failed == 0 {
		t.Errorf("%d done, %d failed: the test shows nothing", done, failed)
	}
}

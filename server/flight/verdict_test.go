package flight

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"railhead/internal/rank"
	"railhead/internal/wire"
)

const (
	second     = int64(time.Second)
	now        = 100 * second
	stallAfter = 5 * time.Second
)

// in is a rank that has been in an all-reduce, its operation 10 and collective 8, for this many seconds.
func in(local int, seconds int64, waitingFor ...int) Rank {
	r := Rank{Rank: rank.Local(local), Here: true, Op: wire.OpAllReduce, Sequence: 10, Collective: 8, Since: now - seconds*second}
	for _, w := range waitingFor {
		r.WaitingFor = r.WaitingFor.With(rank.Local(w))
	}
	return r
}

// out is a rank whose last operation ended this many seconds ago.
func out(local int, seconds int64) Rank {
	return Rank{Rank: rank.Local(local), Here: true, Sequence: 9, Collective: 7, Since: now - seconds*second}
}

func with(r Rank, change func(*Rank)) Rank {
	change(&r)
	return r
}

func TestTheVerdictNamesTheRanksBehind(t *testing.T) {
	for _, c := range []struct {
		what   string
		ranks  []Rank
		state  Health
		behind string // ranks and how
		kept   []int
		words  string // of the sentence
	}{
		{"nobody is in an operation", []Rank{out(0, 50), out(1, 60)}, Idle, "", nil, ""},
		{"a group that has called nothing", []Rank{{Rank: 0, Here: true}, {Rank: 1, Here: true}}, Idle, "", nil, ""},
		{"no ranks at all", nil, Idle, "", nil, ""},
		{"they have waited for a short time", []Rank{in(0, 4, 1), out(1, 90)}, OK, "", nil, ""},
		{"they work", []Rank{in(0, 1), in(1, 0)}, OK, "", nil, ""},
		{"no record is kept", []Rank{with(in(0, 0, 1), func(r *Rank) { r.Since = 0 }), {Rank: 1, Here: true}}, OK, "", nil, ""},
		{"one has not called", []Rank{in(0, 20, 1), out(1, 21), in(2, 19, 1)}, Stalled, "1 not_called", []int{0, 2},
			"stalled for 20s in all_reduce, collective 8; rank 1 is behind: it has not called any operation since #9 ended 21s ago"},
		{"one has never called", []Rank{in(0, 20, 1), {Rank: 1, Here: true}}, Stalled, "1 not_called", []int{0}, "rank 1 is behind: it has not called any operation yet"},
		{"two have not called", []Rank{in(0, 6, 1, 2), out(1, 7), out(2, 7)}, Stalled, "1 not_called, 2 not_called", []int{0}, ""},
		{"the one that others wait for waits itself", []Rank{in(0, 9, 1), in(1, 9, 2), in(2, 9, 3), out(3, 9)}, Stalled, "3 not_called", []int{0, 1, 2}, ""},
		{"one is in an operation and waits for nobody", []Rank{in(0, 9, 1), in(1, 8)}, Stalled, "1 busy", []int{0}, "waits for no rank"},
		{"one is stopped in its sleep, and has not seen that another came", []Rank{in(0, 9, 1), with(in(1, 10, 2), func(r *Rank) { r.Stopped = true }), in(2, 9, 1)},
			Stalled, "1 unresponsive", []int{0, 2}, ""},
		{"one is stopped in the operation", []Rank{in(0, 9, 1), with(in(1, 8), func(r *Rank) { r.Stopped = true })}, Stalled, "1 unresponsive", []int{0},
			"rank 1 is behind: its process is stopped, all_reduce #10"},
		{"one is stopped between operations", []Rank{in(0, 9, 1), with(out(1, 8), func(r *Rank) { r.Stopped = true })}, Stalled, "1 unresponsive", []int{0},
			"its process is stopped, between operations"},
		{"one is gone", []Rank{in(0, 9, 1), with(in(1, 8, 0), func(r *Rank) { r.Here = false })}, Stalled, "1 gone", []int{0}, "its session has ended"},
		{"all are stopped", []Rank{with(in(0, 9), func(r *Rank) { r.Stopped = true }), with(in(1, 9), func(r *Rank) { r.Stopped = true })}, Stalled,
			"0 unresponsive, 1 unresponsive", nil, ""},
		{"those that have waited for a short time do not count", []Rank{in(0, 9, 1), out(1, 9), in(2, 1, 3), out(3, 1)}, Stalled, "1 not_called", []int{0}, ""},
		{"those that have begun to wait for the same rank", []Rank{in(0, 9, 1), out(1, 9), in(2, 1, 1), in(3, 0, 2)}, Stalled, "1 not_called",
			[]int{0, 2, 3}, ""},
		{"the one behind has been in it for longest", []Rank{in(0, 4, 1), in(1, 6), in(2, 4, 1)}, Stalled, "1 busy", []int{0, 2}, ""},
		{"a circle", []Rank{in(0, 9, 1), in(1, 9, 0)}, Stalled, "0 circle, 1 circle", []int{0, 1}, "rank 0 is in a circular wait in all_reduce #10"},
		{"a circle with one in an earlier collective", []Rank{in(0, 9, 1), with(in(1, 9, 0), func(r *Rank) { r.Collective = 7 })}, Stalled, "1 circle",
			[]int{0, 1}, ""},
		{"masks with unknown ranks", []Rank{with(in(0, 9), func(r *Rank) { r.WaitingFor = ^rank.LocalSet(0) }), out(1, 9)}, Stalled, "1 not_called", []int{0}, ""},
		{"a rank that waits for itself", []Rank{in(0, 9, 0)}, Stalled, "0 busy", nil, ""},
		{"a time in the future", []Rank{in(0, -50, 1), out(1, 1)}, OK, "", nil, ""},
	} {
		v := Judge(c.ranks, now, stallAfter)
		var behind []string
		for _, b := range v.Behind {
			behind = append(behind, string(rune('0'+b.Rank))+" "+string(b.How))
		}
		var kept []int
		for _, w := range v.Waiting {
			kept = append(kept, w.Rank)
		}
		if v.State != c.state || strings.Join(behind, ", ") != c.behind || !slices.Equal(kept, c.kept) || !strings.Contains(v.Text, c.words) {
			t.Errorf("%s: %s, behind %v, waiting %v, %q", c.what, v.State, behind, kept, v.Text)
		}
		if (v.State == Stalled) != (v.Text != "") {
			t.Errorf("%s: state %s, text %q", c.what, v.State, v.Text)
		}
	}
}

func TestAnIdleGroupsAgeIsTheLastOperationsOfAll(t *testing.T) {
	if v := Judge([]Rank{out(0, 60), out(1, 50), out(2, 55)}, now, stallAfter); v.AgeMS == nil || *v.AgeMS != 50_000 {
		t.Errorf("%+v", v)
	}
	if v := Judge([]Rank{{Rank: 0, Here: true}}, now, stallAfter); v.AgeMS != nil {
		t.Errorf("of a group that has called nothing: %d ms", *v.AgeMS)
	}
}

func TestASentenceNamesAFewRanksOnly(t *testing.T) {
	ranks := []Rank{in(0, 9)}
	for r := 1; r < 30; r++ {
		ranks[0].WaitingFor |= 1 << r
		ranks = append(ranks, out(r, 9))
	}
	v := Judge(ranks, now, stallAfter)
	if len(v.Behind) != 29 || !strings.HasSuffix(v.Text, "; and 25 more ranks are behind") {
		t.Errorf("%d ranks behind: %s", len(v.Behind), v.Text)
	}
}

// In this group some ranks have not called, and every other rank waits for those or for ranks that wait. Exactly the ranks that have
// not called and that delay a long waiter are reported as behind, in whatever order the ranks are given.
func TestTheRanksBehindAreThoseThatDelayTheOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(2, 64).Draw(t, "world")
		late := rank.LocalSet(1) << rapid.IntRange(0, world-1).Draw(t, "late")
		for range rapid.IntRange(0, 3).Draw(t, "more") {
			late |= 1 << rapid.IntRange(0, world-1).Draw(t, "another")
		}
		var ranks []Rank
		for r := range world {
			if late>>r&1 != 0 {
				ranks = append(ranks, out(r, rapid.Int64Range(0, 90).Draw(t, "ended")))
				continue
			}
			w := in(r, rapid.Int64Range(5, 90).Draw(t, "waits"))
			if w.WaitingFor = late; rapid.Bool().Draw(t, "chain") && r > 0 {
				w.WaitingFor = late | 1<<(r-1)
			}
			ranks = append(ranks, w)
		}
		all := rank.First(world)
		if late == all {
			return
		}
		shuffled := rapid.Permutation(ranks).Draw(t, "order")
		v := Judge(shuffled, now, stallAfter)
		var behind, kept rank.LocalSet
		for _, b := range v.Behind {
			behind |= 1 << b.Rank
		}
		for _, w := range v.Waiting {
			kept |= 1 << w.Rank
			if len(w.WaitingFor) == 0 || w.AgeMS == nil || *w.AgeMS < stallAfter.Milliseconds() {
				t.Fatalf("waiter %+v", w)
			}
		}
		if v.State != Stalled || behind != late || kept != all&^late {
			t.Fatalf("%s, behind %b, want %b, waiting %b", v.State, behind, late, kept)
		}
	})
}

// For any input the verdict is one of the states and names ranks of the group, each at most once in each list.
func TestTheVerdictIsSoundForAnyRankLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Rank {
			return Rank{
				Rank: rank.Local(rapid.IntRange(-2, 70).Draw(t, "rank")), Here: rapid.Bool().Draw(t, "here"), Stopped: rapid.Bool().Draw(t, "stopped"),
				Op: wire.Op(rapid.Uint32Range(0, 25).Draw(t, "op")), Sequence: rapid.Uint64().Draw(t, "sequence"),
				Collective: rapid.Uint64().Draw(t, "collective"), WaitingFor: rank.LocalSet(rapid.Uint64().Draw(t, "waiting")), Since: rapid.Int64().Draw(t, "since"),
			}
		}), 0, 10).Draw(t, "ranks")
		v := Judge(ranks, rapid.Int64Range(0, 1<<60).Draw(t, "now"), stallAfter)
		var seen uint64
		for _, b := range v.Behind {
			if b.Rank < 0 || b.Rank > 63 || seen>>b.Rank&1 != 0 {
				t.Fatalf("%+v", v)
			}
			seen |= 1 << b.Rank
		}
		if (v.State == Stalled) != (len(v.Behind) > 0) {
			t.Fatalf("%+v", v)
		}
	})
}

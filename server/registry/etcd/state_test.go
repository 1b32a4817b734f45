package etcd

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"railhead/server/registry"
)

// put is a record of the view.
func put(r record, revision, lease int64) change {
	return change{r.key, &entry{record: r, revision: revision, lease: lease}, revision}
}

func TestARecordThatCannotBeReadIsIgnoredAndNotReplaced(t *testing.T) {
	s := newState("a")
	s.granted(1)
	bad := entry{bad: errors.New("version 2"), revision: 5, lease: 9}
	s.listed(5, map[string]entry{agentKey("x"): bad})
	var told error
	if err := s.announce(record{key: agentKey("x"), node: "a", incarnation: 1}, func(err error) { told = err }); err != nil {
		t.Fatal(err)
	}
	w, _ := s.next()
	s.refused(&w, &bad)
	for _, call := range s.news {
		call()
	}
	if !errors.Is(told, registry.ErrTaken) || !strings.Contains(told.Error(), "version 2") {
		t.Error(told)
	}
	if err := s.problem(); err == nil || !strings.Contains(err.Error(), "1 records cannot be read, and are ignored: agents/x: version 2") {
		t.Error(err)
	}
	if _, found := s.get(agentKey("x")); found || len(s.all(agents)) != 0 {
		t.Error("it is shown")
	}
}

func TestTheStateIsBounded(t *testing.T) {
	s := newState("a")
	for i := range maxAnnounced {
		if err := s.announce(record{key: agentKey(fmt.Sprint(i)), node: "a"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.announce(record{key: agentKey("x"), node: "a"}, nil); err == nil || !strings.Contains(err.Error(), "8192") {
		t.Error(err)
	}
	s = newState("a")
	s.granted(1)
	var all []change
	for i := range maxEntries + 1 {
		all = append(all, put(record{key: agentKey(fmt.Sprint(i)), node: "b"}, int64(i+1), 2))
	}
	s.events(all)
	if err := s.problem(); len(s.view) != maxEntries || err == nil || !strings.Contains(err.Error(), "more than 131072 records") {
		t.Errorf("%d records, %v", len(s.view), err)
	}
	// A record of this node that is not among those that are shown is not written again and again.
	if err := s.announce(record{key: agentKey("x"), node: "a"}, nil); err != nil {
		t.Fatal(err)
	}
	w, _ := s.next()
	s.done(&w, maxEntries+2)
	s.events([]change{put(record{key: agentKey("x"), node: "a"}, maxEntries+2, 1)})
	if w, found := s.next(); found {
		t.Errorf("written again: %+v", w)
	}
	s.listed(maxEntries+3, map[string]entry{})
	if err := s.problem(); err != nil {
		t.Error(err)
	}
	if _, found := s.next(); !found {
		t.Error("a record that is gone is not written again")
	}
}

func TestAViewChangesWhenWhatItShowsChanges(t *testing.T) {
	s := newState("a")
	x := record{key: agentKey("x"), node: "b", incarnation: 1}
	n := record{key: nodeKey("b"), node: "b", addresses: []string{"[::1]:1"}}
	moved := n
	moved.addresses = []string{"[::1]:2"}
	for i, c := range []struct {
		change change
		want   bool
	}{
		{put(x, 1, 7), true},
		{put(x, 2, 8), false}, // under another lease
		{put(n, 3, 8), true},
		{put(moved, 4, 8), true},
		{change{key: x.key, revision: 5}, true},
		{change{key: x.key, revision: 6}, false},
	} {
		if s.events([]change{c.change}); s.changed != c.want {
			t.Errorf("change %d: %t", i, s.changed)
		}
		s.changed = false
	}
	for i, c := range []struct {
		view map[string]entry
		want bool
	}{
		{map[string]entry{n.key: {record: moved, revision: 4, lease: 8}}, false},
		{map[string]entry{n.key: {record: moved, revision: 9, lease: 10}}, false},
		{map[string]entry{n.key: {record: n, revision: 9, lease: 10}}, true},
		{nil, true},
	} {
		if s.listed(int64(10+i), c.view); s.changed != c.want {
			t.Errorf("list %d: %t", i, s.changed)
		}
		s.changed = false
	}
}

func TestWhatWasNeverWrittenIsWithdrawnWithoutAWrite(t *testing.T) {
	s := newState("a")
	x := record{key: agentKey("x"), node: "a", incarnation: 1}
	if err := s.announce(x, nil); err != nil {
		t.Fatal(err)
	}
	s.withdraw(x.key, 2) // of another incarnation
	s.granted(1)
	w, found := s.next()
	if !found || w.remove {
		t.Fatalf("%+v, %t", w, found)
	}
	s.failed(&w)
	s.withdraw(x.key, 1)
	if w, found := s.next(); !found || !w.remove {
		t.Errorf("what may be in etcd is not removed: %+v, %t", w, found)
	}
	y := record{key: agentKey("y"), node: "a", incarnation: 1}
	if err := s.announce(y, nil); err != nil {
		t.Fatal(err)
	}
	s.withdraw(y.key, 1)
	if w, found := s.next(); found || len(s.own) != 1 {
		t.Errorf("%+v, %t, %d announcements", w, found, len(s.own))
	}
}

// An etcd that was set back may have reached the same revision again, with other records, when it is listed.
func TestAnEtcdThatWasSetBackIsWrittenToAgain(t *testing.T) {
	s := newState("a")
	s.granted(1)
	s.listed(1, nil)
	told := 0
	x := record{key: agentKey("x"), node: "a", incarnation: 2}
	if err := s.announce(x, func(err error) { told++ }); err != nil {
		t.Fatal(err)
	}
	w, _ := s.next()
	s.done(&w, 2)
	if s.saw(2) || !s.saw(1) || !s.saw(2) {
		t.Error("it is not listed again, or without a reason")
	}
	earlier := x
	earlier.incarnation = 1
	s.listed(2, map[string]entry{x.key: {record: earlier, revision: 2, lease: 1}})
	for _, call := range s.news {
		call()
	}
	w, found := s.next()
	if !found || w.remove || w.value != encode(&x) || told != 1 {
		t.Errorf("%+v, %t, told %d times", w, found, told)
	}
	s.done(&w, 3)
	// An etcd that does not know the lease may have lost everything, whatever its revision.
	if s.lost(); !s.saw(100) {
		t.Error("it is not listed again")
	}
}

// The view may be ahead of the outcome of a write.
func TestAnOutcomeThatComesAfterLaterChangesIsComparedWithThem(t *testing.T) {
	x := record{key: agentKey("x"), node: "a", incarnation: 1}
	later := x
	later.incarnation = 2
	for _, c := range []struct {
		name     string
		change   change
		replaced bool
	}{
		{"it was removed", change{key: x.key, revision: 3}, false},
		{"it was replaced", put(later, 3, 9), true},
	} {
		s := newState("a")
		s.granted(1)
		s.listed(1, map[string]entry{})
		var told []error
		if err := s.announce(x, func(err error) { told = append(told, err) }); err != nil {
			t.Fatal(err)
		}
		w, _ := s.next()
		s.events([]change{put(x, 2, 1), c.change})
		s.done(&w, 2)
		for _, call := range s.news {
			call()
		}
		_, again := s.next()
		if again == c.replaced || len(told) == 0 || told[0] != nil || c.replaced != (len(told) == 2 && errors.Is(told[1], registry.ErrReplaced)) {
			t.Errorf("%s: written again %t, told %v", c.name, again, told)
		}
	}
}

// A write that the driver has given up may be executed when the record has been withdrawn.
func TestARecordThatNobodyWantsAnyMoreIsRemoved(t *testing.T) {
	s := newState("a")
	s.granted(1)
	s.listed(1, map[string]entry{})
	x := record{key: agentKey("x"), node: "a", incarnation: 1}
	if err := s.announce(x, nil); err != nil {
		t.Fatal(err)
	}
	w, _ := s.next()
	s.failed(&w)
	s.withdraw(x.key, 1)
	w, _ = s.next()
	s.refused(&w, nil)
	s.events([]change{put(x, 2, 7)}) // of an earlier process: it ends with its lease
	if w, found := s.next(); found {
		t.Errorf("%+v", w)
	}
	s.events([]change{put(x, 3, 1)})
	w, found := s.next()
	if !found || !w.remove || w.lease != 1 {
		t.Errorf("%+v, %t", w, found)
	}
	if s.done(&w, 4); len(s.own) > 0 {
		t.Errorf("%d announcements are left", len(s.own))
	}
}

func TestARecordThatIsAnnouncedAgainDuringItsRemovalIsWrittenAgain(t *testing.T) {
	s := newState("a")
	s.granted(1)
	s.listed(1, map[string]entry{})
	x := record{key: agentKey("x"), node: "a", incarnation: 1}
	told := 0
	announce := func() {
		if err := s.announce(x, func(error) { told++ }); err != nil {
			t.Fatal(err)
		}
	}
	announce()
	w, _ := s.next()
	s.done(&w, 2)
	s.withdraw(x.key, 1)
	removal, _ := s.next()
	s.news = nil
	announce()
	if s.done(&removal, 3); len(s.news) > 0 {
		t.Error("it is told that it is registered, and was removed")
	}
	if w, found := s.next(); !found || w.remove {
		t.Errorf("%+v, %t", w, found)
	}
}

// Revisions of an etcd that has lost its data say nothing about the next one's.
func TestAnExpectationEndsWithTheLease(t *testing.T) {
	s := newState("a")
	s.granted(1)
	s.listed(1, map[string]entry{})
	x := record{key: agentKey("x"), node: "a", incarnation: 2}
	if err := s.announce(x, nil); err != nil {
		t.Fatal(err)
	}
	w, _ := s.next()
	earlier := x
	earlier.incarnation = 1
	s.refused(&w, &entry{record: earlier, revision: 5, lease: 9})
	if w, _ = s.next(); w.expect != 5 {
		t.Errorf("%+v", w)
	}
	s.failed(&w)
	s.granted(2)
	if w, found := s.next(); !found || w.expect != 0 || w.lease != 2 {
		t.Errorf("%+v, %t", w, found)
	}
}

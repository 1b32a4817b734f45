package etcd

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"railhead/server/registry"
)

// Bounds of the state.
const (
	maxEntries   = 1 << 17 // records of a cluster, also those that cannot be read
	maxAnnounced = 1 << 13 // records of this node
)

// state is what this node knows of etcd, and what it wants there. It does no I/O: what has happened is reported to it, and next says what
// to write. The driver executes writes in any order and may fail to learn their outcome. It has reported the outcomes of all before it begins a
// lease or lists.
//
// A record belongs to the node that its value names. This node replaces records of its own name, which earlier processes have left, and
// no others.
type state struct {
	self     string
	lease    int64 // of this process; 0: it has none, so nothing is written
	view     map[string]entry
	revision int64 // the view is that of this revision
	newest   int64 // the highest revision that etcd is known to have had; the view may be behind
	relist   bool  // a watch cannot continue the view: it must be listed
	overflow bool  // the view lacks records

	own  map[string]*announcement
	due  []string // keys that may need a write, oldest first; an announcement is queued once at most
	news []func() // calls of told to make

	changed bool // the view, since the driver looked
}

// entry is a record of the view.
type entry struct {
	record   record
	bad      error // why it cannot be read; nil: it can
	revision int64 // in which it was last written
	lease    int64
}

// announcement is a record that this node wants in etcd, or wants to be gone from there.
type announcement struct {
	record    record
	told      func(error)
	withdrawn bool
	queued    bool  // in due
	busy      bool  // the driver executes a write
	attempted bool  // a write was begun: it may be in etcd
	accepted  bool  // told(nil) was called
	placed    int64 // the revision in which it was written under the present lease; 0: it was not
	expect    int64 // the key's revision when a write was last refused; 0: the key did not exist
}

// write is a transaction: if the condition holds, then the change.
type write struct {
	key    string
	value  string
	lease  int64
	remove bool
	// The condition of a put: the key was last written in this revision; 0: it does not exist. That of a removal: the key is under the lease.
	expect int64
}

func newState(self string) *state {
	return &state{self: self, relist: true, view: map[string]entry{}, own: map[string]*announcement{}}
}

// announce wants a record in etcd. An announcement of a node replaces the one before.
func (s *state) announce(r record, told func(error)) error {
	a, exists := s.own[r.key]
	if exists && !a.withdrawn && !r.isNode() {
		return registry.Announced(r.name(), a.record.incarnation)
	}
	if !exists {
		if len(s.own) >= maxAnnounced {
			return fmt.Errorf("%s: this node has announced %d records, which is the most", r.key, maxAnnounced)
		}
		a = &announcement{}
		s.own[r.key] = a
	}
	a.record, a.told, a.withdrawn, a.accepted, a.placed = r, told, false, false, 0
	s.queue(a)
	return nil
}

// withdraw ends an announcement.
func (s *state) withdraw(key string, incarnation uint64) {
	a, exists := s.own[key]
	if !exists || a.withdrawn || a.record.incarnation != incarnation {
		return
	}
	if !a.attempted {
		s.drop(a)
		return
	}
	a.withdrawn, a.placed = true, 0
	s.queue(a)
}

// drop forgets an announcement.
func (s *state) drop(a *announcement) {
	delete(s.own, a.record.key)
	if a.queued {
		s.due = slices.DeleteFunc(s.due, func(key string) bool { return key == a.record.key })
	}
}

func (s *state) queue(a *announcement) {
	if !a.queued && !a.busy {
		a.queued = true
		s.due = append(s.due, a.record.key)
	}
}

// granted begins a lease.
func (s *state) granted(lease int64) {
	s.lost()
	s.lease = lease
}

// lost ends the lease: etcd has removed, or will remove, what was written under it. It may have lost everything.
func (s *state) lost() {
	s.lease, s.relist = 0, true
	s.replace()
}

// saw reports etcd's present revision. It returns whether the view must be listed.
func (s *state) saw(revision int64) bool {
	if revision < s.newest { // etcd lost what it had, and may reach the revision again before it is listed
		s.relist = true
		s.replace()
	}
	s.newest = max(s.newest, revision)
	return s.relist
}

// replace writes all records again.
func (s *state) replace() {
	for _, key := range slices.Sorted(maps.Keys(s.own)) {
		a := s.own[key]
		a.placed, a.expect = 0, 0
		s.queue(a)
	}
}

// next returns a write to execute. The driver reports its outcome once: done, refused or failed.
func (s *state) next() (write, bool) {
	if s.lease == 0 || len(s.due) == 0 {
		return write{}, false
	}
	a := s.own[s.due[0]]
	s.due = s.due[1:]
	a.queued, a.busy, a.attempted = false, true, true
	return write{key: a.record.key, value: encode(&a.record), lease: s.lease, remove: a.withdrawn, expect: a.expect}, true
}

// mine says whether this node may replace a record.
func (s *state) mine(e *entry, key string) bool {
	return key == nodeKey(s.self) || e.bad == nil && e.record.node == s.self
}

// done reports that a write was executed, in a revision.
func (s *state) done(w *write, revision int64) {
	s.newest = max(s.newest, revision)
	a := s.ended(w)
	if a == nil {
		return
	}
	if w.remove && a.withdrawn {
		s.drop(a)
		return
	}
	if w.remove || a.withdrawn || w.value != encode(&a.record) {
		s.queue(a)
		return
	}
	a.placed = revision
	if !a.accepted {
		a.accepted = true
		s.tell(a, nil)
	}
	s.check(w.key)
}

// refused reports that the condition of a write did not hold, and what the key has; nil: it does not exist.
func (s *state) refused(w *write, now *entry) {
	if now != nil {
		s.newest = max(s.newest, now.revision)
	}
	a := s.ended(w)
	switch {
	case a == nil:
	case a.withdrawn && w.remove:
		s.drop(a) // it is not there
	case a.withdrawn:
		s.queue(a)
	case now == nil:
		a.expect = 0
		s.queue(a)
	case s.mine(now, w.key):
		a.expect = now.revision
		s.queue(a)
	default:
		s.displaced(a, now)
	}
}

// failed reports that nothing is known of a write's outcome.
func (s *state) failed(w *write) {
	if a := s.ended(w); a != nil {
		s.queue(a)
	}
}

func (s *state) ended(w *write) *announcement {
	a := s.own[w.key]
	if a != nil {
		a.busy = false
	}
	return a
}

// displaced ends an announcement because of another record in its place.
func (s *state) displaced(a *announcement, by *entry) {
	s.drop(a)
	switch {
	case by.bad != nil:
		s.tell(a, fmt.Errorf("%s: %w by a record that cannot be read: %w", a.record.key, registry.ErrTaken, by.bad))
	case by.record.node == s.self:
		s.tell(a, fmt.Errorf("%s: %w (incarnation %x)", a.record.key, registry.ErrReplaced, by.record.incarnation))
	default:
		s.tell(a, fmt.Errorf("agent %s: %w on node %s (incarnation %x) until it ends there: choose another name, or announce it then",
			a.record.name(), registry.ErrTaken, by.record.node, by.record.incarnation))
	}
}

func (s *state) tell(a *announcement, err error) {
	if told := a.told; told != nil {
		s.news = append(s.news, func() { told(err) })
	}
}

// check compares an announcement with the view, if that is as new as it.
func (s *state) check(key string) {
	e, seen := s.view[key]
	a, announced := s.own[key]
	if !announced {
		if seen && e.bad == nil && e.lease == s.lease && s.lease != 0 {
			s.orphan(&e)
		}
		return
	}
	if a.placed == 0 || s.revision < a.placed {
		return
	}
	if !seen && s.overflow {
		return // it may be among those that the view lacks
	}
	switch {
	case !seen:
		a.placed = 0
		s.queue(a)
	case e.bad != nil || encode(&e.record) != encode(&a.record):
		s.displaced(a, &e)
	}
}

// orphan removes a record of this process that it does not want: a write that was executed after the driver gave it up.
func (s *state) orphan(e *entry) {
	a := &announcement{record: e.record, withdrawn: true, attempted: true}
	s.own[e.record.key] = a
	s.queue(a)
}

// listed replaces the view by what etcd had at a revision.
func (s *state) listed(revision int64, all map[string]entry) {
	if revision < s.newest {
		s.replace()
	}
	s.newest = revision
	s.changed = s.changed || !maps.EqualFunc(s.view, all, sameRecord)
	s.view, s.revision, s.overflow, s.relist = all, revision, len(all) > maxEntries, false
	for _, key := range slices.Sorted(maps.Keys(all)) {
		s.check(key)
	}
	for _, key := range slices.Sorted(maps.Keys(s.own)) {
		s.check(key)
	}
}

func sameRecord(a, b entry) bool {
	return (a.bad == nil) == (b.bad == nil) && a.record.node == b.record.node && a.record.incarnation == b.record.incarnation &&
		slices.Equal(a.record.addresses, b.record.addresses)
}

// change is an event of etcd: a key was written, or removed if it has no entry.
type change struct {
	key      string
	entry    *entry
	revision int64
}

// events applies changes, in their order. Each comes after the view's revision.
func (s *state) events(all []change) {
	for _, c := range all {
		s.revision = max(s.revision, c.revision)
		s.newest = max(s.newest, s.revision)
		before, seen := s.view[c.key]
		switch {
		case c.entry == nil:
			delete(s.view, c.key)
			s.changed = s.changed || seen
		case !seen && len(s.view) >= maxEntries:
			s.overflow = true
		default:
			s.view[c.key] = *c.entry
			s.changed = s.changed || !seen || !sameRecord(before, *c.entry)
		}
	}
	for _, c := range all { // after the last one: of changes of a key in one revision only the last counts
		s.check(c.key)
	}
}

// problem says what the view lacks.
func (s *state) problem() error {
	if s.overflow {
		return fmt.Errorf("the registry has more than %d records: some are not shown", maxEntries)
	}
	bad, first := 0, ""
	for key, e := range s.view {
		if e.bad != nil {
			if bad++; first == "" || key < first {
				first = key
			}
		}
	}
	if bad == 0 {
		return nil
	}
	return fmt.Errorf("%d records cannot be read, and are ignored: %s: %w", bad, first, s.view[first].bad)
}

// get looks a record up.
func (s *state) get(key string) (record, bool) {
	e, found := s.view[key]
	return e.record, found && e.bad == nil
}

// all returns the records whose keys begin with a prefix, by key.
func (s *state) all(prefix string) []record {
	var found []record
	for key, e := range s.view {
		if e.bad == nil && strings.HasPrefix(key, prefix) {
			found = append(found, e.record)
		}
	}
	slices.SortFunc(found, func(a, b record) int { return strings.Compare(a.key, b.key) })
	return found
}

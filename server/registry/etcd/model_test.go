package etcd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"railhead/internal/deep"
	"railhead/server/registry"
)

// stored is a key in the model of etcd.
type stored struct {
	value           string
	revision, lease int64
}

// model is an etcd as its documentation describes it: one revision for each transaction that changes something, and a log of changes.
type model struct {
	t         *rapid.T
	revision  int64
	keys      map[string]stored
	leases    map[int64]bool
	log       []change
	compacted int64 // watches cannot begin at or before it
	last      int64 // lease given out
	late      []func()
	saved     *model
}

func newModel(t *rapid.T) *model {
	return &model{t: t, revision: 1, keys: map[string]stored{}, leases: map[int64]bool{}}
}

func (m *model) grant() int64 { m.last++; m.leases[m.last] = true; return m.last }

func (m *model) remove(key string) {
	delete(m.keys, key)
	m.log = append(m.log, change{key: key, revision: m.revision})
}

// expire ends a lease.
func (m *model) expire(lease int64) {
	delete(m.leases, lease)
	m.revision++
	for key, s := range m.keys {
		if s.lease == lease {
			m.remove(key)
		}
	}
}

// empty is a restart without data. Another cluster may have written meanwhile.
func (m *model) empty(revision int64) {
	m.revision, m.compacted, m.log, m.keys, m.leases, m.saved = revision, revision-1, nil, map[string]stored{}, map[int64]bool{}, nil
}

// save keeps a copy, to which restore goes back.
func (m *model) save() {
	m.saved = &model{revision: m.revision, keys: maps.Clone(m.keys), leases: maps.Clone(m.leases), compacted: m.compacted}
}

func (m *model) restore() {
	if s := m.saved; s != nil {
		m.revision, m.keys, m.leases, m.compacted = s.revision, maps.Clone(s.keys), maps.Clone(s.leases), s.compacted
		m.log = slices.DeleteFunc(m.log, func(c change) bool { return c.revision > s.revision })
	}
}

func (m *model) entry(key string) *entry {
	s, found := m.keys[key]
	if !found {
		return nil
	}
	r, err := decode(key, []byte(s.value))
	return &entry{record: r, bad: err, revision: s.revision, lease: s.lease}
}

// execute executes a write. The answer is lost if ok is false: the lease does not exist.
func (m *model) execute(node string, w write) (succeeded bool, now *entry, ok bool) {
	now = m.entry(w.key)
	if w.remove {
		if m.keys[w.key].lease != w.lease {
			return false, now, true
		}
		m.revision++
		m.remove(w.key)
		return true, nil, true
	}
	if m.keys[w.key].revision != w.expect {
		return false, now, true
	}
	if !m.leases[w.lease] {
		return false, nil, false
	}
	if now != nil && now.record.node != node {
		m.t.Fatalf("node %s replaces %s of node %s", node, w.key, now.record.node)
	}
	m.revision++
	m.keys[w.key] = stored{w.value, m.revision, w.lease}
	m.log = append(m.log, change{w.key, m.entry(w.key), m.revision})
	return true, nil, true
}

// process is a node's process: the state, and a driver that may lose requests and answers.
type process struct {
	m     *model
	node  string
	state *state
	now   map[string]*announced // by key
	all   []*announced

	flights []*flight
}

// announced is what a process was told of an announcement.
type announced struct {
	record   record
	accepted int
	failed   error
	over     bool // withdrawn
}

func (p *process) announce(r record) {
	a := &announced{record: r}
	err := p.state.announce(r, func(err error) {
		switch {
		case a.over || a.failed != nil:
			p.m.t.Fatalf("%s of %s was told %v, and it is over (%v)", r.key, p.node, err, a.failed)
		case err == nil:
			a.accepted++
		default:
			a.failed = err
		}
	})
	before, lives := p.now[r.key]
	if lives = lives && !before.over && before.failed == nil; lives && !r.isNode() {
		if !errors.Is(err, registry.ErrTaken) {
			p.m.t.Fatalf("%s was announced twice: %v", r.key, err)
		}
		return
	}
	if err != nil {
		p.m.t.Fatal(err)
	}
	if lives {
		before.over = true
	}
	p.now[r.key], p.all = a, append(p.all, a)
}

func (p *process) withdraw(key string) {
	if a := p.now[key]; a != nil {
		a.over = true
		p.state.withdraw(key, a.record.incarnation)
	}
}

// hear makes the calls of told. What was said before an announcement was withdrawn may come late, and is not for the test.
func (p *process) hear() {
	for _, call := range p.state.news {
		call()
	}
	p.state.news = nil
}

// renew renews the lease or gets one.
func (p *process) renew() {
	if lease := p.state.lease; lease != 0 && !p.m.leases[lease] {
		p.state.lost()
	}
	if p.state.lease == 0 {
		p.land()
		p.state.granted(p.m.grant())
	}
	p.state.saw(p.m.revision)
}

// follow brings the view some changes further, or all.
func (p *process) follow(most int) {
	s := p.state
	if s.relist {
		p.land()
	}
	if s.relist || s.revision < p.m.compacted {
		all := map[string]entry{}
		for key := range p.m.keys {
			all[key] = *p.m.entry(key)
		}
		s.listed(p.m.revision, all)
		return
	}
	var news []change
	for _, c := range p.m.log {
		// Changes of one revision come together.
		if c.revision > s.revision && (len(news) < most || c.revision == news[len(news)-1].revision) {
			news = append(news, c)
		}
	}
	s.events(news)
}

// flight is a write under way.
type flight struct {
	write   write
	outcome func() // reports the outcome to the state
}

// begin begins the next write. It is executed at once, and its outcome is reported by end.
func (p *process) begin(how outcome) bool {
	if p.state.relist {
		return false // the driver lists first
	}
	w, found := p.state.next()
	if !found {
		return false
	}
	if slices.ContainsFunc(p.flights, func(f *flight) bool { return f.write.key == w.key }) {
		p.m.t.Fatalf("two writes of %s at a time", w.key)
	}
	f := &flight{write: w, outcome: func() { p.state.failed(&w) }}
	p.flights = append(p.flights, f)
	switch m := p.m; how {
	case known:
		succeeded, now, ok := m.execute(p.node, w)
		switch revision := m.revision; {
		case !ok:
			f.outcome = func() {
				if p.state.failed(&w); p.state.lease == w.lease {
					p.state.lost()
				}
			}
		case succeeded:
			f.outcome = func() { p.state.done(&w, revision) }
		default:
			f.outcome = func() { p.state.refused(&w, now) }
		}
	case answerLost:
		m.execute(p.node, w)
	case executedLate:
		m.late = append(m.late, func() { m.execute(p.node, w) })
	}
	return true
}

// end reports the outcome of a write.
func (p *process) end(i int) {
	f := p.flights[i]
	p.flights = slices.Delete(p.flights, i, i+1)
	f.outcome()
}

// land reports the outcomes of all writes.
func (p *process) land() {
	for len(p.flights) > 0 {
		p.end(0)
	}
}

type outcome int

const (
	known outcome = iota
	requestLost
	answerLost
	executedLate
)

// cluster is some processes and an etcd.
type cluster struct {
	m         *model
	processes []*process
	last      uint64 // incarnation given out
}

func (c *cluster) start(node string) {
	p := &process{m: c.m, node: node, state: newState(node), now: map[string]*announced{}}
	c.processes = append(c.processes, p)
	c.announceNode(p)
}

func (c *cluster) announceNode(p *process) {
	c.last++
	p.announce(record{key: nodeKey(p.node), node: p.node, incarnation: c.last, addresses: []string{fmt.Sprintf("10.0.0.1:%d", c.last)}})
}

func (c *cluster) step(t *rapid.T) {
	p := rapid.SampledFrom(c.processes).Draw(t, "process")
	key := agentKey(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "agent"))
	switch step := rapid.IntRange(0, 31).Draw(t, "step"); {
	case step < 4:
		c.last++
		p.announce(record{key: key, node: p.node, incarnation: c.last})
	case step == 4:
		if a := p.now[key]; a != nil && a.over { // as it was
			p.announce(a.record)
		}
	case step < 7:
		p.withdraw(key)
	case step == 7:
		c.announceNode(p)
	case step < 12:
		p.begin(known)
	case step < 15:
		p.begin(outcome(step - 11))
	case step < 19:
		if n := len(p.flights); n > 0 {
			p.end(rapid.IntRange(0, n-1).Draw(t, "write"))
		}
	case step < 21:
		p.follow(rapid.IntRange(1, 3).Draw(t, "changes"))
	case step < 25:
		p.renew()
	case step == 25:
		if lease := p.state.lease; c.m.leases[lease] {
			c.m.expire(lease)
		}
	case step == 30:
		c.m.empty(rapid.Int64Range(1, c.m.revision+5).Draw(t, "revision"))
	case step == 31:
		for _, p := range c.processes {
			p.land() // a restart takes longer than answers under way
		}
		c.m.restore()
		for _, p := range c.processes {
			p.renew() // before the revision grows: otherwise nobody can tell
		}
	case step == 26:
		c.m.compacted = c.m.revision
		c.m.save()
	case step == 27 && len(c.m.late) > 0:
		c.m.late[0]()
		c.m.late = c.m.late[1:]
	case step == 28 && len(c.processes) < 6:
		c.start(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node"))
	case step == 29 && len(c.processes) > 1: // killed
		if p != c.processes[0] {
			c.processes = c.processes[1:]
		} else {
			c.processes = c.processes[:len(c.processes)-1]
		}
	}
	for _, p := range c.processes {
		p.hear()
	}
}

// heal executes what is late, ends the leases of the dead, and lets the living do all that they want.
func (c *cluster) heal(t *rapid.T) {
	for _, late := range c.m.late {
		late()
	}
	c.m.late = nil
	for _, p := range c.processes {
		p.land()
	}
	alive := map[int64]bool{}
	for _, p := range c.processes {
		p.renew()
		alive[p.state.lease] = true
	}
	for lease := range c.m.leases {
		if !alive[lease] {
			c.m.expire(lease)
		}
	}
	for rounds := 0; ; rounds++ {
		busy := false
		for _, p := range c.processes {
			p.renew()
			p.follow(1 << 30)
			for p.begin(known) {
				p.end(0)
				busy = true
			}
			p.follow(1 << 30)
			p.hear()
		}
		if !busy {
			return
		}
		if rounds > 50 {
			t.Fatal("the processes write for ever")
		}
	}
}

// check compares etcd with what the living processes have announced.
func (c *cluster) check(t *rapid.T) {
	wanted := map[string]stored{}
	for _, p := range c.processes {
		for key, a := range p.now {
			if a.over || a.failed != nil {
				continue
			}
			if a.accepted != 1 {
				t.Fatalf("%s of %s was told %d times that it is registered", key, p.node, a.accepted)
			}
			if other, twice := wanted[key]; twice {
				t.Fatalf("two processes believe that %s is theirs: %s and %s", key, other.value, encode(&a.record))
			}
			wanted[key] = stored{value: encode(&a.record), lease: p.state.lease}
		}
	}
	for key, w := range wanted {
		if s := c.m.keys[key]; s.value != w.value || s.lease != w.lease {
			t.Fatalf("%s is %+v, want %+v", key, s, w)
		}
	}
	for key, s := range c.m.keys {
		if _, found := wanted[key]; !found {
			t.Fatalf("nobody wants %s: %+v", key, s)
		}
	}
	for _, p := range c.processes {
		if len(p.state.view) != len(wanted) {
			t.Fatalf("%s sees %d records, there are %d", p.node, len(p.state.view), len(wanted))
		}
		for key, w := range wanted {
			if r, found := p.state.get(key); !found || encode(&r) != w.value {
				t.Fatalf("%s sees %+v, %t at %s, there is %s", p.node, r, found, key, w.value)
			}
		}
	}
}

// Whatever is lost, late or ended: no node overwrites another node's record; and when all is well again, etcd has what the living have
// announced and were not told otherwise, once, and they see it.
func TestEtcdHasWhatTheLivingHaveAnnounced(t *testing.T) {
	taken, replaced, registered := 0, 0, 0
	property := func(t *rapid.T) {
		c := &cluster{m: newModel(t)}
		c.start("a")
		c.start("b")
		c.start("a") // such as a daemon that drains, and its successor
		for range rapid.IntRange(10, 150).Draw(t, "steps") {
			c.step(t)
		}
		c.heal(t)
		c.check(t)
		for _, p := range c.processes {
			for _, a := range p.all {
				registered += a.accepted
				switch {
				case errors.Is(a.failed, registry.ErrReplaced):
					replaced++
				case errors.Is(a.failed, registry.ErrTaken) && !a.record.isNode():
					taken++
				case a.failed != nil:
					t.Fatal(a.failed)
				}
			}
		}
	}
	for range deep.Rounds(t, 30, 600) { // of 100 clusters
		rapid.Check(t, property)
	}
	if taken == 0 || replaced == 0 || registered == 0 {
		t.Errorf("%d names were taken, %d records replaced, %d registered", taken, replaced, registered)
	}
}

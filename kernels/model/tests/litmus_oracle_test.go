package modeltests

import (
	"fmt"
	"strings"
)

// An axiomatic definition of the memory that the model implements operationally: C++20's atomics as RC11 defines them, which forbids
// load buffering (a store before an earlier load of its thread), with sequentially consistent fences and no other such accesses. It
// enumerates all executions of a litmus program and keeps those that satisfy the axioms.
//
//	hb  = (po | sw)+    sw: from a release to an acquire that reads it, or reads adds on it; directly, or by fences
//	eco = (rf | mo | rb)+
//	coherence   hb ; eco? is irreflexive; so is eco, since an add is one event here
//	atomicity   an add is directly after the store that it reads, in mo
//	consistency [F.sc] ; (hb | hb ; eco ; hb) ; [F.sc] is acyclic
//	no thin air po | rf is acyclic

type litmusEvent struct {
	thread   int
	kind     byte // W, R, A, F; I: the initial store
	location int
	value    int // of W: what it stores; of A: what it adds
	order    string
}

func (e litmusEvent) reads() bool  { return e.kind == 'R' || e.kind == 'A' }
func (e litmusEvent) writes() bool { return e.kind == 'W' || e.kind == 'A' || e.kind == 'I' }
func (e litmusEvent) releases() bool {
	return e.order == "rel" || e.kind == 'F' && (e.order == "ar" || e.order == "sc")
}
func (e litmusEvent) acquires() bool {
	return e.order == "acq" || e.kind == 'F' && (e.order == "ar" || e.order == "sc")
}

const litmusLocations = 3

// parseLitmus returns the events of a program in the order of its text, after the initial stores.
func parseLitmus(program string) []litmusEvent {
	events := []litmusEvent{}
	for l := range litmusLocations {
		events = append(events, litmusEvent{thread: -1, kind: 'I', location: l})
	}
	for t, thread := range strings.Split(program, "|") {
		for _, word := range strings.Fields(thread) {
			access, order, _ := strings.Cut(word, ".")
			e := litmusEvent{thread: t, kind: access[0], order: order}
			if e.kind != 'F' {
				e.location = int(access[1] - 'x')
				_, _ = fmt.Sscan(access[2:], &e.value)
			}
			events = append(events, e)
		}
	}
	return events
}

// relation: bit b of r[a] = a is related to b.
type relation []uint32

func (r relation) add(a, b int)      { r[a] |= 1 << b }
func (r relation) has(a, b int) bool { return r[a]>>b&1 != 0 }
func (r relation) closed() relation {
	c := append(relation{}, r...)
	for k := range c {
		for a := range c {
			if c.has(a, k) {
				c[a] |= c[k]
			}
		}
	}
	return c
}
func (r relation) then(s relation) relation {
	c := make(relation, len(r))
	for a := range r {
		for b := range r {
			if r.has(a, b) {
				c[a] |= s[b]
			}
		}
	}
	return c
}
func (r relation) or(s relation) relation {
	c := append(relation{}, r...)
	for a := range s {
		c[a] |= s[a]
	}
	return c
}
func (r relation) hasCycle() bool {
	c := r.closed()
	for a := range c {
		if c.has(a, a) {
			return true
		}
	}
	return false
}

// execution: rf[e] is the store that e reads, mo[l] the stores of location l in order.
type execution struct {
	events []litmusEvent
	rf     []int
	mo     [litmusLocations][]int
}

func litmusOutcomes(program string) map[string]bool {
	x := &execution{events: parseLitmus(program)}
	x.rf = make([]int, len(x.events))
	found := map[string]bool{}
	x.chooseReads(0, func() {
		x.chooseOrders(0, func() {
			if outcome, good := x.outcome(); good {
				found[outcome] = true
			}
		})
	})
	return found
}

func (x *execution) chooseReads(from int, done func()) {
	if from == len(x.events) {
		done()
		return
	}
	e := x.events[from]
	if !e.reads() {
		x.chooseReads(from+1, done)
		return
	}
	for w, store := range x.events {
		if w != from && store.writes() && store.location == e.location {
			x.rf[from] = w
			x.chooseReads(from+1, done)
		}
	}
}

func (x *execution) chooseOrders(location int, done func()) {
	if location == litmusLocations {
		done()
		return
	}
	stores := []int{}
	for i, e := range x.events {
		if e.writes() && e.location == location {
			stores = append(stores, i)
		}
	}
	permute(stores[1:], 0, func() { // the initial store is the first
		x.mo[location] = stores
		x.chooseOrders(location+1, done)
	})
}

func permute(list []int, from int, done func()) {
	if from == len(list) {
		done()
		return
	}
	for i := from; i < len(list); i++ {
		list[from], list[i] = list[i], list[from]
		permute(list, from+1, done)
		list[from], list[i] = list[i], list[from]
	}
}

func (x *execution) outcome() (string, bool) {
	n := len(x.events)
	po, rf, mo, rb := make(relation, n), make(relation, n), make(relation, n), make(relation, n)
	for a, e := range x.events {
		for b, f := range x.events {
			if e.kind == 'I' && f.kind != 'I' || e.kind != 'I' && e.thread == f.thread && a < b {
				po.add(a, b)
			}
		}
		if e.reads() {
			rf.add(x.rf[a], a)
		}
	}
	for _, stores := range x.mo {
		for i, a := range stores {
			for _, b := range stores[i+1:] {
				mo.add(a, b)
			}
		}
	}
	for r, e := range x.events {
		if e.reads() {
			rb[r] = mo[x.rf[r]] &^ (1 << r)
		}
	}
	if po.or(rf).hasCycle() {
		return "", false
	}
	for a, e := range x.events {
		if e.kind == 'A' && rb[a]&transposed(mo, a) != 0 {
			return "", false
		}
	}
	hb := po.or(x.synchronizes()).closed()
	eco := rf.or(mo).or(rb).closed()
	for a := range hb {
		if hb.has(a, a) || eco.has(a, a) || hb.then(eco).has(a, a) {
			return "", false
		}
	}
	order := hb.or(hb.then(eco).then(hb))
	for a, e := range x.events {
		for b, f := range x.events {
			if e.kind != 'F' || e.order != "sc" || f.kind != 'F' || f.order != "sc" {
				order[a] &^= 1 << b
			}
		}
	}
	if order.hasCycle() {
		return "", false
	}
	return x.text(), true
}

// transposed is the set of a with r.has(a, b).
func transposed(r relation, b int) uint32 {
	var set uint32
	for a := range r {
		if r.has(a, b) {
			set |= 1 << a
		}
	}
	return set
}

// synchronizes: from w or a release fence before w, to r or an acquire fence after r, if r reads w, or an add on w, or an add on that.
func (x *execution) synchronizes() relation {
	sw := make(relation, len(x.events))
	for r, e := range x.events {
		if !e.reads() {
			continue
		}
		for w := x.rf[r]; ; w = x.rf[w] {
			for _, a := range x.with(w, -1) {
				for _, b := range x.with(r, +1) {
					if x.events[a].thread != x.events[b].thread {
						sw.add(a, b)
					}
				}
			}
			if x.events[w].kind != 'A' {
				break
			}
		}
	}
	return sw
}

// with returns the access i if it releases (towards -1) or acquires (towards +1), and such fences before or after it in its thread.
func (x *execution) with(i, towards int) []int {
	ends := []int{}
	for j := i; j >= 0 && j < len(x.events) && x.events[j].thread == x.events[i].thread; j += towards {
		e := x.events[j]
		if (j == i || e.kind == 'F') && (towards < 0 && e.releases() || towards > 0 && e.acquires()) {
			ends = append(ends, j)
		}
	}
	return ends
}

// text is the outcome as the model prints it.
func (x *execution) text() string {
	values := make([]int, len(x.events))
	known := make([]bool, len(x.events))
	var value func(w int) int // of a store
	value = func(w int) int {
		if !known[w] {
			values[w], known[w] = x.events[w].value, true
			if x.events[w].kind == 'A' {
				values[w] += value(x.rf[w])
			}
		}
		return values[w]
	}
	var b strings.Builder
	for i, e := range x.events {
		if e.reads() {
			fmt.Fprintf(&b, "%d ", value(x.rf[i]))
		}
	}
	b.WriteString(":")
	for _, stores := range x.mo {
		fmt.Fprintf(&b, " %d", value(stores[len(stores)-1]))
	}
	return b.String()
}

package proxy

import (
	"os"
	"sync"

	"railhead/internal/kvwire"
)

// maxWaiting bounds notifications that wait for room in the inbox of an agent.
const maxWaiting = 4096

// out is what an agent's process is told: completions and notifications, and what of them waits for room. Completions that wait are bounded by
// the operations under way and the grants: a job waits once, whatever it has to say.
type out struct {
	mu          sync.Mutex
	segment     *kvwire.Segment
	bell        *os.File
	closed      bool
	completions []kvwire.Completion
	layers      []*job // that have layers to tell of
	inbox       []message
}

// message is a notification.
type message struct {
	record  kvwire.Record
	payload []byte
}

// complete appends a completion, at once or when there is room.
func (o *out) complete(c kvwire.Completion) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if len(o.completions) > 0 || len(o.layers) > 0 || !o.segment.Complete(&c) {
		o.completions = append(o.completions, c)
	}
	o.wake()
}

// tellLayers says that more layers of a job have arrived.
func (o *out) tellLayers(j *job) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || j.telling {
		return
	}
	if len(o.completions) > 0 || len(o.layers) > 0 || !o.tell(j) {
		j.telling = true
		o.layers = append(o.layers, j)
	}
	o.wake()
}

func (o *out) tell(j *job) bool {
	return o.segment.Complete(&kvwire.Completion{ID: j.id, Kind: kvwire.KindLayers, Layers: j.layersDone.Load()})
}

// deliver appends a notification, at once or when there is room. False: too many wait.
func (o *out) deliver(m message) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.inbox) == maxWaiting {
		return false
	}
	if len(o.inbox) > 0 || !o.segment.Deliver(m.record, m.payload) {
		o.inbox = append(o.inbox, m)
	}
	o.wake()
	return true
}

// flush tries again what waits for room, and reports whether something still does. Layers come before completions, which may end their jobs.
func (o *out) flush() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.layers)+len(o.completions)+len(o.inbox) == 0 {
		return false
	}
	for len(o.layers) > 0 && o.tell(o.layers[0]) {
		o.layers[0].telling = false
		o.layers = o.layers[1:]
	}
	for len(o.layers) == 0 && len(o.completions) > 0 && o.segment.Complete(&o.completions[0]) {
		o.completions = o.completions[1:]
	}
	for len(o.inbox) > 0 && o.segment.Deliver(o.inbox[0].record, o.inbox[0].payload) {
		o.inbox = o.inbox[1:]
	}
	o.wake()
	return len(o.layers)+len(o.completions)+len(o.inbox) > 0
}

func (o *out) wake() {
	if o.segment.WakeClient() {
		_, _ = o.bell.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) // never blocks: an eventfd that is full has rung
	}
}

func (o *out) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

package proxy

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"railhead/internal/kvwire"
	"railhead/internal/wire"
	"railhead/kvxfer/grant"
	"railhead/kvxfer/hostcopy"
	"railhead/kvxfer/paged"
	"railhead/kvxfer/transfer"
)

// The watchdog of a transfer: at least so many bytes arrive in each interval.
const (
	watchInterval = 5 * time.Second
	watchBytes    = 1 << 20
)

// job is a transfer of an agent.
type job struct {
	id       uint64
	agent    *Agent // that has asked for it
	priority uint32
	what     *what
	pieces   []piece
	payload  []byte // of the notification at the end; nil: none

	eachLayer  bool
	layersDone atomic.Uint32 // of the job's layers so many, the first ones, have arrived
	telling    bool          // waits in out.layers; out's mutex guards it
	queued     bool          // waits for a thread; the pool's mutex guards it

	mu       sync.Mutex // of what follows
	transfer *transfer.Transfer
	left     []int // pieces of each layer that have not arrived
	over     bool  // the client has been told
}

// what is what a transfer moves. Jobs that resume it share it.
type what struct {
	peer        *Agent
	rights      grant.Rights // that the transfer needs at the peer's
	reference   grant.Reference
	own, theirs *cache
	mover       *hostcopy.Mover
	firstLayer  int // of the model
	layers      int
	chunks      []chunk
}

// chunk is some tokens of a transfer, of any layer.
type chunk struct {
	places   []uint32 // in the grant's list
	prepared *paged.Prepared
	first    int // place of its first block in the list of the client's blocks
	blocks   int
}

// piece is what is moved at once.
type piece struct{ layer, chunk int } // layer: from the transfer's first one on

func newJob(a *Agent, s *kvwire.Submission, w *what, pieces []piece, payload []byte) (*job, error) {
	bytes := make([]uint64, len(pieces))
	j := &job{id: s.ID, agent: a, priority: s.Priority, what: w, pieces: pieces, payload: payload, eachLayer: s.Flags&kvwire.EachLayer != 0,
		left: make([]int, w.layers)}
	for i, p := range pieces {
		bytes[i] = w.chunks[p.chunk].prepared.Bytes()
		j.left[p.layer]++
	}
	j.countLayers()
	var err error
	j.transfer, err = transfer.New(bytes, transfer.Options{
		Deadline: a.node.now() + int64(min(s.TimeoutNs, maxTTL)), Interval: int64(watchInterval), Progress: watchBytes, Window: a.node.pool.size,
	})
	return j, err
}

// countLayers counts the layers that are complete, and reports whether there are more than before. The caller holds mu, or has the job alone.
func (j *job) countLayers() bool {
	before := j.layersDone.Load()
	done := before
	for int(done) < len(j.left) && j.left[done] == 0 {
		done++
	}
	j.layersDone.Store(done)
	return done > before
}

// next begins the next piece, if one may begin now.
func (j *job) next(now int64) (int, bool) {
	j.mu.Lock()
	i, ok := j.transfer.Next(now)
	j.settle()
	return i, ok
}

// move moves a piece that next has begun.
func (j *job) move(i int) {
	err := j.what.move(j.agent, j.pieces[i])
	now := j.agent.node.now()
	j.mu.Lock()
	layers := false
	switch {
	case err == nil:
		j.transfer.Arrive(i, now)
		j.left[j.pieces[i].layer]--
		layers = j.eachLayer && j.countLayers()
		j.agent.node.moved.Add(j.what.chunks[j.pieces[i].chunk].prepared.Bytes())
	case errors.Is(err, errEnding):
		j.transfer.Drop(i, err)
	default:
		j.transfer.Refuse(i, err)
	}
	if layers {
		j.agent.out.tellLayers(j)
	}
	again := j.settle()
	if again {
		j.agent.node.pool.add(j) // a piece may have waited for this one to end
	}
}

// settle ends the job if its transfer has ended, and unlocks. It reports whether the transfer goes on.
func (j *job) settle() (goesOn bool) {
	t := j.transfer
	ended := t.State() == transfer.Ended && !j.over
	j.over = j.over || ended
	goesOn = t.State() < transfer.Ending
	j.mu.Unlock()
	if ended {
		j.finish()
	}
	return goesOn
}

func (j *job) tick(now int64) {
	j.mu.Lock()
	j.transfer.Tick(now)
	j.settle()
}

func (j *job) cancel(why error) {
	j.mu.Lock()
	j.transfer.Cancel()
	j.settle()
}

// finish tells the client, and the peer. Nothing uses the transfer's memory any more.
func (j *job) finish() {
	a, t := j.agent, j.transfer
	done := kvwire.Completion{ID: j.id, Kind: kvwire.KindEnded, Bytes: t.Moved()}
	err := t.Err()
	if err == nil && j.payload != nil && !a.send(j.what.peer, j.payload) {
		err = fmt.Errorf("everything has arrived, but not the notification: %d wait for agent %s: %w", maxWaiting, j.what.peer.name, errLimit)
	}
	if err != nil {
		done.Missing = uint32(len(t.Missing()))
		done.Result = int32(resultOf(err))
		done.Text = kvwire.MakeText(err.Error())
	}
	a.mu.Lock()
	delete(a.jobs, j.id)
	if done.Missing > 0 {
		a.failed = append(a.failed, j)
		if len(a.failed) > maxFailed {
			a.failed = a.failed[1:]
		}
	}
	a.idle.Broadcast()
	a.mu.Unlock()
	a.node.count(j.what.rights, wire.Result(done.Result))
	a.out.complete(done)
	a.tellGrants()
	j.what.peer.tellGrants()
}

// maxFailed is of how many failed transfers an agent can ask what is missing, and resume them: the latest ones.
const maxFailed = 256

// move copies a piece, while its owner's grant is open.
func (w *what) move(a *Agent, p piece) error {
	c := &w.chunks[p.chunk]
	layer := w.firstLayer + p.layer
	own, err := a.pin(w.own, layer)
	if errors.Is(err, errPeerGone) {
		err = errEnding // it is this agent that has ended
	}
	if err != nil {
		return err
	}
	defer a.unpin(own)
	theirs, err := w.peer.pin(w.theirs, layer)
	if err != nil {
		return err
	}
	defer w.peer.unpin(theirs)
	use, err := w.peer.open(w.reference, a.name, w.rights, c.places)
	if err != nil {
		return err
	}
	for copied := range c.prepared.Layer(layer) {
		from, to := theirs, own
		if w.rights == grant.Write {
			from, to = own, theirs
		}
		if err = w.mover.Move(&copied, from[copied.Part].memory, to[copied.Part].memory); err != nil {
			break
		}
	}
	return errors.Join(err, w.peer.closeUse(use))
}

func (a *Agent) open(r grant.Reference, reader string, rights grant.Rights, places []uint32) (*grant.Use, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil, errPeerGone
	}
	return a.grants.Open(r, reader, rights, places, a.node.now())
}

func (a *Agent) closeUse(u *grant.Use) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return u.Close()
}

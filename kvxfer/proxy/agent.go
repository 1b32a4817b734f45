package proxy

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/kvwire"
	"railhead/kvxfer/grant"
)

// How an agent's loop waits for submissions.
const (
	spinFor    = 30 * time.Microsecond
	retryAfter = time.Millisecond // while completions or notifications wait for room
	helloLimit = 5 * time.Second
)

// Agent is one agent of this node. Its goroutines: converse reads the socket and ends the agent, loop reads the submissions.
type Agent struct {
	node        *Node
	id          uint64 // the daemon's number of it
	name        string
	incarnation uint64
	conn        *net.UnixConn
	segment     *kvwire.Segment
	bell        *os.File // the client rings it
	clientBell  *os.File
	ending      chan struct{}
	wait        sync.WaitGroup // loop

	mu      sync.Mutex // of what follows
	idle    *sync.Cond // a piece has left a region, or a transfer has ended
	ended   bool
	regions map[uint32]*region
	caches  map[uint32]*cache
	last    struct{ region, cache uint32 } // numbers
	grants  *grant.Table
	jobs    map[uint64]*job // under way
	failed  []*job          // the latest ones that can be resumed, oldest first

	out out // to the client

	sendMu    sync.Mutex
	sequences map[uint64]uint64 // of notifications, by the receiver's incarnation
}

// NewAgent starts an agent whose process is at the other end of the socket, and takes it over. After an error the client has been told why.
func (n *Node) NewAgent(id uint64, name string, conn *net.UnixConn) (*Agent, error) {
	a, err := n.newAgent(id, name, conn)
	if err != nil {
		refuseAgent(conn, err)
		_ = conn.Close()
		return nil, fmt.Errorf("KV agent %q: %w", name, err)
	}
	a.wait.Go(a.loop)
	n.wait.Go(a.converse)
	return a, nil
}

func (n *Node) newAgent(id uint64, name string, conn *net.UnixConn) (*Agent, error) {
	if err := kvwire.CheckName(name); err != nil {
		return nil, err
	}
	var random [8 + 32]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	a := &Agent{
		node: n, id: id, name: name, conn: conn, incarnation: binary.LittleEndian.Uint64(random[:]) | 1, ending: make(chan struct{}),
		regions: map[uint32]*region{}, caches: map[uint32]*cache{}, jobs: map[uint64]*job{}, sequences: map[uint64]uint64{},
	}
	a.idle = sync.NewCond(&a.mu)
	err := a.start(random[8:])
	if err == nil {
		err = n.add(a)
	}
	if err == nil {
		if err = a.hello(); err != nil {
			n.remove(a)
		}
	}
	if err != nil {
		a.closeFiles()
		return nil, err
	}
	return a, nil
}

// refuseAgent tells a client why it is no agent, in place of Hello.
func refuseAgent(conn *net.UnixConn, why error) {
	b, err := kvwire.Encode(0, &kvwire.Result{Code: int32(resultOf(why)), Text: kvwire.MakeText(why.Error())}, nil)
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(helloLimit))
		_, _ = conn.Write(b) // it may have gone
	}
}

// start makes what the client maps, and sends it.
func (a *Agent) start(key []byte) (err error) {
	if a.grants, err = grant.NewTable(a.incarnation, key); err != nil {
		return err
	}
	if a.segment, err = kvwire.NewSegment(a.node.config.Sizes, a.incarnation); err != nil {
		return err
	}
	a.out.segment = a.segment
	if a.bell, err = newBell(); err != nil {
		return err
	}
	if a.clientBell, err = newBell(); err != nil {
		return err
	}
	a.out.bell = a.clientBell
	return nil
}

func (a *Agent) hello() error {
	b, err := kvwire.Encode(0, &kvwire.Hello{Version: kvwire.Version, Incarnation: a.incarnation, SegmentBytes: a.segment.Bytes()}, nil)
	if err != nil {
		return err
	}
	fds := []int{a.segment.FD()}
	for _, f := range []*os.File{a.bell, a.clientBell} {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return err
		}
	}
	_ = a.conn.SetWriteDeadline(time.Now().Add(helloLimit))
	if _, _, err := a.conn.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	return nil
}

// loop takes submissions, and gives the client what had no room. It spins for a while, then sleeps until the client rings.
func (a *Agent) loop() {
	idleSince := time.Now()
	for {
		select {
		case <-a.ending:
			return
		default:
		}
		taken, err := a.take()
		if err != nil {
			a.node.config.Log.Warn("KV agent ended", "agent", a.name, "why", err)
			_ = a.conn.Close() // converse ends the agent
			return
		}
		waits := a.out.flush()
		if taken {
			idleSince = time.Now()
			continue
		}
		if time.Since(idleSince) < spinFor {
			continue
		}
		if a.sleep(waits) {
			idleSince = time.Now()
		}
	}
}

// take starts what has been submitted.
func (a *Agent) take() (any bool, err error) {
	for {
		s, bytes, ok, err := a.segment.Take()
		if err != nil || !ok {
			return any, err
		}
		any = true
		a.submit(&s, bytes)
	}
}

// sleep waits until the client rings, or until something that waits for room is to be tried again. It reports whether there is work.
func (a *Agent) sleep(waits bool) bool {
	if !a.segment.Sleep() {
		return true
	}
	deadline := time.Time{}
	if waits {
		deadline = time.Now().Add(retryAfter)
	}
	_ = a.bell.SetReadDeadline(deadline)
	var rings [8]byte
	_, err := a.bell.Read(rings[:])
	a.segment.Awake()
	return err == nil
}

// end ends the agent: nothing of its memory is used when it returns, and peers get errPeerGone.
func (a *Agent) end() {
	a.node.remove(a)
	a.mu.Lock()
	a.ended = true
	jobs := make([]*job, 0, len(a.jobs))
	for _, j := range a.jobs {
		jobs = append(jobs, j)
	}
	a.mu.Unlock()
	close(a.ending)
	_, _ = a.bell.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) // wakes the loop: what is written stays until it is read
	for _, j := range jobs {
		j.cancel(errEnding)
	}
	a.mu.Lock()
	for len(a.jobs) > 0 || a.used() {
		a.idle.Wait() // bounded: pieces that are being copied, each at most a few MiB
	}
	for _, r := range a.regions {
		_ = r.unmap()
	}
	a.regions = nil
	a.mu.Unlock()
	a.wait.Wait()
	a.node.forgetReader(a)
	a.closeFiles()
	_ = a.conn.Close()
}

// used reports whether a piece uses the agent's memory. The caller holds mu.
func (a *Agent) used() bool {
	for _, r := range a.regions {
		if r.uses > 0 {
			return true
		}
	}
	return false
}

// closeFiles closes everything but the socket.
func (a *Agent) closeFiles() {
	a.out.close()
	if a.segment != nil {
		_ = a.segment.Close()
	}
	for _, f := range []*os.File{a.bell, a.clientBell} {
		if f != nil {
			_ = f.Close()
		}
	}
}

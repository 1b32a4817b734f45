package server

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
)

// A rank dies at a random moment. Whenever that is, the other ranks get an answer that names it.

// live makes a rank's set-up calls, from comm_init to finalize, until the first error.
func live(r *rank) error {
	if err := initRank(r); err != nil {
		return err
	}
	w, err := r.comm.AllocWindow(1 << 17)
	if err == nil {
		err = w.Free()
	}
	if err == nil {
		err = registerOwned(r.comm, false)
	}
	if finalErr := r.comm.Finalize(); err == nil {
		err = finalErr
	}
	return err
}

// registerOwned registers memory that the caller unmaps afterwards. Without free the window lasts until finalize.
func registerOwned(c *client.Comm, free bool) error {
	fd, err := unix.MemfdCreate("vanish", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, ownedBytes); err != nil {
		return err
	}
	memory, err := unix.Mmap(fd, 0, ownedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(memory) }()
	w, err := c.Register(client.RegisterConfig{Memory: memory, FD: fd})
	if err != nil || !free {
		return err
	}
	for r := range c.WorldSize() {
		peer, err := w.Peer(r)
		if err != nil {
			return err
		}
		peer[ownedBytes-1-c.Rank()] = 1 // its owner may be dead
	}
	return w.Free()
}

// liveUntil makes the same calls without the client library, and closes its connection after this many messages, sent or received.
func (r *rawClient) liveUntil(group string, rank, world, messages int) {
	step := func(f func()) bool {
		if messages == 0 {
			return false
		}
		messages--
		f()
		return true
	}
	var got wire.Message
	receive := func() {
		m, fd, err := r.receive()
		if err != nil {
			r.t.Fatal(err)
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		got = m
	}
	var id uint64
	_ = step(func() { r.join(group, rank, world) }) &&
		step(func() { receive(); id = got.(*wire.Joined).Group }) &&
		step(receive) && step(receive) && step(receive) &&
		step(func() { r.answer(&wire.Attached{Group: id}) }) &&
		step(receive) &&
		step(func() { r.send(&wire.WindowAlloc{Group: id, Bytes: 1 << 17, Memory: wire.MemoryCPU}) }) &&
		step(receive) &&
		step(func() {
			r.answer(&wire.WindowCommitted{Group: id, Offset: got.(*wire.WindowCommit).Offset, Memory: wire.MemoryCPU})
		}) &&
		step(receive) &&
		step(func() {
			r.send(&wire.WindowFree{Group: id, Offset: got.(*wire.WindowReady).Offset, Memory: wire.MemoryCPU})
		}) &&
		step(receive) &&
		step(func() {
			r.register(&wire.Register{Group: id, Bytes: ownedBytes, Memory: wire.MemoryCPU}, shareable(r.t))
		}) &&
		step(receive) && step(receive) &&
		step(func() { r.answer(&wire.RegisterMapped{Group: id, Region: got.(*wire.PeerMemory).Region}) }) &&
		step(receive) &&
		step(func() { r.send(&wire.Leave{Group: id}) }) &&
		step(receive)
	r.close()
}

const lifeOfMessages = 20 // messages of a rank from Join to Left, in a group of three

func TestWheneverARankVanishesTheOthersLearnIt(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	here := connected(t, s, "vanish", 3, 0, 1)
	for i := range 60 {
		messages := 1 + i%lifeOfMessages
		wait := background(here, live)
		awaitGroup(t, s, "vanish", "has the others", func(g membership.GroupInfo) bool { return len(g.Ranks) == 2 })
		dialHello(t, s).liveUntil("vanish", 2, 3, messages)
		for rank, err := range wait() {
			switch got := resultOf(err); {
			case got == wire.ResultRankDead && messages < lifeOfMessages-1:
			case got == wire.ResultOK && messages >= lifeOfMessages-3: // it had finalized, or the others finalize a broken group
			default:
				t.Errorf("a rank vanishes after %d messages, and rank %d gets: %v", messages, rank, err)
			}
		}
		awaitNoGroups(t, s)
	}
}

func TestWheneverAProcessIsKilledTheOthersLearnIt(t *testing.T) {
	t.Parallel()
	killAtWork(t, "loop", reduce)
}

func TestWheneverAProcessWithRegisteredMemoryIsKilledTheOthersLearnIt(t *testing.T) {
	t.Parallel()
	killAtWork(t, "register_loop", registerAndFree)
}

func registerAndFree(c *client.Comm) error { return registerOwned(c, true) }

// killAtWork kills a child process that repeats the order `do` in a group with two ranks of this process.
func killAtWork(t *testing.T, do string, work func(*client.Comm) error) {
	t.Helper()
	const dead = 2
	s := startServer(t)
	here := connected(t, s, "killed", 3, 0, 1)
	for _, r := range here {
		r.config.HeapBytes = 0 // the default, as in the child
	}
	for range 12 {
		victim := startChild(t)
		wait := background(here, func(r *rank) error {
			if err := initRank(r); err != nil {
				return err
			}
			var err error
			for err == nil {
				err = work(r.comm)
			}
			if finalErr := r.comm.Finalize(); finalErr != nil {
				return fmt.Errorf("finalize: %w, after %w", finalErr, err)
			}
			return err
		})
		victim.tell(order{Do: "init", Socket: s.SocketPath(), Group: "killed", Rank: dead, World: 3, TimeoutMS: int(await.Never.Milliseconds())})
		victim.tell(order{Do: do})
		time.Sleep(time.Duration(rand.Intn(80)) * time.Millisecond)
		victim.kill()
		<-victim.gone
		for rank, err := range waitWithStandIn(t, s, wait, dead) {
			if resultOf(err) != wire.ResultRankDead {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		awaitNoGroups(t, s)
	}
}

// waitWithStandIn waits for the ranks. If the dead rank had not joined, or its group had failed before they joined, a stand-in joins and
// closes its connection.
func waitWithStandIn(t *testing.T, s *Server, wait func() []error, dead int) []error {
	t.Helper()
	done := make(chan []error, 1)
	go func() { done <- wait() }()
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); {
		select {
		case errs := <-done:
			return errs
		case <-time.After(5 * time.Millisecond):
		}
		for _, g := range statusOf(t, s).Groups {
			if g.State != membership.Forming || !slices.Contains(g.Missing, dead) {
				continue // the other ranks may be late
			}
			r := dialHello(t, s)
			m := joinMessage(g.Name, dead, 3)
			m.Common.HeapBytes = 0
			r.send(m)
			r.close()
		}
	}
	t.Fatal("the ranks do not return")
	return nil
}

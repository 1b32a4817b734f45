package proxy

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/kvwire"
	"railhead/internal/wire"
	"railhead/kvxfer/grant"
	"railhead/kvxfer/transfer"
)

// layered registers a cache of many layers, so that a transfer has many pieces: layers of blocks of 64 KiB.
const layeredBlock = 64 << 10

func (a *testAgent) layered(layers, blocks int) (cache uint32, memory []byte) {
	a.t.Helper()
	region, memory := a.region(layers * blocks * layeredBlock)
	m := &kvwire.Cache{
		Layers: uint32(layers), Parts: 1, Blocks: uint32(blocks), BlockTokens: 16, Heads: 1, HeadDim: layeredBlock / 16, Dtype: 3, NumPlaces: uint32(layers),
	}
	var places []kvwire.Place
	for l := range layers {
		places = append(places, kvwire.Place{Region: region, Offset: uint64(l * blocks * layeredBlock)})
	}
	return a.ask(m, places, -1).Number, memory
}

func upTo(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i)
	}
	return list
}

// gate lets threads move some pieces, and holds them before the next ones until it is opened.
type gate struct {
	left    atomic.Int64
	waiting atomic.Int64
	opened  chan struct{}
}

func newGate(pieces int64) *gate {
	g := &gate{opened: make(chan struct{})}
	g.left.Store(pieces)
	return g
}

func (g *gate) pass() {
	if g.left.Add(-1) < 0 {
		g.waiting.Add(1)
		<-g.opened
	}
}

// running starts a transfer of 64 layers, and returns when both threads wait at the gate.
func running(t *testing.T, g *gate, prefill, decode *testAgent) (id uint64, source, target []byte, ref kvwire.Reference, caches [2]uint32) {
	t.Helper()
	const layers, blocks = 64, 4
	caches[0], source = prefill.layered(layers, blocks)
	caches[1], target = decode.layered(layers, blocks)
	fill(source, 7)
	ref = prefill.grant(caches[0], decode.name, 1, kvwire.Range{Count: blocks})
	id = decode.start(op{
		Submission: kvwire.Submission{Op: kvwire.OpRead, Cache: caches[1], Tokens: blocks * 16, Reference: ref}, peer: prefill.name, own: upTo(blocks),
	})
	await(t, func() bool { return g.waiting.Load() == threads })
	return id, source, target, ref, caches
}

const threads = 2

// TestWhatEndsATransferInItsMiddle: each way has its own result, the transfer has moved a part, nothing is written after its end, and what is
// missing can be moved alone if the cause is gone.
func TestWhatEndsATransferInItsMiddle(t *testing.T) {
	for _, c := range []struct {
		name   string
		seen   func(n *Node, a *Agent, id uint64) bool // the proxy has seen it
		do     func(prefill, decode *testAgent, id uint64, ref kvwire.Reference, caches [2]uint32)
		want   wire.Result
		text   string
		resume wire.Result
	}{
		{"cancel", isEnding, func(_, decode *testAgent, id uint64, _ kvwire.Reference, _ [2]uint32) {
			if err := decode.Submit(kvwire.Submission{ID: id, Op: kvwire.OpCancel}, nil); err != nil {
				decode.t.Error(err)
			}
		}, wire.ResultCancelled, "was cancelled", wire.ResultOK},
		{"revoke", answered, func(prefill, _ *testAgent, _ uint64, ref kvwire.Reference, _ [2]uint32) {
			prefill.ask(&kvwire.Revoke{Reference: ref}, nil, -1)
		}, wire.ResultRefused, "was revoked", wire.ResultRefused},
		{"reuse", answered, func(prefill, _ *testAgent, _ uint64, _ kvwire.Reference, caches [2]uint32) {
			prefill.ask(&kvwire.Reuse{Cache: caches[0], Ranges: 1}, []kvwire.Range{{First: 3, Count: 1}}, -1)
		}, wire.ResultStale, "used the block again", wire.ResultStale},
		{"free", answered, func(prefill, _ *testAgent, _ uint64, _ kvwire.Reference, _ [2]uint32) {
			prefill.ask(&kvwire.RegionFree{Region: 1}, nil, -1)
		}, wire.ResultStale, "its memory was freed", wire.ResultStale},
		{"the peer goes", hasNoPeer, func(prefill, _ *testAgent, _ uint64, _ kvwire.Reference, _ [2]uint32) {
			prefill.leave()
		}, wire.ResultStale, "the peer has ended", wire.ResultStale},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate(8)
			n := startNode(t, Config{Threads: threads, beforePiece: g.pass})
			prefill, decode := join(t, n, "prefill"), join(t, n, "decode")
			id, source, target, ref, caches := running(t, g, prefill, decode)
			a, err := n.agent("decode")
			if err != nil {
				t.Fatal(err)
			}
			c.do(prefill, decode, id, ref, caches)
			await(t, func() bool { return c.seen(n, a, id) })
			close(g.opened)
			end := decode.end(id)
			if wire.Result(end.Result) != c.want || !bytes.Contains(end.Text[:], []byte(c.text)) {
				t.Fatalf("%v %q, want %v with %q", wire.Result(end.Result), end.Text, c.want, c.text)
			}
			if end.Missing == 0 || end.Bytes == 0 {
				t.Errorf("%d pieces are missing, %d bytes have arrived", end.Missing, end.Bytes)
			}
			decode.checkMissing(id, end, source, target)
			clear(target) // nothing writes it any more
			time.Sleep(2 * time.Millisecond)
			if slices.ContainsFunc(target, func(b byte) bool { return b != 0 }) {
				t.Error("the memory was written after the end")
			}
			again := decode.resume(id)
			if wire.Result(again.Result) != c.resume {
				t.Errorf("resumed: %v %v, want %v", wire.Result(again.Result), again.Text, c.resume)
			}
			if c.resume == wire.ResultOK && again.Bytes+end.Bytes != uint64(len(target)) {
				t.Errorf("%d and then %d bytes of %d", end.Bytes, again.Bytes, len(target))
			}
		})
	}
}

func answered(*Node, *Agent, uint64) bool { return true }

func hasNoPeer(n *Node, _ *Agent, _ uint64) bool {
	_, err := n.agent("prefill")
	return err != nil
}

func isEnding(_ *Node, a *Agent, id uint64) bool {
	a.mu.Lock()
	j := a.jobs[id]
	a.mu.Unlock()
	if j == nil {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.transfer.State() >= transfer.Ending
}

func await(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}

// resume moves what is missing of a transfer.
func (a *testAgent) resume(id uint64) kvwire.Completion {
	a.t.Helper()
	a.last++
	if err := a.Submit(kvwire.Submission{ID: a.last, Op: kvwire.OpResume, TimeoutNs: uint64(limit)}, binary.LittleEndian.AppendUint64(nil, id)); err != nil {
		a.t.Fatal(err)
	}
	return a.end(a.last)
}

// missing lists what is missing of a transfer.
func (a *testAgent) missing(id uint64, from, most uint32) []kvwire.Piece {
	a.t.Helper()
	r, list, err := a.Ask(&kvwire.Missing{ID: id, From: from, Most: most}, nil, -1)
	if err != nil || r.Code != 0 {
		a.t.Fatalf("%v, %v", err, r)
	}
	pieces := make([]kvwire.Piece, r.Number)
	if _, err := binary.Decode(list, binary.LittleEndian, pieces); err != nil {
		a.t.Fatal(err)
	}
	return pieces
}

// checkMissing checks that all pieces which are not listed as missing have arrived.
func (a *testAgent) checkMissing(id uint64, end kvwire.Completion, source, target []byte) {
	a.t.Helper()
	pieces := append(a.missing(id, 0, 1), a.missing(id, 1, 1<<20)...)
	if len(pieces) != int(end.Missing) {
		a.t.Errorf("%d pieces are listed, %d are missing", len(pieces), end.Missing)
	}
	listed := map[[2]int]bool{}
	for _, p := range pieces {
		for b := range p.Blocks {
			listed[[2]int{int(p.Layer), int(p.FirstBlock + b)}] = true
		}
	}
	blocks := len(target) / layeredBlock / 64
	bytesOf := uint64(0)
	for i := range len(target) / layeredBlock {
		if listed[[2]int{i / blocks, i % blocks}] {
			continue
		}
		bytesOf += layeredBlock
		if !bytes.Equal(source[i*layeredBlock:][:layeredBlock], target[i*layeredBlock:][:layeredBlock]) {
			a.t.Errorf("layer %d block %d is not missing, and has not arrived", i/blocks, i%blocks)
		}
	}
	if bytesOf != end.Bytes {
		a.t.Errorf("%d bytes have arrived, and are not missing; %d are said", bytesOf, end.Bytes)
	}
}

func TestATransferEndsByItsDeadlineThoughNoThreadMovesIt(t *testing.T) {
	n := startNode(t, Config{})
	prefill, decode := join(t, n, "prefill"), join(t, n, "decode")
	const blocks = 256 // more than the agent's loop moves itself
	source, _ := prefill.pool(blocks, blockBytes, granule)
	target, _ := decode.pool(blocks, blockBytes, granule)
	ref := prefill.grant(source, "decode", 1, kvwire.Range{Count: blocks})
	done := make(chan kvwire.Completion)
	n.pool.mu.Lock()
	n.pool.closed = true // no thread takes anything any more
	n.pool.work.Broadcast()
	n.pool.mu.Unlock()
	n.pool.wait.Wait()
	go func() {
		done <- decode.end(decode.start(op{
			Submission: kvwire.Submission{Op: kvwire.OpRead, Cache: target, Tokens: blocks * blockBytes / granule, Reference: ref, TimeoutNs: uint64(20 * time.Millisecond)},
			peer:       "prefill", own: upTo(blocks),
		}))
	}()
	if c := <-done; wire.Result(c.Result) != wire.ResultTimeout || c.Missing != 1 {
		t.Errorf("%v %v, %d missing", wire.Result(c.Result), c.Text, c.Missing)
	}
}

// TestABlockThatIsBeingWrittenIsTheOwnersWhenTheWriteHasEnded: Reuse says that it waits, no other write begins, and the event comes.
func TestABlockThatIsBeingWrittenIsTheOwnersWhenTheWriteHasEnded(t *testing.T) {
	n := startNode(t, Config{})
	prefill, decode := join(t, n, "prefill"), join(t, n, "decode")
	target, _ := decode.pool(4, blockBytes, granule)
	source, _ := prefill.pool(4, blockBytes, granule)
	ref := decode.grant(target, "prefill", 2, kvwire.Range{Count: 4})
	owner, err := n.agent("decode")
	if err != nil {
		t.Fatal(err)
	}
	// The write of a piece, held in its middle.
	parsed := parse(t, ref)
	use, err := owner.open(parsed, "prefill", 2, []uint32{1})
	if err != nil {
		t.Fatal(err)
	}
	if waiting := decode.ask(&kvwire.Reuse{Cache: target, Ranges: 1}, []kvwire.Range{{First: 0, Count: 3}}, -1).Number; waiting != 1 {
		t.Errorf("%d blocks wait, want 1", waiting)
	}
	prefill.fails(op{
		Submission: kvwire.Submission{Op: kvwire.OpWrite, Cache: source, Tokens: 16, Reference: ref}, peer: "decode", own: []uint32{0}, places: []uint32{1},
	}, wire.ResultStale, "used the block again")
	if c, ok := decode.Reap(); ok {
		t.Errorf("%+v while the write is open", c)
	}
	if err := owner.closeUse(use); err != nil {
		t.Error(err)
	}
	owner.tellGrants()
	c, err := decode.Wait(limit)
	if err != nil || c.Kind != kvwire.KindBlockFree || c.Cache != target || c.Block != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestTheOwnerIsToldWhenAGrantEnds(t *testing.T) {
	n := startNode(t, Config{})
	prefill, decode := join(t, n, "prefill"), join(t, n, "decode")
	source, _ := prefill.pool(4, blockBytes, granule)
	numbers := map[uint32]uint64{}
	for reason, ref := range map[uint32]kvwire.Reference{
		1: prefill.grant(source, "other", 1, kvwire.Range{Count: 1}),
		2: prefill.grantFor(time.Millisecond, source, "other", 1, kvwire.Range{Count: 1}),
		3: prefill.grant(source, "decode", 1, kvwire.Range{Count: 1}),
	} {
		numbers[reason] = parse(t, ref).Number
		if reason == 1 {
			prefill.ask(&kvwire.Revoke{Reference: ref}, nil, -1)
		}
	}
	decode.leave()
	for range 3 {
		c, err := prefill.Wait(limit)
		if err != nil {
			t.Fatal(err)
		}
		if c.Kind != kvwire.KindGrantEnded || c.Grant != numbers[c.Reason] {
			t.Errorf("%+v, want number %d", c, numbers[c.Reason])
		}
		delete(numbers, c.Reason)
	}
	if len(numbers) > 0 {
		t.Errorf("not told of %v", numbers)
	}
}

// TestAnAgentThatGoesLeavesNothing: no descriptor, mapping or goroutine, however many come and go, also in the middle of transfers.
func TestAnAgentThatGoesLeavesNothing(t *testing.T) {
	n := startNode(t, Config{})
	prefill := join(t, n, "prefill")
	source, _ := prefill.pool(64, blockBytes, granule)
	count := func() int {
		names, err := unixFDs()
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := count()
	for i := range 100 {
		a := join(t, n, "comes")
		cache, _ := a.pool(64, blockBytes, granule)
		ref := prefill.grant(source, a.name, 1, kvwire.Range{Count: 64})
		id := a.start(op{Submission: kvwire.Submission{Op: kvwire.OpRead, Cache: cache, Tokens: 64 * 16, Reference: ref}, peer: "prefill", own: upTo(64)})
		if i%2 == 0 {
			a.end(id)
		}
		a.leave()
		for deadline := time.Now().Add(limit); len(n.all()) > 1; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(deadline) {
				t.Fatal("the agent is still there")
			}
		}
	}
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if now := count(); now <= before+100 { // the test's own memfds are closed at its end
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d before", now, before)
		}
	}
}

func unixFDs() (int, error) {
	fd, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	n := 0
	buffer := make([]byte, 1<<16)
	for {
		got, err := unix.ReadDirent(fd, buffer)
		if err != nil || got == 0 {
			return n, err
		}
		_, _, names := unix.ParseDirent(buffer[:got], -1, nil)
		n += len(names)
	}
}

// parse parses a reference.
func parse(t *testing.T, ref kvwire.Reference) grant.Reference {
	t.Helper()
	r, err := grant.ParseReference(ref[:])
	if err != nil {
		t.Fatal(err)
	}
	return r
}

package proxy

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"railhead/internal/kvwire"
	"railhead/internal/wire"
)

const (
	blockBytes = 4096
	granule    = 256
)

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func blockOf(memory []byte, i uint32) []byte { return memory[int(i)*blockBytes:][:blockBytes] }

func TestBlocksAreReadAndWrittenByTheirPlacesInAGrant(t *testing.T) {
	n := startNode(t, Config{})
	prefill, decode := join(t, n, "prefill"), join(t, n, "decode")
	source, src := prefill.pool(64, blockBytes, granule)
	target, dst := decode.pool(64, blockBytes, granule)
	fill(src, 1)
	fill(dst, 2)
	before := bytes.Clone(dst)

	ref := prefill.grant(source, "decode", 1, kvwire.Range{First: 10, Count: 3}, kvwire.Range{First: 40, Count: 2})
	c := decode.do(op{
		Submission: kvwire.Submission{Op: kvwire.OpRead, Cache: target, Tokens: 3 * blockBytes / granule, Reference: ref}, peer: "prefill",
		own: []uint32{7, 3, 60}, places: []uint32{4, 0, 2},
	})
	if c.Bytes != 3*blockBytes || c.Missing != 0 {
		t.Errorf("%d bytes, %d pieces missing", c.Bytes, c.Missing)
	}
	for own, theirs := range map[uint32]uint32{7: 41, 3: 10, 60: 12} {
		if !bytes.Equal(blockOf(dst, own), blockOf(src, theirs)) {
			t.Errorf("block %d is not the prefill's block %d", own, theirs)
		}
		copy(blockOf(before, own), blockOf(src, theirs))
	}
	if !bytes.Equal(dst, before) {
		t.Error("other blocks were written")
	}

	// A write of tokens 5 to 20, which begin and end within blocks, to the grant's first blocks.
	ref = prefill.grant(source, "decode", 2, kvwire.Range{First: 20, Count: 4})
	want := bytes.Clone(src)
	copy(want[20*blockBytes+5*granule:], dst[2*blockBytes+9*granule:3*blockBytes])
	copy(want[20*blockBytes+12*granule:20*blockBytes+21*granule], dst[9*blockBytes:])
	decode.do(op{
		Submission: kvwire.Submission{Op: kvwire.OpWrite, Cache: target, Tokens: 16, PeerToken: 5, OwnToken: 9, Reference: ref}, peer: "prefill",
		own: []uint32{2, 9},
	})
	if !bytes.Equal(src, want) {
		t.Error("the write went elsewhere")
	}
}

// TestWhatATransferIsRefusedFor: nothing is moved, and the error says whose fault it is.
func TestWhatATransferIsRefusedFor(t *testing.T) {
	n := startNode(t, Config{})
	prefill, decode, other := join(t, n, "prefill"), join(t, n, "decode"), join(t, n, "other")
	source, src := prefill.pool(8, blockBytes, granule)
	target, dst := decode.pool(8, blockBytes, granule)
	others, _ := other.pool(8, blockBytes, granule)
	fill(src, 1)
	before := bytes.Clone(dst)
	ref := prefill.grant(source, "decode", 1, kvwire.Range{First: 0, Count: 4})
	forged := ref
	forged[20] ^= 1
	expired := prefill.grantFor(time.Nanosecond, source, "decode", 1, kvwire.Range{First: 0, Count: 4})
	revoked := prefill.grant(source, "decode", 1, kvwire.Range{First: 0, Count: 4})
	prefill.ask(&kvwire.Revoke{Reference: revoked}, nil, -1)
	stale := prefill.grant(source, "decode", 1, kvwire.Range{First: 4, Count: 1})
	prefill.ask(&kvwire.Reuse{Cache: source, Ranges: 1}, []kvwire.Range{{First: 4, Count: 1}}, -1)
	own := other.grant(others, "decode", 1, kvwire.Range{First: 0, Count: 4})

	good := op{
		Submission: kvwire.Submission{Op: kvwire.OpRead, Cache: target, Tokens: blockBytes / granule, Reference: ref}, peer: "prefill", own: []uint32{0},
	}
	change := func(f func(*op)) op {
		o := good
		f(&o)
		return o
	}
	for _, c := range []struct {
		o    op
		want wire.Result
		text string
	}{
		{change(func(o *op) { o.peer = "nobody" }), wire.ResultNoPeer, `agent "nobody"`},
		{change(func(o *op) { o.peer = "" }), wire.ResultInvalidArgument, "a name of 0 bytes"},
		{change(func(o *op) { o.Op = kvwire.OpWrite }), wire.ResultRefused, "does not allow this"},
		{change(func(o *op) { o.Op = 77 }), wire.ResultInvalidArgument, "operation 77"},
		{change(func(o *op) { o.Reference = forged }), wire.ResultRefused, "was not made by its owner"},
		{change(func(o *op) { o.Reference = expired }), wire.ResultExpired, "has expired"},
		{change(func(o *op) { o.Reference = revoked }), wire.ResultRefused, "was revoked"},
		{change(func(o *op) { o.Reference = stale }), wire.ResultStale, "used the block again"},
		{change(func(o *op) { o.Reference = own }), wire.ResultStale, "of another process"},
		{change(func(o *op) { o.places = []uint32{4} }), wire.ResultRefused, "place 4 of 4"},
		{change(func(o *op) { o.Tokens = 5 * blockBytes / granule; o.own = []uint32{0, 1, 2, 3, 4} }), wire.ResultRefused, "place 4 of 4"},
		{change(func(o *op) { o.own = []uint32{8} }), wire.ResultInvalidArgument, "block 8"},
		{change(func(o *op) { o.Tokens = 2 * blockBytes / granule; o.own = []uint32{3, 3} }), wire.ResultInvalidArgument, "block 3 occurs twice"},
		{change(func(o *op) { o.Tokens++ }), wire.ResultInvalidArgument, "1 blocks of 16 tokens"},
		{change(func(o *op) { o.Tokens = 0 }), wire.ResultInvalidArgument, "no tokens"},
		{change(func(o *op) { o.Tokens, o.PeerToken = 1<<32-1, 1<<32-1 }), wire.ResultRefused, ""},
		{change(func(o *op) { o.Cache = 9 }), wire.ResultInvalidArgument, "cache 9"},
		{change(func(o *op) { o.Priority = 4 }), wire.ResultInvalidArgument, "priority 4"},
		{change(func(o *op) { o.FirstLayer, o.Layers = 1, 1 }), wire.ResultInvalidArgument, "layers 1 to 1"},
		{change(func(o *op) { o.TimeoutNs = 1 }), wire.ResultTimeout, "deadline"},
	} {
		decode.fails(c.o, c.want, c.text)
	}
	if id := other.start(good); true {
		if c := other.end(id); wire.Result(c.Result) != wire.ResultRefused && wire.Result(c.Result) != wire.ResultInvalidArgument {
			t.Errorf("another agent with decode's reference: %v %v", wire.Result(c.Result), c.Text)
		}
	}
	o := good
	o.Cache = others
	other.fails(o, wire.ResultRefused, "another process's")
	if !bytes.Equal(dst, before) {
		t.Error("a refused transfer has written")
	}
	decode.do(good)
}

func TestALargeTransferIsCutIntoPiecesAndEachLayerIsTold(t *testing.T) {
	n := startNode(t, Config{Threads: 3})
	prefill, decode := join(t, n, "prefill"), join(t, n, "decode")
	const layers, blocks, tokens, dim = 5, 600, 16, 64 // 2,048 bytes a block and part in bf16
	cache := func(a *testAgent) (uint32, []byte) {
		const block = tokens * dim * 2
		region, memory := a.region(layers * 2 * blocks * block)
		m := &kvwire.Cache{Layers: layers, Parts: 2, Blocks: blocks, BlockTokens: tokens, Heads: 1, HeadDim: dim, Dtype: 2, FirstLayer: 20, NumPlaces: layers}
		var places []kvwire.Place
		for i := range layers {
			places = append(places, kvwire.Place{Region: region, Offset: uint64(i * 2 * blocks * block)})
		}
		return a.ask(m, places, -1).Number, memory
	}
	source, src := cache(prefill)
	target, dst := cache(decode)
	fill(src, 3)
	ref := prefill.grant(source, "decode", 1, kvwire.Range{First: 0, Count: blocks})
	own := make([]uint32, blocks)
	for i := range own {
		own[i] = uint32(i)
	}
	id := decode.start(op{
		Submission: kvwire.Submission{Op: kvwire.OpRead, Flags: kvwire.EachLayer, Cache: target, Tokens: blocks * tokens, Reference: ref}, peer: "prefill",
		own: own, payload: []byte("request 5 is there"),
	})
	told := uint32(0)
	for {
		c, err := decode.Wait(limit)
		if err != nil {
			t.Fatal(err)
		}
		if c.ID != id {
			t.Fatalf("a completion of %d", c.ID)
		}
		if c.Kind == kvwire.KindEnded {
			if c.Result != 0 || c.Bytes != uint64(len(src)) {
				t.Fatalf("%v %v, %d bytes", wire.Result(c.Result), c.Text, c.Bytes)
			}
			break
		}
		if c.Layers <= told {
			t.Errorf("%d layers after %d", c.Layers, told)
		}
		told = c.Layers
		if end := int(told) * 2 * blocks * tokens * dim * 2; !bytes.Equal(src[:end], dst[:end]) {
			t.Errorf("%d layers are told of, and not there", told)
		}
	}
	if told != layers {
		t.Errorf("%d layers were told of", told)
	}
	if !bytes.Equal(src, dst) {
		t.Error("wrong bytes")
	}
	r, payload, ok := prefill.Receive()
	if !ok || string(payload) != "request 5 is there" || r.Sender.String() != "decode" || r.Sequence != 1 || r.Incarnation != decode.Hello.Incarnation {
		t.Errorf("the notification: %t %q of %v, number %d", ok, payload, r.Sender, r.Sequence)
	}
}

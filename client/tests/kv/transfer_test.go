package kv

import (
	"bytes"
	"testing"
	"time"

	"railhead/client"
)

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7+i>>8) + seed
	}
}

func TestAnAgentReadsAndWritesBlocksOfAnother(t *testing.T) {
	s := startDaemon(t)
	prefill, decode := join(t, connect(t, s), "prefill", 16), join(t, connect(t, s), "decode", 16)
	fill(prefill.memory, 1)
	read := prefill.grant([]uint32{3, 9, 4}, client.KVRead, "decode")
	e := decode.do(client.KVTransfer{
		Op: client.KVRead, Cache: decode.pool, Peer: "prefill", Reference: read, Blocks: []uint32{0, 8}, Places: []uint32{2, 0}, Notification: []byte("took it"),
	})
	if err := e.Err(); err != nil || e.Bytes != 2*blockBytes {
		t.Fatalf("%v, %d bytes", err, e.Bytes)
	}
	if !bytes.Equal(decode.block(0), prefill.block(4)) || !bytes.Equal(decode.block(8), prefill.block(3)) {
		t.Error("wrong bytes were read")
	}
	n := prefill.notification()
	if incarnation, err := decode.Incarnation(); err != nil || n.Sender != "decode" || string(n.Payload) != "took it" || n.Sequence != 1 || n.Incarnation != incarnation {
		t.Errorf("%+v, of incarnation %#x, %v", n, incarnation, err)
	}

	write := prefill.grant(nil, client.KVWrite, "decode")
	fill(decode.memory, 99)
	if err := decode.do(client.KVTransfer{Op: client.KVWrite, Cache: decode.pool, Peer: "prefill", Reference: write, Blocks: []uint32{5}, Token: 3, PeerToken: 17}); err.Err() != nil {
		t.Fatal(err.Err())
	}
	if !bytes.Equal(prefill.block(1)[granule:14*granule], decode.block(5)[3*granule:]) {
		t.Error("wrong bytes were written")
	}
}

// notification waits for one.
func (a *agent) notification() *client.KVNotification {
	a.t.Helper()
	for deadline := time.Now().Add(limit); ; {
		n, err := a.Receive()
		if err != nil {
			a.t.Fatal(err)
		}
		if n != nil {
			return n
		}
		if time.Now().After(deadline) {
			a.t.Fatal("no notification")
		}
		if events, err := a.Poll(time.Second); err != nil || len(events) > 0 {
			a.t.Fatalf("%v %v", events, err)
		}
	}
}

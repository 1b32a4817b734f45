package hostile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

// offersAt is the offset in a heap of pull's two offers, of the buffers that a rank sends from and receives into
// (kernels/include/railhead/exchange/flags.h).
const offersAt = 128

// offers are those two. Each is a place that the other ranks map, or noOffer.
type offers [2]uint64

const noOffer = math.MaxUint64

// heapOf is a descriptor of rank 0's heap. It is atomic, because the fake daemon is another goroutine.
type heapOf struct{ fd atomic.Int64 }

// pulls is such a daemon whose plans have all-reduces pull in windows. It notes rank 0's heap.
func (h *heapOf) pulls(t *testing.T, spoil func(*fake, int, []answer) []answer) func(*fake, int, []answer) []answer {
	return func(f *fake, turn int, answers []answer) []answer {
		answers = spoil(f, turn, answers)
		if turn == turnJoin {
			p := simplePlans(2)
			p.ZeroCopy[wire.PlanAllReduce].Choice[0].Algo = uint16(wire.AlgoPull)
			f.writePlans(answers[0].fds[0], p)
			h.fd.Store(int64(keep(t, answers[1].fds[0])))
		}
		return answers
	}
}

// offered is what rank 0 offers in an all-reduce of the memory, which fails without rank 1. It ends the use of the heap.
func (h *heapOf) offered(c *client.Comm, memory []byte) (o offers, err error) {
	defer func() { _ = unix.Close(int(h.fd.Load())) }()
	if c.AllReduce(memory, memory, len(memory)/4, client.F32, client.Sum) == nil {
		return o, errors.New("an all-reduce without rank 1 has succeeded")
	}
	b := make([]byte, 16)
	if _, err := unix.Pread(int(h.fd.Load()), b, offersAt); err != nil {
		return o, err
	}
	return o, binary.Read(bytes.NewReader(b), binary.LittleEndian, &o)
}

func TestRegisteredMemoryIsOffered(t *testing.T) {
	var heap heapOf
	c, leave := joinFor(t, startFake(t, heap.pulls(t, fakePair(gives(peer()), nil))), 2, 300*time.Millisecond)
	defer leave()
	o := ownMemfd(t, peerBytes)
	defer o.Release()
	if _, err := c.Register(o.Config()); err != nil {
		t.Fatal(err)
	}
	const window1 = 1 << wire.RegionShift
	if got, err := heap.offered(c, o.Memory); err != nil || got != (offers{window1, window1}) {
		t.Errorf("offers %#x, %v", got, err)
	}
}

// While the daemon answers, other threads make so many windows that there is no handle for this one. The other ranks have it, but the caller may
// unmap its memory.
func TestMemoryOfAWindowWithoutAHandleIsNotOffered(t *testing.T) {
	deep.Only(t)             // makes all windows of the process
	const maxWindows = 16384 // client/memory/window.h
	others, leave := joinFake(t, startFake(t, nil), 1)
	defer leave()
	var heap heapOf
	c, leave := joinFake(t, startFake(t, heap.pulls(t, fakePair(gives(peer()), func(_ *fake, request uint64) []answer {
		for range maxWindows {
			if _, err := others.AllocWindow(fakeWindow); err != nil {
				t.Error(err)
				break
			}
		}
		return says(wire.Registered{Region: 1, StagedLocal: -1})(nil, request)
	}))), 2)
	defer leave()
	o := ownMemfd(t, peerBytes)
	defer o.Release()
	_, err := c.Register(o.Config())
	wantError(t, err, wire.ResultLimit, "window_register: rank 0", "16384 windows")
	time.AfterFunc(time.Second, func() { _ = c.Abort() })
	if got, err := heap.offered(c, o.Memory); err != nil || got != (offers{noOffer, noOffer}) {
		t.Errorf("offers %#x, %v", got, err)
	}
}

package tests

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
)

const (
	hugePeriod = 2 << 20
	hugeTail   = 1<<20 + 4096 - 3 // bytes after the last whole period
	hugeCount  = 1<<32 + hugeTail // bytes
)

// huge is a range of hugeCount bytes that uses the memory of two periods: all but the tail maps the same period again and again. A correct
// operation writes the same value to all mappings of a byte.
type huge struct{ all, period, tail, guard []byte }

func newHuge(t *testing.T) huge {
	t.Helper()
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatalf("memfd: %v", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, 2*hugePeriod); err != nil {
		t.Fatalf("ftruncate: %v", err)
	}
	const reserved = hugeCount/hugePeriod*hugePeriod + hugePeriod
	base, err := unix.MmapPtr(-1, 0, nil, reserved, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatalf("cannot reserve %d bytes of address space: %v", reserved, err)
	}
	t.Cleanup(func() {
		if err := unix.MunmapPtr(base, reserved); err != nil {
			t.Error(err)
		}
	})
	for at := 0; at < reserved; at += hugePeriod {
		offset := int64(0)
		if at+hugePeriod == reserved {
			offset = hugePeriod
		}
		if _, err := unix.MmapPtr(fd, offset, unsafe.Add(base, at), hugePeriod, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			t.Fatalf("map period at %d: %v", at, err)
		}
	}
	whole := unsafe.Slice((*byte)(base), reserved)
	last := reserved - hugePeriod
	return huge{whole[:hugeCount:hugeCount], whole[:hugePeriod], whole[last:hugeCount:hugeCount], whole[hugeCount:]}
}

// fill calls value for the period, number 0, and the tail, number 1, and fills the guard.
func (h huge) fill(value func(part []byte, number int)) {
	value(h.period, 0)
	value(h.tail, 1)
	for i := range h.guard {
		h.guard[i] = guardByte
	}
}

// check compares period and tail, and checks that the guard is unchanged.
func (h huge) check(period, tail []byte) error {
	for name, c := range map[string][2][]byte{
		"period": {h.period, period}, "tail": {h.tail, tail}, "guard": {h.guard, bytes.Repeat([]byte{guardByte}, len(h.guard))},
	} {
		if !bytes.Equal(c[0], c[1]) {
			return fmt.Errorf("%d bytes of the %s are wrong", oracle.Differences(c[0], c[1], oracle.U8), name)
		}
	}
	return nil
}

func TestCountsAbove2To32(t *testing.T) {
	deep.Only(t)
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	var send, recv [2]huge
	var inputs [2][][]byte // by part, by rank
	for r := range ranks {
		send[r], recv[r] = newHuge(t), newHuge(t)
		send[r].fill(func(part []byte, number int) {
			oracle.Fill(part, oracle.I8, oracle.Sum, oracle.Seed(8, r, number))
			inputs[number] = append(inputs[number], bytes.Clone(part))
		})
	}
	sum := func(part int) []byte { return oracle.Reduce(oracle.I8, oracle.Sum, inputs[part], 0, nil) }
	for _, c := range []struct {
		name         string
		call         func(m member, send, recv []byte) error
		period, tail []byte
	}{
		{"all_reduce", func(m member, send, recv []byte) error {
			return m.AllReduce(send, recv, hugeCount, client.I8, client.Sum)
		}, sum(0), sum(1)},
		{"broadcast", func(m member, send, recv []byte) error {
			return m.Broadcast(send, recv, hugeCount, client.U8, 1)
		}, inputs[0][1], inputs[1][1]},
		{"send and recv", func(m member, send, recv []byte) error {
			if m.Rank() == 0 {
				copy(recv, send[:hugePeriod]) // for the check of both ranks' recv below
				copy(recv[hugeCount-hugeTail:], send[hugeCount-hugeTail:])
				return m.Send(send, hugeCount, client.I8, 1)
			}
			return m.Recv(recv, hugeCount, client.I8, 0)
		}, inputs[0][0], inputs[1][0]},
	} {
		all(t, ranks, func(m member) error {
			in, out := send[m.Rank()], recv[m.Rank()]
			out.fill(func(part []byte, _ int) { copy(part, bytes.Repeat([]byte{poison}, len(part))) })
			if err := c.call(m, in.all, out.all); err != nil {
				return err
			}
			if err := out.check(c.period, c.tail); err != nil {
				return fmt.Errorf("%s: recv: %w", c.name, err)
			}
			if err := in.check(inputs[0][m.Rank()], inputs[1][m.Rank()]); err != nil {
				return fmt.Errorf("%s: send was changed: %w", c.name, err)
			}
			return nil
		})
	}
}

// A buffer with a part for each rank, in which a part begins beyond 2^31. All bytes of an input are equal, so that parts may share memory.
func TestOffsetsOfPartsAbove2To31(t *testing.T) {
	deep.Only(t)
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	const part = hugeCount / 2 // hugeCount is odd: its last byte is in no part
	var whole, other [2]huge
	for r := range ranks {
		whole[r], other[r] = newHuge(t), newHuge(t)
	}
	for _, c := range []struct {
		name string
		call func(m member, whole, other []byte) error
		// The values of whole and other before the call, and after it.
		whole, other, wholeAfter, otherAfter byte
	}{
		{"all_gather", func(m member, whole, other []byte) error {
			return m.AllGather(other, whole, part, client.U8)
		}, poison, 7, 7, 7},
		{"all_to_all", func(m member, whole, other []byte) error {
			return m.AllToAll(other, whole, part, client.U8)
		}, poison, 7, 7, 7},
		{"reduce_scatter", func(m member, whole, other []byte) error {
			return m.ReduceScatter(whole, other, part, client.U8, client.Sum)
		}, 7, poison, 7, 14},
	} {
		all(t, ranks, func(m member) error {
			w, o := whole[m.Rank()], other[m.Rank()]
			w.set(c.whole)
			o.set(c.other)
			if err := c.call(m, w.all, o.all); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := w.holds(c.wholeAfter, c.whole); err != nil {
				return fmt.Errorf("%s: whole: %w", c.name, err)
			}
			// A part of reduce_scatter ends within the range, so only its bytes in the period can be checked.
			if o.period[0] != c.otherAfter {
				return fmt.Errorf("%s: part: byte 0 is %d, want %d", c.name, o.period[0], c.otherAfter)
			}
			return nil
		})
	}
}

func (h huge) set(value byte) {
	h.fill(func(part []byte, _ int) { copy(part, bytes.Repeat([]byte{value}, len(part))) })
}

// holds checks that all bytes have the value, except the last one, which is in no part.
func (h huge) holds(value, last byte) error {
	n := len(h.tail) - 1
	return h.check(bytes.Repeat([]byte{value}, len(h.period)), append(bytes.Repeat([]byte{value}, n), last))
}

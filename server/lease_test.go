package server

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/leaseholder"
	"railhead/internal/wire"
	"railhead/symm"
)

// sessionFile is a session segment as the library makes it; change may corrupt it.
func sessionFile(t *testing.T, client uint64, change func(b []byte)) *os.File {
	t.Helper()
	b := make([]byte, wire.SessionBytes)
	if _, err := binary.Encode(b, binary.LittleEndian, &wire.Session{
		Magic: wire.SessionMagic, Version: wire.SessionVersion, Client: client, Lease: wire.Lease{Client: client},
	}); err != nil {
		t.Fatal(err)
	}
	change(b)
	return sealedFile(t, b, sealsOfSegment)
}

func (r *rawClient) sendLease(client uint64, f *os.File) {
	r.t.Helper()
	if err := r.conn.Send(&wire.SessionLease{Client: client}, wire.VersionMax, 0, int(f.Fd())); err != nil {
		r.t.Fatal(err)
	}
}

// holdSession gives the session a lease that a thread of this process holds.
func holdSession(t *testing.T, r *rawClient) *leaseholder.Holder {
	t.Helper()
	f := sessionFile(t, 5, asItIs)
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	segment, err := symm.OpenSegment("session", fd, wire.SessionBytes)
	if err != nil {
		t.Fatal(err)
	}
	m := mapped(t, segment)
	_ = segment.Release()
	h := leaseholder.New()
	h.TakeAt(m, wire.SessionLeaseOffset-wire.LeaseOffset)
	r.sendLease(5, f)
	_ = f.Close()
	r.sync()
	return h
}

func TestASessionEndsWithItsLeaseAlthoughItsSocketAndProcessLive(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	alone, inGroup := dialHello(t, s), rawGroup(t, s, "leased", 3)
	one, two := holdSession(t, alone), holdSession(t, inGroup[1])
	one.Die()
	alone.expectEnd()
	inGroup[0].sync() // no other session has ended

	two.Die()
	inGroup[1].expectEnd()
	inGroup[2].send(&wire.WindowAlloc{Group: inGroup[2].joined.Group, Bytes: 1, Memory: wire.MemoryCPU})
	e := expect[*wire.Error](inGroup[2])
	if e.Code != wire.ResultRankDead || e.Culprit != 1 || !strings.Contains(e.Text.String(), "(lease)") {
		t.Errorf("the group says %s of rank %d: %s", e.Code, e.Culprit, e.Text)
	}
}

func TestAnInvalidLeaseSegmentIsIgnored(t *testing.T) {
	s, before := quietServer(t)
	cases := map[string]*os.File{
		"no magic":        sessionFile(t, 5, func(b []byte) { b[0]++ }),
		"another version": sessionFile(t, 5, func(b []byte) { b[8]++ }),
		"another client":  sessionFile(t, 6, asItIs),
		"too large":       sealedFile(t, make([]byte, 2*wire.SessionBytes), sealsOfSegment),
		"not sealed":      sealedFile(t, make([]byte, wire.SessionBytes), unix.F_SEAL_GROW),
	}
	for what, f := range cases {
		r := dialHello(t, s)
		r.sendLease(5, f)
		r.sync()
		if metric(t, s, "railhead_sessions") != 1 {
			t.Errorf("%s: the session has ended", what)
		}
		for range 2 { // the first valid one counts
			good := sessionFile(t, 5, asItIs)
			r.sendLease(5, good)
			_ = good.Close()
		}
		r.sync()
		r.close()
		_ = f.Close()
		awaitEmpty(t, s)
	}
	awaitDescriptors(t, before)
	stillServes(t, s)
}

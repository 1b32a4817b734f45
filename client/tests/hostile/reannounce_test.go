package hostile

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
)

// The turn after Hello on a connection to a restarted daemon.
const turnReannounce = turnHello + 1

// second spoils a turn of all connections but the first. The first is closed in the turn after Attached.
func second(turn int, spoil func(f *fake, answers []answer) []answer) func(*fake, int, []answer) []answer {
	return func(f *fake, at int, answers []answer) []answer {
		if f.count == 0 && at == turnAttached+1 {
			_ = f.conn.Close()
			return nil
		}
		if f.count > 0 && at == turn {
			return spoil(f, answers)
		}
		return answers
	}
}

// outlive joins a group of one, loses the daemon in window_alloc, and returns the result of the set-up calls. Collectives must work
// whatever the next daemon answers.
func outlive(t *testing.T, path string) error {
	session, err := client.Connect(path, patience)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	c, err := session.Init(client.CommConfig{Group: "fake", Rank: 0, World: 1, Timeout: patience})
	if err != nil {
		return err
	}
	w, err := c.AllocWindow(fakeWindow)
	if barrierErr := c.Barrier(); barrierErr != nil {
		t.Errorf("barrier: %v", barrierErr)
	}
	if err != nil {
		return err
	}
	if err := w.Free(); err != nil {
		return err
	}
	return c.Finalize()
}

func TestACallIsRepeatedIfItsDaemonDies(t *testing.T) {
	path := startFake(t, second(-1, nil))
	nothingLeaks(t, func() {
		if err := outlive(t, path); err != nil {
			t.Error(err)
		}
	})
}

func protocolErrorsOfARestartedDaemonAreRefusedAndCollectivesContinue(t *testing.T) {
	ways := spoiltWays()
	paths := make([]string, len(ways))
	for i, way := range ways {
		paths[i] = startFake(t, second(turnReannounce, way.spoil))
	}
	errs := inParallel(len(ways), func(i int) error { return outlive(t, paths[i]) })
	for i, way := range ways {
		want, word := way.result, way.word
		if way.name == "an answer of another type" {
			word = "message type 14"
		}
		t.Run(way.name, func(t *testing.T) { wantError(t, errs[i], want, word) })
	}
}

func TestOnlyTheFirstAnswerToReannounceCounts(t *testing.T) {
	for what, other := range map[string]wire.Message{
		"another number of the group": &wire.Reannounced{Group: 8},
		"an error":                    &wire.Error{Code: wire.ResultLimit, Culprit: -1, Text: wire.MakeText("no room")},
	} {
		path := startFake(t, second(turnReannounce, func(f *fake, answers []answer) []answer {
			f.group = 7
			return append(answers, answer{bytes: encode(other, requestOf(answers[0]))})
		}))
		if err := outlive(t, path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestHelloIsRepeatedUntilADaemonAcceptsIt(t *testing.T) {
	var hellos atomic.Int32
	path := startFake(t, second(turnHello, func(_ *fake, answers []answer) []answer {
		if hellos.Add(1) > 2 {
			return answers
		}
		e := &wire.Error{Code: wire.ResultVersionMismatch, Culprit: -1, Text: wire.MakeText("update the older one")}
		return []answer{{bytes: encode(e, requestOf(answers[0]))}}
	}))
	if err := outlive(t, path); err != nil {
		t.Error(err)
	}
	if n := hellos.Load(); n != 3 {
		t.Errorf("Hello was sent %d times after the first daemon's death, want 3", n)
	}
}

// A restarted daemon may give the group another number. Later requests must use it.
func TestRequestsUseTheRestartedDaemonsNumberOfTheGroup(t *testing.T) {
	path := startFake(t, second(turnReannounce, func(f *fake, answers []answer) []answer {
		f.group = 4711
		return []answer{{bytes: encode(&wire.Reannounced{Group: 4711}, requestOf(answers[0]))}}
	}))
	if err := outlive(t, path); err != nil {
		t.Error(err)
	}
}

// The daemon writes the outcome of a call into the ledger and dies before it answers.
func TestACallTakesItsOutcomeFromTheLedgerIfTheDaemonDies(t *testing.T) {
	for _, c := range []struct {
		what    string
		outcome wire.Outcome
		result  wire.Result
		word    string
	}{
		{"done", wire.Outcome{Op: wire.OpWindowAlloc, Offset: fakeScratch, Bytes: fakeWindow}, wire.ResultOK, ""},
		{"failed", wire.Outcome{Op: wire.OpWindowAlloc, Code: wire.ResultOutOfMemory, Text: wire.MakeText("no room, rank 3")},
			wire.ResultOutOfMemory, "no room, rank 3"},
		{"an invalid outcome", wire.Outcome{Op: wire.OpWindowAlloc, Offset: fakeHeap, Bytes: fakeWindow}, wire.ResultProtocol, "the daemon gave"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var control atomic.Int64 // descriptor of the control segment; atomic, because the fake daemon is another goroutine
			path := startFake(t, func(f *fake, at int, answers []answer) []answer {
				switch at {
				case turnJoin:
					control.Store(int64(keep(t, answers[0].fds[0])))
				case turnAttached:
					writeLedger(t, int(control.Load()), 1, wire.Outcome{Op: wire.OpCommInit})
				case turnWindowCommitted:
					writeLedger(t, int(control.Load()), 2, c.outcome)
					f.die()
					return nil
				}
				return answers
			})
			nothingLeaks(t, func() {
				comm, leave := joinFake(t, path, 1)
				defer leave()
				began := time.Now()
				w, err := comm.AllocWindow(fakeWindow)
				if c.result != wire.ResultOK {
					wantError(t, err, c.result, c.word)
				} else if err != nil {
					t.Error(err)
				} else if at, err := w.Offset(); err != nil || at != fakeScratch {
					t.Errorf("the window is at offset %d (%v)", at, err)
				}
				if took := time.Since(began); took > patience/2 {
					t.Errorf("window_alloc took %v", took)
				}
				_ = unix.Close(int(control.Load()))
			})
		})
	}
}

// Another rank can write into the ledger.
func TestATextOfTheLedgerThatIsNoneIsNotTold(t *testing.T) {
	for what, text := range map[string]string{
		"without an end": strings.Repeat("x", wire.TextBytes),
		"not UTF-8":      "spoilt" + string([]byte{0xff}),
	} {
		o := wire.Outcome{Op: wire.OpWindowAlloc, Code: wire.ResultOutOfMemory}
		copy(o.Text[:], text)
		err := allocateByLedger(t, o)
		wantError(t, err, wire.ResultOutOfMemory)
		if err != nil && (strings.Contains(err.Error(), strings.Repeat("x", wire.TextBytes)) || strings.Contains(err.Error(), "spoilt")) {
			t.Errorf("a text %s is told: %v", what, err)
		}
	}
}

// allocateByLedger is the error of a window_alloc during which the daemon writes the outcome and dies.
func allocateByLedger(t *testing.T, o wire.Outcome) (err error) {
	t.Helper()
	byLedger(t, o, func(c *client.Comm) { _, err = c.AllocWindow(fakeWindow) })
	return err
}

// byLedger calls a set-up function in a group of one, whose daemon writes the outcome when it is asked and dies.
func byLedger(t *testing.T, o wire.Outcome, call func(c *client.Comm)) {
	t.Helper()
	var control atomic.Int64 // descriptor of the control segment; atomic, because the fake daemon is another goroutine
	path := startFake(t, func(f *fake, at int, answers []answer) []answer {
		switch at {
		case turnJoin:
			control.Store(int64(keep(t, answers[0].fds[0])))
		case turnAttached:
			writeLedger(t, int(control.Load()), 1, wire.Outcome{Op: wire.OpCommInit})
		case turnAttached + 1:
			writeLedger(t, int(control.Load()), 2, o)
			f.die()
			return nil
		}
		return answers
	})
	nothingLeaks(t, func() {
		comm, leave := joinFake(t, path, 1)
		defer leave()
		call(comm)
		_ = unix.Close(int(control.Load()))
	})
}

func TestANumberOfTheLedgerThatNoWindowCanHaveIsRefused(t *testing.T) {
	for _, number := range []uint32{0, wire.MaxRegion + 1, math.MaxInt32} {
		o := wire.Outcome{Op: wire.OpWindowRegister, Region: number, StagedLocal: -1, Bytes: peerBytes}
		var err error
		byLedger(t, o, func(c *client.Comm) {
			mine := ownMemfd(t, peerBytes)
			defer mine.Release()
			_, err = c.Register(mine.Config())
		})
		wantError(t, err, wire.ResultProtocol, "window_register: rank 0", fmt.Sprintf("window number %d", number))
	}
}

// What was mapped with the daemon that died is unmapped, and does not count at the next one.
func TestARegistrationIsRepeatedAsIfNothingHadBeenMapped(t *testing.T) {
	spoil := fakePair(gives(peer()), says(wire.Registered{Region: 1, StagedLocal: -1}))
	path := startFake(t, func(f *fake, turn int, answers []answer) []answer {
		switch {
		case f.count > 0 && turn == turnReannounce:
			return answers
		case f.count == 0 && turn == turnPairMapped:
			_ = f.conn.Close()
			return nil
		}
		return spoil(f, turn, answers) // a Register comes in the same turn of both connections
	})
	nothingLeaks(t, func() {
		c, leave := joinFake(t, path, 2)
		defer leave()
		o := ownMemfd(t, peerBytes)
		defer o.Release()
		if _, err := c.Register(o.Config()); err != nil {
			t.Error(err)
		}
		maps, err := os.ReadFile("/proc/self/maps")
		const want = 4 // the control segment, two heaps, and the peer's memory
		if got := strings.Count(string(maps), "memfd:"+segmentName(path)+" "); err != nil || got != want {
			t.Errorf("%d segments are mapped, want %d (%v)", got, want, err)
		}
	})
}

func commInitEndsThoughEveryDaemonDies(t *testing.T) {
	path := startFake(t, func(f *fake, turn int, answers []answer) []answer {
		if turn == turnJoin {
			_ = f.conn.Close()
			return nil
		}
		return answers
	})
	session, err := client.Connect(path, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	late := time.AfterFunc(patience/2, func() { _ = session.Close() }) // ends the call
	_, err = session.Init(client.CommConfig{Group: "fake", Rank: 0, World: 1, Timeout: 300 * time.Millisecond})
	if !late.Stop() {
		t.Error("comm_init goes on for ever")
	}
	wantError(t, err, wire.ResultDaemonLost, "comm_init", "rank 0")
}

// keep duplicates a descriptor.
func keep(t *testing.T, fd int) int {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
	}
	return other
}

// writeLedger writes the outcome of set-up call number ended, as a daemon does.
func writeLedger(t *testing.T, control int, ended uint64, o wire.Outcome) {
	parts := wire.PartsOf(1)
	b, err := binary.Append(nil, binary.LittleEndian, &o)
	if err == nil {
		_, err = unix.Pwrite(control, b, int64(parts.OutcomeOffset(ended)))
	}
	if err == nil {
		_, err = unix.Pwrite(control, binary.LittleEndian.AppendUint64(nil, ended), int64(parts.Ledger.Offset+wire.EndedOffset))
	}
	if err != nil {
		t.Error(err)
	}
}

// A group breaks while its Reannounce has no answer, and that daemon dies. The next daemon answers the number of that Reannounce, which it
// has not received. The rank must not come back there: its group is broken.
func TestAnAnswerToAnEarlierConnectionsReannounceIsIgnored(t *testing.T) {
	joined, announced, broken := make(chan struct{}), make(chan uint64, 1), make(chan struct{})
	var number atomic.Uint64
	path := startFake(t, func(f *fake, at int, answers []answer) []answer {
		switch {
		case f.count == 0 && at == turnAttached:
			go func() { <-joined; _ = f.conn.Close() }()
		case f.count == 1 && at == turnReannounce:
			number.Store(requestOf(answers[0]))
			announced <- number.Load()
			<-broken
			_ = f.conn.Close()
			return nil
		case f.count == 2 && at == turnHello:
			return append(answers, answer{bytes: encode(&wire.Reannounced{Group: 7}, number.Load())})
		case f.count == 2 && len(answers) > 0:
			if m, err := wire.Decode(answers[0].bytes); err == nil && wire.RequestOf(m)>>63 != 0 {
				t.Errorf("a rank of a broken group was announced, and got %T", m)
			}
		}
		return answers
	})
	nothingLeaks(t, func() {
		session, err := client.Connect(path, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = session.Close() }()
		c, err := session.Init(client.CommConfig{Group: "fake", Rank: 0, World: 1, Timeout: patience})
		close(joined)
		if err != nil {
			t.Fatal(err)
		}
		<-announced
		err = c.Abort()
		close(broken)
		if err != nil {
			t.Error(err)
		}
		// Its Join comes after whatever the client has made of the answer.
		if _, err := session.Init(client.CommConfig{Group: "other", Rank: 0, World: 1, Timeout: patience}); err != nil {
			t.Error(err)
		}
	})
}

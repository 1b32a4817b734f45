package hostile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/rank"
	"railhead/internal/wire"
)

// requestOf is the number of the request that an answer is for.
func requestOf(a answer) uint64 { return binary.LittleEndian.Uint64(a.bytes[16:]) }

// liveWith runs live with a fake daemon and checks that nothing leaks. The daemon lives longer, so its descriptors do not count.
func liveWith(t *testing.T, spoil func(f *fake, turn int, answers []answer) []answer) (err error) {
	t.Helper()
	path := startFake(t, spoil)
	nothingLeaks(t, func() { err = live(path, patience) })
	return err
}

// inTurn spoils the answers of one turn.
func inTurn(turn int, spoil func(f *fake, answers []answer) []answer) func(*fake, int, []answer) []answer {
	return func(f *fake, at int, answers []answer) []answer {
		if at != turn {
			return answers
		}
		return spoil(f, answers)
	}
}

func TestAllCallsWorkWithTheFakeDaemon(t *testing.T) {
	if err := liveWith(t, nil); err != nil {
		t.Error(err)
	}
}

func TestNoticesAndAnswersToUnknownRequestsAreIgnored(t *testing.T) {
	noise := func(f *fake, turn int, answers []answer) []answer {
		if turn == turnHello {
			return answers // the answer to Hello is the first packet
		}
		late := encode(&wire.Error{Code: wire.ResultTimeout, Culprit: -1, Text: wire.MakeText("too late")}, 1000)
		heap := answer{encode(&wire.Heap{Group: 9, Local: 3}, 1000), []int{f.segment(4096, sealed)}}
		return append([]answer{{bytes: encode(&wire.Draining{}, 0)}, {bytes: late}, heap}, answers...)
	}
	if err := liveWith(t, noise); err != nil {
		t.Error(err)
	}
}

// spoilt is a way to break the protocol in any turn.
type spoilt struct {
	name   string
	spoil  func(f *fake, answers []answer) []answer
	hello  wire.Result // result in the turn of Hello
	result wire.Result // result in later turns
	word   string
}

// check checks the error of live after this way was used in a turn.
func (way spoilt) check(t *testing.T, turn int, err error) {
	t.Helper()
	want := way.result
	if turn == turnHello {
		want = way.hello
	}
	words := []string{way.word}
	if want == wire.ResultDaemonLost || want == wire.ResultProtocol {
		words = append(words, callOf[turn])
	}
	wantError(t, err, want, words...)
}

func each(answers []answer, change func(a answer) answer) []answer {
	for i := range answers {
		answers[i] = change(answers[i])
	}
	return answers
}

// patched overwrites bytes of the first answer.
func patched(offset int, value ...byte) func(f *fake, answers []answer) []answer {
	return func(_ *fake, answers []answer) []answer {
		copy(answers[0].bytes[offset:], value)
		return answers
	}
}

func spoiltWays() []spoilt {
	lost, protocol := wire.ResultDaemonLost, wire.ResultProtocol
	return []spoilt{
		{"dies", func(f *fake, _ []answer) []answer { f.die(); return nil }, lost, lost, "closed the connection"},
		{"garbage", func(*fake, []answer) []answer { return []answer{{bytes: []byte("HTTP/1.1 400 Bad Request\r\n\r\n")}} },
			protocol, lost, "magic"},
		{"a few bytes", func(*fake, []answer) []answer { return []answer{{bytes: []byte{1, 2, 3}}} }, protocol, lost, "header"},
		{"an enormous packet", func(*fake, []answer) []answer { return []answer{{bytes: make([]byte, 60000)}} }, protocol, lost, "cut off"},
		{"a cut message", func(_ *fake, answers []answer) []answer {
			return each(answers, func(a answer) answer { a.bytes = a.bytes[:len(a.bytes)-1]; return a })
		}, protocol, lost, "size"},
		{"a longer message", func(_ *fake, answers []answer) []answer {
			return each(answers, func(a answer) answer { a.bytes = append(a.bytes, 0); return a })
		}, protocol, lost, "size"},
		{"a size that is not the packet's", patched(8, 1), protocol, lost, "size"},
		{"an unknown type", patched(4, 99), protocol, lost, "type"},
		{"a client's type", patched(4, byte(wire.TypeJoin)), protocol, lost, "type"},
		{"a reserved field", patched(12, 1), protocol, lost, "reserved"},
		{"a descriptor too many", func(f *fake, answers []answer) []answer {
			return each(answers, func(a answer) answer { a.fds = append(a.fds, f.segment(4096, 0)); return a })
		}, protocol, lost, "descriptors"},
		{"nine descriptors", func(f *fake, answers []answer) []answer {
			fd := f.segment(4096, 0)
			return each(answers, func(a answer) answer { a.fds = []int{fd, fd, fd, fd, fd, fd, fd, fd, fd}; return a })
		}, protocol, lost, "cut off"},
		{"an answer of another type", func(_ *fake, answers []answer) []answer {
			return []answer{{bytes: encode(&wire.WindowFreed{Group: 7}, requestOf(answers[0]))}}
		}, protocol, protocol, "type"},
		{"an Error", func(_ *fake, answers []answer) []answer {
			e := &wire.Error{Code: wire.ResultLimit, Culprit: -1, Text: wire.MakeText("full up: come back later")}
			return []answer{{bytes: encode(e, requestOf(answers[0]))}}
		}, wire.ResultLimit, wire.ResultLimit, "come back later"},
		{"an Error of a later version", func(_ *fake, answers []answer) []answer {
			e := &wire.Error{Code: 4711, Culprit: -1, Text: wire.MakeText("news")}
			b := encode(e, requestOf(answers[0]))
			b[6] = 200
			return []answer{{bytes: b}}
		}, 4711, 4711, "news"},
		{"an Error without a code", func(_ *fake, answers []answer) []answer {
			b := encode(&wire.Error{Code: 1, Culprit: -1}, requestOf(answers[0]))
			b[24] = 0
			return []answer{{bytes: b}}
		}, protocol, lost, "code 0"},
	}
}

func protocolErrorsInAnyTurnAreRefused(t *testing.T) {
	for _, way := range spoiltWays() {
		t.Run(way.name, func(t *testing.T) {
			var paths [turns]string
			for turn := range turns {
				paths[turn] = startFake(t, inTurn(turn, way.spoil))
			}
			// In parallel, because a call whose daemon has died waits seconds for the next one.
			errs := inParallel(turns, func(turn int) error { return live(paths[turn], patience) })
			for turn, err := range errs {
				if way.name == "an answer of another type" && (turn == turnWindowFree || turn == turnRegisteredFree) {
					continue // there it is the right type
				}
				way.check(t, turn, err)
			}
		})
	}
}

func TestMessagesOfAnotherVersionAreRefusedAfterTheHandshake(t *testing.T) {
	for turn := turnJoin; turn < turns; turn++ {
		err := liveWith(t, inTurn(turn, patched(6, wire.VersionMax+1)))
		wantError(t, err, wire.ResultDaemonLost, callOf[turn], "version")
	}
}

func TestUnsupportedVersionsAreNamed(t *testing.T) {
	welcome := func(_ *fake, _ int, answers []answer) []answer {
		return []answer{{bytes: encode(&wire.Welcome{Version: 9, Software: name("railhead 7.1")}, requestOf(answers[0]))}}
	}
	text := "the client speaks protocol versions 1..1, the daemon 5..9; update the older one"
	refusal := func(_ *fake, _ int, answers []answer) []answer {
		e := &wire.Error{Code: wire.ResultVersionMismatch, Culprit: -1, Text: wire.MakeText(text)}
		return []answer{{bytes: encode(e, requestOf(answers[0]))}}
	}
	wantError(t, liveWith(t, welcome), wire.ResultVersionMismatch, "connect", "version 9", "railhead 7.1", "librailhead 0.2.0",
		fmt.Sprintf("%d..%d", wire.VersionMin, wire.VersionMax), "update the older one")
	wantError(t, liveWith(t, refusal), wire.ResultVersionMismatch, text)
	// A daemon of version 1 has version 1 in the header of its refusal.
	first := func(f *fake, turn int, answers []answer) []answer {
		answers = refusal(f, turn, answers)
		binary.LittleEndian.PutUint16(answers[0].bytes[6:], 1)
		return answers
	}
	wantError(t, liveWith(t, first), wire.ResultVersionMismatch, text)
}

func everyCallHasADeadlineIfTheDaemonDoesNotAnswer(t *testing.T) {
	silence := func(turn int) func(*fake, int, []answer) []answer {
		return func(_ *fake, at int, answers []answer) []answer {
			if at < turn {
				return answers
			}
			return nil
		}
	}
	paths := make([]string, 0, turns)
	for turn := range turns {
		paths = append(paths, startFake(t, silence(turn)))
	}
	successor := startFake(t, second(turnReannounce, func(*fake, []answer) []answer { return nil }))
	errs := inParallel(turns+1, func(turn int) error {
		began := time.Now()
		var err error
		if turn < turns {
			err = live(paths[turn], 300*time.Millisecond)
		} else {
			err = outlive(t, successor)
		}
		if took := time.Since(began); took > patience/2 {
			return fmt.Errorf("turn %d took %v: %w", turn, took, err)
		}
		return err
	})
	wantError(t, errs[turnHello], wire.ResultTimeout, "connect", "Hello")
	for turn := turnJoin; turn < turns; turn++ {
		wantError(t, errs[turn], wire.ResultDaemonLost, callOf[turn], "rank 0", "did not answer in time", "railhead status")
	}
	wantError(t, errs[turns], wire.ResultDaemonLost, "window_alloc", "rank 0", "the new daemon has not taken over this comm")
}

func TestManySurplusAnswersDoNotLeak(t *testing.T) {
	flood := func(f *fake, turn int, answers []answer) []answer {
		if turn == turnHello {
			return answers
		}
		for range 200 {
			answers = append(answers, answers[len(answers)-1])
		}
		return answers
	}
	// Whether a call fails depends on how many answers arrive before it ends.
	if err := liveWith(t, flood); err != nil {
		t.Logf("refused: %v", err)
	}
}

// A call queues as many answers as the largest group needs, and no more.
func TestMoreAnswersThanACallCanQueueEndTheSession(t *testing.T) {
	path := startFake(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
		request := requestOf(answers[0])
		heap := f.segment(fakeHeap, sealed)
		answers = []answer{f.joined(rank.MaxPerNode, request)}
		for i := range 3 * rank.MaxPerNode { // three times as many heaps as ranks
			answers = append(answers, answer{encode(&wire.Heap{Group: 7, Local: rank.Local(i % rank.MaxPerNode)}, request), []int{heap}})
		}
		return answers
	}))
	nothingLeaks(t, func() {
		for range 20 {
			session, err := client.Connect(path, patience)
			if err != nil {
				t.Fatal(err)
			}
			// The error depends on whether the call ends before the 69th answer arrives.
			if _, err = session.Init(client.CommConfig{Group: "fake", Rank: 0, World: rank.MaxPerNode, Timeout: patience}); err == nil {
				t.Error("the rank joined in spite of invalid answers")
			}
			if err := session.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestWindowsOutsideTheHeapAreRefused(t *testing.T) {
	for _, commit := range []wire.WindowCommit{
		{Offset: 0, Bytes: fakeWindow},                           // the scratch
		{Offset: fakeScratch - 4096, Bytes: fakeWindow},          // its end
		{Offset: fakeHeap, Bytes: fakeWindow},                    // beyond the heap
		{Offset: fakeHeap - 4096, Bytes: 2 * fakeWindow},         // partly beyond the heap
		{Offset: fakeScratch, Bytes: fakeWindow - 1},             // smaller than requested
		{Offset: fakeScratch, Bytes: fakeHeap - fakeScratch + 1}, // larger than the heap
		{Offset: 1 << 40, Bytes: 1 << 40},                        // in bounds of the largest possible heap only
	} {
		commit.Group, commit.Memory, commit.Granularity = 7, wire.MemoryCPU, 1
		err := liveWith(t, inTurn(turnWindowAlloc, func(_ *fake, answers []answer) []answer {
			return []answer{{bytes: encode(&commit, requestOf(answers[0]))}}
		}))
		wantError(t, err, wire.ResultProtocol, "window_alloc: rank 0", fmt.Sprint(commit.Bytes), fmt.Sprint(commit.Offset))
	}
}

// Access to a segment that is too small, or that shrinks later, would be a SIGBUS.
func TestSegmentsThatCouldFaultAreRefusedBeforeTheyAreUsed(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, bytes.Repeat([]byte{0}, fakeHeap), 0o600); err != nil {
		t.Fatal(err)
	}
	control, thisVersion := int64(wire.ControlBytes(1)), fmt.Sprintf("version %d", wire.ControlVersion)
	for _, c := range []struct {
		what   string
		answer int // 0: the control segment, 1: the heap
		make   func(f *fake) int
		result wire.Result
		word   string
	}{
		{"control segment unsealed", 0, func(f *fake) int { return f.segment(control, 0) }, wire.ResultProtocol, "control segment"},
		{"control segment that may shrink", 0, func(f *fake) int { return f.segment(control, unix.F_SEAL_GROW) },
			wire.ResultProtocol, "control segment"},
		{"control segment too small", 0, func(f *fake) int { return f.segment(control-4096, sealed) }, wire.ResultProtocol,
			fmt.Sprintf("has %d bytes", control-4096)},
		{"control segment empty", 0, func(f *fake) int { return f.segment(0, sealed) }, wire.ResultProtocol, "has 0 bytes"},
		{"control segment a file", 0, func(f *fake) int { return f.open(file) }, wire.ResultProtocol, "control segment"},
		{"control segment a device", 0, func(f *fake) int { return f.open("/dev/null") }, wire.ResultProtocol, "control segment"},
		{"control segment without magic", 0, func(f *fake) int { return f.segment(control, sealed) }, wire.ResultProtocol, thisVersion},
		{"control segment with another magic", 0, func(f *fake) int {
			fd := f.segment(control, sealed)
			f.writeHeader(fd, wire.ControlHeader{Magic: wire.ControlMagic + 1, Version: wire.ControlVersion})
			return fd
		}, wire.ResultProtocol, thisVersion},
		{"control segment of another version", 0, func(f *fake) int {
			fd := f.segment(control, sealed)
			f.writeHeader(fd, wire.ControlHeader{Magic: wire.ControlMagic, Version: wire.ControlVersion + 1})
			return fd
		}, wire.ResultProtocol, thisVersion},
		{"heap unsealed", 1, func(f *fake) int { return f.segment(fakeHeap, 0) }, wire.ResultProtocol, "heap of rank 0"},
		{"heap a page too small", 1, func(f *fake) int { return f.segment(fakeHeap-4096, sealed) }, wire.ResultProtocol,
			"promised 1048576, sealed"},
		{"heap a file", 1, func(f *fake) int { return f.open(file) }, wire.ResultProtocol, "heap of rank 0"},
		{"heap sealed against writing", 1, func(f *fake) int { return f.segment(fakeHeap, sealed|unix.F_SEAL_WRITE) },
			wire.ResultOutOfMemory, "cannot map"},
	} {
		t.Run(c.what, func(t *testing.T) {
			err := liveWith(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
				answers[c.answer].fds = []int{c.make(f)}
				return answers
			}))
			wantError(t, err, c.result, "comm_init", c.word)
		})
	}
}

func TestAControlSegmentWithPartsOutOfRangeIsRefused(t *testing.T) {
	for what, spoil := range map[string]func(p *wire.Parts){
		"plans out of range":          func(p *wire.Parts) { p.Plans.Offset = 0 },
		"rank lines out of range":     func(p *wire.Parts) { p.Lines.Offset = math.MaxUint64 &^ 4095 },
		"flight records out of range": func(p *wire.Parts) { p.Flights.Stride /= 2 },
		"a ledger out of range":       func(p *wire.Parts) { p.Ledger.Offset += wire.ControlBytes(1) },
		"counters out of range":       func(p *wire.Parts) { p.Counters.Count = math.MaxUint32 },
	} {
		err := liveWith(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
			h := wire.ControlHeader{Magic: wire.ControlMagic, Version: wire.ControlVersion, World: 1, Group: 7, Parts: wire.PartsOf(1)}
			spoil(&h.Parts)
			f.writeHeader(answers[0].fds[0], h)
			return answers
		}))
		wantError(t, err, wire.ResultProtocol, "comm_init", "rank 0", what)
	}
}

// Their words would be at addresses at which atomic operations are not.
func TestAControlSegmentWithElementsThatAreNoWholeWordsIsRefused(t *testing.T) {
	err := liveWith(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
		h := wire.ControlHeader{Magic: wire.ControlMagic, Version: wire.ControlVersion, World: 1, Group: 7, Parts: wire.PartsOf(1)}
		h.Parts.Lines.Stride += 4
		f.writeHeader(answers[0].fds[0], h)
		return answers
	}))
	wantError(t, err, wire.ResultProtocol, "comm_init", "rank 0", "rank lines out of range")
}

// The other ranks wait for this one until the daemon hears of it.
func TestARankThatCannotAttachTellsTheDaemon(t *testing.T) {
	for _, c := range []struct {
		seals  int
		result wire.Result
		errno  unix.Errno
	}{
		{sealed, wire.ResultOK, 0},
		{0, wire.ResultProtocol, unix.EPROTO},
		{sealed | unix.F_SEAL_WRITE, wire.ResultOutOfMemory, unix.ENOMEM},
	} {
		told := make(chan int32, 1)
		err := liveWith(t, func(f *fake, turn int, answers []answer) []answer {
			switch turn {
			case turnJoin:
				answers[1].fds = []int{f.segment(fakeHeap, c.seals)}
			case turnAttached:
				told <- f.errno
			}
			return answers
		})
		if c.result != wire.ResultOK {
			wantError(t, err, c.result, "comm_init")
		} else if err != nil {
			t.Error(err)
		}
		if errno := await.Next(t, "Attached", told); unix.Errno(errno) != c.errno {
			t.Errorf("a heap with seals %#x: the daemon is told errno %d, want %d", c.seals, errno, c.errno)
		}
	}
}

func TestPlansOfAnotherDeviceAreRefused(t *testing.T) {
	err := liveWith(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
		p := simplePlans(1)
		p.Device = 7
		f.writePlans(answers[0].fds[0], p)
		return answers
	}))
	wantError(t, err, wire.ResultProtocol, "comm_init", "rank 0", "no plans for a CPU")
}

func TestMemoryOfAnotherKindIsRefused(t *testing.T) {
	err := liveWith(t, inTurn(turnWindowAlloc, func(_ *fake, answers []answer) []answer {
		commit := wire.WindowCommit{Group: 7, Offset: fakeScratch, Bytes: fakeWindow, Memory: 2, Granularity: fakeWindow}
		return []answer{{bytes: encode(&commit, requestOf(answers[0]))}}
	}))
	wantError(t, err, wire.ResultProtocol, "window_alloc: rank 0", "kind 2")
}

func TestAnswersToAnotherJoinAreRefused(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil func(f *fake, answers []answer) []answer
		words []string
	}{
		{"a larger world", func(f *fake, answers []answer) []answer {
			answers[0].bytes = encode(joinedOf(2), requestOf(answers[0]))
			return answers
		}, []string{"2 ranks", "expected 1"}},
		{"the heap of another rank", func(f *fake, answers []answer) []answer {
			answers[1].bytes = encode(&wire.Heap{Group: 7, Local: 1}, requestOf(answers[0]))
			return answers
		}, []string{"unexpected heap", "rank 1"}},
		{"the heap before the control segment", func(f *fake, answers []answer) []answer {
			return []answer{answers[1], answers[0]}
		}, []string{"rank 0", "in place of Joined"}},
		{"the control segment twice", func(f *fake, answers []answer) []answer {
			return []answer{answers[0], answers[0]}
		}, []string{"rank 0", "in place of Heap"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			wantError(t, liveWith(t, inTurn(turnJoin, c.spoil)), wire.ResultProtocol, append(c.words, "comm_init")...)
		})
	}
}

// A rank commits the pages of its heap when it joins. Before that it must not access them: if memory is short that is a SIGBUS.
func TestARankThatFailsToJoinHasTouchedNoPageOfItsHeap(t *testing.T) {
	const world = 2
	own := make(chan int, 1)
	path := startFake(t, inTurn(turnJoin, func(f *fake, answers []answer) []answer {
		request := requestOf(answers[0])
		heap := f.segment(fakeHeap, sealed)
		kept, err := unix.Dup(heap)
		if err != nil {
			t.Error(err)
		}
		own <- kept
		return []answer{
			f.joined(world, request),
			{encode(&wire.Heap{Group: 7, Local: 0}, request), []int{heap}},
			{encode(&wire.Heap{Group: 7, Local: 1}, request), []int{f.segment(fakeHeap, 0)}},
		}
	}))
	session, err := client.Connect(path, patience)
	if err != nil {
		t.Fatal(err)
	}
	_, err = session.Init(client.CommConfig{Group: "fake", Rank: 0, World: world, Timeout: patience})
	wantError(t, err, wire.ResultProtocol, "comm_init", "heap of rank 1")
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	kept := <-own
	defer func() { _ = unix.Close(kept) }()
	var st unix.Stat_t
	if err := unix.Fstat(kept, &st); err != nil || st.Blocks != 0 {
		t.Errorf("the heap has %d blocks, want none (%v)", st.Blocks, err)
	}
}

package tests

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/internal/librarybuild"
	"railhead/internal/wire"
)

// daemonMessages returns a valid message of every type that a daemon sends.
func daemonMessages() []wire.Message {
	return []wire.Message{
		&wire.Welcome{Version: 1, Session: 7, Daemon: 9, Software: name("railhead tést")},
		&wire.Error{Code: wire.ResultRankMissing, Culprit: 3, Missing: 1 << 3, Text: wire.MakeText("rank 3 is missing – really")},
		&wire.Joined{
			Group: 1, Incarnation: 2, ControlBytes: wire.ControlBytes(4), HeapBytes: 1 << 30, ScratchBytes: 1 << 20,
			World: 4, LocalSize: 4, ReduceGroup: 4, SpinNS: 2000, BlockBytes: 65536, PipeSlotBytes: 1024, BroadcastSlotBytes: 4096,
		},
		&wire.Joined{
			Group: 1, Incarnation: 2, ControlBytes: wire.ControlBytes(4), HeapBytes: 1 << 30, ScratchBytes: 1 << 20,
			World: 4, LocalSize: 4, ReduceGroup: 4, SpinNS: 2000, BlockBytes: 65536, PipeSlotBytes: 1024, BroadcastSlotBytes: 4096,
			DeviceHeapBytes: 1 << 30, DeviceScratchBytes: 64 << 20, DeviceSlotBytes: 4 << 20, DeviceGranularity: 2 << 20,
		},
		&wire.Heap{Group: 1, Local: 3, PID: 99},
		&wire.GroupReady{Group: 1},
		&wire.WindowCommit{Group: 1, Offset: 1 << 20, Bytes: 65536, Memory: wire.MemoryCPU, Granularity: 65536},
		&wire.WindowReady{Group: 1, Offset: 1 << 20},
		&wire.WindowFreed{Group: 1, Offset: 1 << 20},
		&wire.Left{Group: 1},
		&wire.Draining{},
		&wire.Reannounced{Group: 1},
		&wire.PeerMemory{Group: 1, Bytes: 4096, FdOffset: 64, Region: 1, Local: 63, Memory: wire.MemoryCPU},
		&wire.PeerMemory{Group: 1, Bytes: 2 << 20, FdOffset: 4 << 20, Local: 63, Memory: wire.MemoryCUDA, AllocationBytes: 2 << 20},
		&wire.PeerMemory{Group: 1, Bytes: 4096, FdOffset: 64, Region: 1, Local: 63, Memory: wire.MemoryCUDA, AllocationBytes: 4160},
		&wire.PeerMemory{Group: 1, Bytes: 4096, Region: 1, Local: 63, Memory: wire.MemoryCUDAIPC, AllocationBytes: 4096, Handle: wire.Handle{63: 1}},
		&wire.Registered{Group: 1, Region: 255, StagedLocal: -1},
		&wire.Registered{Group: 1, Region: 1, StagedLocal: 63, Reason: wire.MakeReason("rank 63: mällöc")},
	}
}

// clientMessages returns messages that a client sends and must refuse.
func clientMessages() []wire.Message {
	return []wire.Message{
		&wire.Hello{VersionMin: 1, VersionMax: 1},
		&wire.Join{Group: name("g"), Common: wire.Common{World: 1, Nodes: 1}, Own: wire.Own{Place: wire.OneNode(0, 1), TimeoutMS: 1}}, &wire.Attached{},
		&wire.WindowAlloc{Bytes: 1}, &wire.WindowCommitted{}, &wire.WindowFree{}, &wire.Leave{},
		&wire.Register{Bytes: 1}, &wire.RegisterPrivate{Bytes: 1, Reason: wire.MakeReason("r")}, &wire.RegisterMapped{Region: 1},
		&wire.Reannounce{ControlBytes: wire.ControlBytes(1), Place: wire.OneNode(0, 1), World: 1, Nodes: 1, TimeoutMS: 1}, &wire.ReannounceHeap{}, &wire.SessionLease{},
	}
}

// acceptedByGo reports whether Go's decoder accepts the bytes, and a daemon may send the message.
func acceptedByGo(b []byte) bool {
	m, err := wire.Decode(b)
	if err != nil {
		return false
	}
	switch m.(type) {
	case *wire.Hello, *wire.Join, *wire.Attached, *wire.WindowAlloc, *wire.WindowCommitted, *wire.WindowFree, *wire.Leave,
		*wire.Register, *wire.RegisterPrivate, *wire.RegisterMapped, *wire.Reannounce, *wire.ReannounceHeap, *wire.SessionLease:
		return false
	}
	return true
}

func TestTheParserAcceptsTheMessagesOfADaemonOnly(t *testing.T) {
	for _, m := range daemonMessages() {
		b := encode(m, 5)
		if why := whyRefused(b); why != "" {
			t.Errorf("%T: %s", m, why)
		}
		for n := range len(b) {
			if whyRefused(b[:n]) == "" {
				t.Errorf("%T cut to %d of %d bytes is accepted", m, n, len(b))
			}
		}
		if whyRefused(append(b, 0)) == "" {
			t.Errorf("%T with an additional byte is accepted", m)
		}
	}
	for _, m := range clientMessages() {
		if whyRefused(encode(m, 5)) == "" {
			t.Errorf("%T is accepted", m)
		}
	}
}

// interesting are values for a field of 1, 2, 4 or 8 bytes.
var interesting = []uint64{
	0, 1, 2, 3, 4, 63, 64, 65, 128, 4095, 4096, 8192, 65535, 65536, 1 << 20, 1 << 30, 1 << 40, 1<<40 + 1<<30, 1<<40 + 1<<30 + 1,
	1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<63 - 1, 1 << 63, ^uint64(0),
}

// stringish are valid and invalid UTF-8 strings.
var stringish = []string{
	"", "a", "é", "€", "\U0010ffff", "\xff", "\x80", "\xc0\x80", "\xc2", "\xe0\x80\x80", "\xed\x9f\xbf", "\xed\xa0\x80", "\xee\x80\x80",
	"\xf0\x80\x80\x80", "\xf4\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\x00b", "\xf0\x9f\x98\x80",
}

// drawMutated draws a message with a few changes, which is often nearly valid.
func drawMutated(t *rapid.T) []byte {
	messages := append(daemonMessages(), clientMessages()...)
	b := encode(messages[rapid.IntRange(0, len(messages)-1).Draw(t, "message")], 1)
	for range rapid.IntRange(0, 3).Draw(t, "changes") {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			b = b[:rapid.IntRange(0, len(b)).Draw(t, "cut")]
		case 1:
			b = append(b, make([]byte, rapid.IntRange(1, 200).Draw(t, "more"))...)
		case 2, 3, 4: // a string of the body, if it has any
			if at := rapid.IntRange(24, 120).Draw(t, "text at"); at < len(b) {
				copy(b[at:], rapid.SampledFrom(stringish).Draw(t, "text"))
			}
		default:
			width := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "width")
			if len(b) >= 8 {
				var raw [8]byte
				binary.LittleEndian.PutUint64(raw[:], rapid.SampledFrom(interesting).Draw(t, "value"))
				at := rapid.IntRange(0, len(b)/width-1).Draw(t, "field") * width
				copy(b[at:at+width], raw[:])
			}
		}
	}
	return b
}

func TestGoAndCppAcceptTheSameMessages(t *testing.T) {
	concurrentOnlyInCpp(t)
	rapid.Check(t, func(t *rapid.T) {
		for range 500 {
			b := drawMutated(t)
			if why := whyRefused(b); acceptedByGo(b) != (why == "") {
				_, err := wire.Decode(b)
				t.Fatalf("%x: Go says %v, C++ %q", b, err, why)
			}
		}
	})
}

func TestGoAndCppAcceptTheSameStrings(t *testing.T) {
	for _, s := range stringish {
		messages := daemonMessages()
		for _, m := range append(messages[:2:2], messages[len(messages)-2:]...) {
			b := encode(m, 1)
			field := b[len(b)-len(wire.Name{}):]
			switch m.(type) {
			case *wire.Error:
				field = b[len(b)-len(wire.Text{}):]
			case *wire.Registered:
				field = b[len(b)-len(wire.Reason{}):]
			}
			clear(field)
			copy(field, s)
			if why := whyRefused(b); acceptedByGo(b) != (why == "") {
				t.Errorf("%T with %q: C++ says %q", m, s, why)
			}
		}
	}
}

// FuzzClientParse checks that Go and C++ accept the same bytes as a message of a daemon.
func FuzzClientParse(f *testing.F) {
	for _, m := range append(daemonMessages(), clientMessages()...) {
		f.Add(encode(m, 3))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if why := whyRefused(b); acceptedByGo(b) != (why == "") {
			_, err := wire.Decode(b)
			t.Fatalf("%x: Go says %v, C++ %q", b, err, why)
		}
	})
}

// The same with AddressSanitizer, and another seed in every run.
func TestTheParserReadsNothingBeyondAPacket(t *testing.T) {
	concurrentOnlyInCpp(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	messages := append(daemonMessages(), clientMessages()...)
	var packets [][]byte
	var in []byte
	for range 20000 {
		b := encode(messages[random.IntN(len(messages))], 1)
		for range random.IntN(3) {
			b[random.IntN(len(b))] = byte(random.IntN(256))
		}
		if random.IntN(4) == 0 {
			b = b[:random.IntN(len(b)+1)]
		}
		packets = append(packets, b)
		in = append(binary.LittleEndian.AppendUint32(in, uint32(len(b))), b...)
	}
	c := exec.Command(parserProgram(t))
	c.Stdin = bytes.NewReader(in)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(packets) {
		t.Fatalf("%d lines for %d packets (seed %d)", len(lines), len(packets), seed)
	}
	for i, line := range lines {
		if acceptedByGo(packets[i]) != (line == "accepted") {
			t.Errorf("seed %d, packet %d: %x: C++ says %q", seed, i, packets[i], line)
		}
	}
}

// parserProgram compiles the parser with AddressSanitizer.
func parserProgram(t *testing.T) string {
	t.Helper()
	binary := t.TempDir() + "/parse"
	arguments := []string{
		"-std=c++17", "-O1", "-g", "-fno-exceptions", "-fno-rtti", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"-I.", "-Iprograms/c", "-I..", "-I../include", "-I../../kernels", "-I../../kernels/include", "-I../../internal/wire",
		"programs/c/parse.cc", "parse_hook.cc", "../session/message.cc", "../base/utf8.cc", "-o", binary,
	}
	compiler := os.Getenv("CXX")
	if compiler == "" {
		compiler = "g++"
	}
	if out, err := exec.Command(compiler, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := librarybuild.NoteSources("../..", "client/tests/programs/c/*"); err != nil {
		t.Fatal(err)
	}
	return binary
}

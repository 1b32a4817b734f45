package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"railhead/internal/rank"
)

func name(t testing.TB, s string) Name {
	t.Helper()
	n, err := MakeName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// samples has one valid message of every type.
func samples(t testing.TB) []Message {
	return []Message{
		&Hello{VersionMin: 1, VersionMax: 3, PID: 42, Software: name(t, "librailhead test")},
		&Welcome{Version: 1, Session: 7, Daemon: 9, Software: name(t, "railhead test")},
		&Error{Code: ResultRankMissing, Culprit: 3, Missing: 1 << 3, Text: MakeText("rank 3 is missing")},
		&Join{
			Group:  name(t, "g"),
			Common: Common{Token: name(t, "t"), World: 4, Nodes: 1, HeapBytes: 1 << 30, Reproducible: 1},
			Own:    Own{Place: OneNode(2, 4), TimeoutMS: 1000, CPUs: CPUMask{3, 0, 1}},
		},
		&Join{
			Group: name(t, "g"), Common: Common{World: 4, Nodes: 1},
			Own: Own{
				Place: OneNode(2, 4), TimeoutMS: 1000, Device: DeviceCUDA, DeviceUUID: UUID{15: 7}, DeviceMultiprocessors: 132, DeviceArchitecture: 90,
			},
		},
		&Joined{
			Group: 1, Incarnation: 2, ControlBytes: ControlBytes(4), HeapBytes: 1 << 30, ScratchBytes: 1 << 20,
			World: 4, LocalSize: 4, ReduceGroup: 4, SpinNS: 2000, BlockBytes: 65536, PipeSlotBytes: 1024, BroadcastSlotBytes: 4096,
		},
		joinedOnCUDA(),
		&Heap{Group: 1, Local: 3, PID: 99},
		&Attached{Group: 1, Error: 12},
		&GroupReady{Group: 1},
		&WindowAlloc{Group: 1, Bytes: 4096, Memory: MemoryCPU},
		&WindowAlloc{Group: 1, Bytes: 4096, Memory: MemoryCUDA},
		&WindowCommit{Group: 1, Offset: 1 << 20, Bytes: 65536, Memory: MemoryCPU, Granularity: 65536},
		&WindowCommitted{Group: 1, Offset: 1 << 20, Error: 28, Memory: MemoryCPU},
		&WindowCommitted{Group: 1, Memory: MemoryCUDA},
		&WindowCommitted{Group: 1, Error: 2, Memory: MemoryCUDA},
		&WindowReady{Group: 1, Offset: 1 << 20},
		&WindowFree{Group: 1, Offset: 1 << 20, Memory: MemoryCPU},
		&WindowFree{Group: 1, Memory: MemoryCUDA},
		&WindowFree{Group: 1, Offset: 7 << RegionShift},
		&WindowFreed{Group: 1, Offset: 1 << 20},
		&Leave{Group: 1},
		&Left{Group: 1},
		&Draining{},
		&Register{Group: 1, Bytes: 4097, FdOffset: 64, Memory: MemoryCPU},
		&Register{Group: 1, Bytes: 4097, FdOffset: 64, Memory: MemoryCUDA, AllocationBytes: 4097 + 64},
		&Register{Group: 1, Bytes: 4097, Memory: MemoryCUDAIPC, AllocationBytes: 2 << 20, Handle: Handle{63: 1}},
		&RegisterPrivate{Group: 1, Bytes: 4096, Reason: MakeReason("rank 2: malloc – not shareable")},
		&PeerMemory{Group: 1, Bytes: 4097, FdOffset: 64, Region: 255, Local: 63, Memory: MemoryCPU},
		&PeerMemory{Group: 1, Bytes: 2 << 20, FdOffset: 4 << 20, Local: 1, Memory: MemoryCUDA, AllocationBytes: 2 << 20},
		&PeerMemory{Group: 1, Bytes: 4097, Region: 1, Local: 63, Memory: MemoryCUDAIPC, AllocationBytes: 2 << 20, Handle: Handle{63: 1}},
		&RegisterMapped{Group: 1, Region: 1, Error: 12},
		&RegisterMapped{Group: 1, Error: 2},
		&Registered{Group: 1, Region: 3, StagedLocal: 2, Reason: MakeReason("rank 2: malloc")},
		&KVAgent{Name: name(t, "prefill-0")}, &KVSocket{},
		&Reannounce{Group: 1, ControlBytes: ControlBytes(4), Place: OneNode(3, 4), World: 4, Nodes: 1, TimeoutMS: 1000},
		&Reannounced{Group: 2},
		&SessionLease{Client: 7},
		&ReannounceHeap{Group: 2},
	}
}

// joinedOnCUDA is valid.
func joinedOnCUDA() *Joined {
	return &Joined{
		Group: 1, Incarnation: 2, ControlBytes: ControlBytes(4), HeapBytes: 1 << 30, ScratchBytes: 1 << 20, World: 4, LocalSize: 4, ReduceGroup: 4,
		BlockBytes: 65536, PipeSlotBytes: 1024, BroadcastSlotBytes: 4096,
		DeviceHeapBytes: 1 << 30, DeviceScratchBytes: 64 << 20, DeviceSlotBytes: 4 << 20, DeviceGranularity: 2 << 20,
	}
}

func TestEveryMessageRoundTrips(t *testing.T) {
	seen := map[Type]bool{}
	for _, m := range samples(t) {
		seen[m.kind()] = true
		b, err := Encode(m, VersionMax, 5)
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		if len(b) > MaxMessage {
			t.Errorf("%T has %d bytes, more than MaxMessage", m, len(b))
		}
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		if !reflect.DeepEqual(got, m) || RequestOf(got) != 5 {
			t.Errorf("%T came back as %+v, sent %+v", m, got, m)
		}
	}
	for typ := Type(1); typ < 100; typ++ {
		if New(typ) == nil {
			continue
		}
		if !seen[typ] {
			t.Errorf("type %d has no sample", typ)
		}
	}
}

func TestTruncatedAndExtendedMessagesAreRefused(t *testing.T) {
	for _, m := range samples(t) {
		b, err := Encode(m, VersionMax, 1)
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(b) {
			if _, err := Decode(b[:n]); err == nil {
				t.Fatalf("%T cut to %d of %d bytes was accepted", m, n, len(b))
			}
		}
		if _, err := Decode(append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%T with a byte more was accepted", m)
		}
	}
}

func TestBadValuesAreRefusedOnBothSides(t *testing.T) {
	good := func() *Join {
		return &Join{Group: name(t, "g"), Common: Common{World: 2, Nodes: 1}, Own: Own{Place: OneNode(1, 2), TimeoutMS: 1}}
	}
	cases := []struct {
		what string
		m    Message
		want string
	}{
		{"rank outside the world", func() Message { m := good(); m.Own.Place = OneNode(2, 2); return m }(), "rank 2 is outside 0..1"},
		{"no rank", func() Message { m := good(); m.Common.World = 0; return m }(), "world size 0"},
		{"too many ranks", func() Message { m := good(); m.Common.World = 65537; return m }(), "world size 65537"},
		{"a rank below the world", func() Message { m := good(); m.Own.Place.Rank = -1; return m }(), "rank -1 is outside 0..1"},
		{"no nodes", func() Message { m := good(); m.Common.Nodes = 0; return m }(), "0 nodes"},
		{"more nodes than ranks", func() Message { m := good(); m.Common.Nodes = 3; return m }(), "3 nodes"},
		{"a node outside the world's nodes", func() Message { m := good(); m.Own.Place.Node = 1; return m }(), "node 1 is outside 0..0"},
		{"one node without the whole world", func() Message { m := good(); m.Own.Place.LocalSize = 1; return m }(), "1 ranks on this node"},
		{"two nodes with the whole world on this one", func() Message { m := good(); m.Common.Nodes = 2; return m }(), "2 ranks on this node"},
		{"a local rank outside its node", func() Message {
			m := good()
			m.Common.Nodes, m.Own.Place.LocalSize = 2, 1
			return m
		}(), "local rank 1 of rank 1"},
		{"a local rank above its world rank", func() Message {
			m := good()
			m.Common.World, m.Common.Nodes, m.Own.Place = 4, 2, Place{Rank: 1, Local: 2, LocalSize: 3}
			return m
		}(), "local rank 2 of rank 1"},
		{"local rank unequal to the rank on one node", func() Message { m := good(); m.Own.Place.Local = 0; return m }(), "local rank 0 of rank 1"},
		{"no name", func() Message { m := good(); m.Group = Name{}; return m }(), "group is empty"},
		{"no timeout", func() Message { m := good(); m.Own.TimeoutMS = 0; return m }(), "timeout"},
		{"text after the NUL", func() Message { m := good(); m.Common.Token[5] = 'x'; return m }(), "after its NUL"},
		{"no NUL", func() Message { m := good(); copy(m.Group[:], strings.Repeat("x", NameBytes)); return m }(), "no NUL"},
		{"not UTF-8", func() Message { m := good(); m.Group[0] = 0xff; return m }(), "UTF-8"},
		{"reduce group too large", func() Message { m := good(); m.Common.ReduceGroup = 3; return m }(), "reduce group 3"},
		{"heap too large", func() Message { m := good(); m.Common.HeapBytes = 1 << 41; return m }(), "heap of"},
		{"reproducible neither 0 nor 1", func() Message { m := good(); m.Common.Reproducible = 2; return m }(), "reproducible is 2"},
		{"forcing without a NUL", func() Message { m := good(); copy(m.Common.Forcing[:], strings.Repeat("x", ForcingBytes)); return m }(), "forcing has no NUL"},
		{"block without a tile for each rank", &Joined{
			ControlBytes: ControlBytes(1), HeapBytes: 1 << 20, ScratchBytes: 1 << 19, World: 1, LocalSize: 1, ReduceGroup: 1, BlockBytes: 64,
		}, "block of 64"},
		{"error without a code", &Error{}, "code 0"},
		{"empty window", &WindowAlloc{}, "window of 0 bytes"},
		{"version range upside down", &Hello{VersionMin: 2, VersionMax: 1}, "versions 2..1: the lowest is above"},
		{"registration of 0 bytes", &Register{}, "memory of 0 bytes"},
		{"registration beyond any file", &Register{Bytes: 1, FdOffset: 1 << 63}, "at 9223372036854775808"},
		{"private memory without a reason", &RegisterPrivate{Bytes: 1}, "reason is empty"},
		{"private memory of too many bytes", &RegisterPrivate{Bytes: 1<<40 + 1, Reason: MakeReason("x")}, "memory of 1099511627777"},
		{"memory of a local rank out of range", &PeerMemory{Bytes: 1, Region: 1, Local: 64}, "rank 64"},
		{"memory of region 0", &PeerMemory{Bytes: 1, Memory: MemoryCPU}, "region 0"},
		{"part of a window with a handle", &PeerMemory{Bytes: 1, Memory: MemoryCUDA, AllocationBytes: 1, Handle: Handle{1}}, "region 0"},
		{"part of a window of another allocation", &PeerMemory{Bytes: 1, Memory: MemoryCUDA, AllocationBytes: 2}, "an allocation of 2"},
		{"part of a window of 0 bytes", &PeerMemory{Memory: MemoryCUDA}, "window: 0 bytes"},
		{"part of a window beyond any heap", &PeerMemory{Bytes: 1, FdOffset: 1 << 42, Memory: MemoryCUDA, AllocationBytes: 1}, "at 4398046511104"},
		{"an allocation of CPU memory", &Register{Bytes: 1, Memory: MemoryCPU, AllocationBytes: 1}, "allocation of 1 bytes"},
		{"CUDA memory without its allocation", &Register{Bytes: 1, Memory: MemoryCUDA}, "1 bytes at 0 of an allocation of 0"},
		{"CUDA memory beyond its allocation", &Register{Bytes: 2, FdOffset: 1, Memory: MemoryCUDA, AllocationBytes: 2}, "2 bytes at 1"},
		{"CUDA memory beyond its allocation of 2^64", &Register{Bytes: 1, FdOffset: 3, Memory: MemoryCUDA, AllocationBytes: 2}, "1 bytes at 3"},
		{"an allocation of too many bytes", &Register{Bytes: 1, Memory: MemoryCUDA, AllocationBytes: 1<<40 + 1}, "at most 1099511627776"},
		{"CUDA memory with a handle", &Register{Bytes: 1, Memory: MemoryCUDA, AllocationBytes: 1, Handle: Handle{1}}, "handle 01000000"},
		{"CUDA_IPC memory without a handle", &PeerMemory{Bytes: 1, Region: 1, Memory: MemoryCUDAIPC, AllocationBytes: 1}, "handle 00000000"},
		{"a registered window with a kind of memory", &WindowFree{Offset: 1 << RegionShift, Memory: MemoryCPU}, "memory of a registered window"},
		{"a CPU with multiprocessors", func() Message { m := good(); m.Own.DeviceMultiprocessors = 1; return m }(), "device_multiprocessors"},
		{"a CPU with an architecture", func() Message { m := good(); m.Own.DeviceArchitecture = 90; return m }(), "device_architecture"},
		{"a CPU with a UUID", func() Message { m := good(); m.Own.DeviceUUID = UUID{0xab}; return m }(), "device_uuid is GPU-ab000000-"},
		{"a CUDA device without a UUID", func() Message {
			m := good()
			m.Own.Device, m.Own.DeviceMultiprocessors = DeviceCUDA, 132
			return m
		}(), "expected a UUID"},
		{"a CUDA device without multiprocessors", func() Message {
			m := good()
			m.Own.Device, m.Own.DeviceUUID = DeviceCUDA, UUID{1}
			return m
		}(), "with 0 multiprocessors"},
		{"a device heap without a granularity", func() Message { m := joinedOnCUDA(); m.DeviceGranularity = 0; return m }(), "device_heap_bytes"},
		{"a device heap of half granules", func() Message { m := joinedOnCUDA(); m.DeviceHeapBytes = 65 << 20; return m }(), "device heap of 68157440"},
		{"a granularity that is no power of two", func() Message { m := joinedOnCUDA(); m.DeviceGranularity = 3 << 20; return m }(), "granularity 3145728"},
		{"a device scratch without room for its slots", func() Message { m := joinedOnCUDA(); m.DeviceSlotBytes = 17 << 20; return m }(), "slots of 17825792"},
		{"a device slot that is no multiple of 128", func() Message { m := joinedOnCUDA(); m.DeviceSlotBytes = 100; return m }(), "slots of 100"},
		{"a device scratch larger than the heap", func() Message { m := joinedOnCUDA(); m.DeviceScratchBytes = 2 << 30; return m }(), "in a heap of"},
		{"mapped region out of range", &RegisterMapped{Region: 256}, "region 256"},
		{"agent without a name", &KVAgent{}, "name is empty"},
		{"shared with a reason", &Registered{Region: 1, StagedLocal: -1, Reason: MakeReason("x")}, "staged rank -1 with"},
		{"staged without a reason", &Registered{Region: 1}, "staged rank 0 with"},
		{"staged rank out of range", &Registered{Region: 1, StagedLocal: -2, Reason: MakeReason("x")}, "staged rank -2 is"},
		{"a reannounced rank out of range", &Reannounce{ControlBytes: 4096, Place: OneNode(2, 2), World: 2, Nodes: 1, TimeoutMS: 1}, "rank 2"},
		{"a reannounced segment that is too large", &Reannounce{
			ControlBytes: MaxControl + 4096, Place: OneNode(1, 2), World: 2, Nodes: 1, TimeoutMS: 1,
		}, "segment of 1073745920 bytes"},
		{"a reannounced group without a segment", &Reannounce{Place: OneNode(1, 2), World: 2, Nodes: 1, TimeoutMS: 1}, "segment of 0 bytes"},
		{"a control segment that is too large", func() Message {
			return &Joined{ControlBytes: 1 << 31, HeapBytes: 1 << 20, World: 1, LocalSize: 1, ReduceGroup: 1}
		}(), "segment of 2147483648 bytes"},
		{"too many ranks on a node", &Joined{World: 65, LocalSize: 65}, "65 ranks on this node"},
		{"pages that are not whole granules", &WindowCommit{Bytes: 4096, Granularity: 65536}, "the granularity 65536"},
		{"granularity 0", &WindowCommit{Bytes: 4096}, "the granularity 0"},
		{"a reannounced rank without a timeout", &Reannounce{}, "timeout"},
		{"scratch too small", &Joined{
			ControlBytes: ControlBytes(1), HeapBytes: 1 << 20, ScratchBytes: 16384, World: 1, LocalSize: 1, ReduceGroup: 1, BlockBytes: 8192,
			PipeSlotBytes: 256, BroadcastSlotBytes: 256,
		}, "scratch"},
		{"slot without room for a tile", &Joined{
			ControlBytes: ControlBytes(1), HeapBytes: 1 << 20, ScratchBytes: 1 << 19, World: 1, LocalSize: 1, ReduceGroup: 1, BlockBytes: 8192,
			PipeSlotBytes: 256,
		}, "slot of 0"},
	}
	for _, c := range cases {
		if _, err := Encode(c.m, VersionMax, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: encode says %v, want %q", c.what, err, c.want)
		}
		*c.m.header() = Header{Magic: Magic, Type: c.m.kind(), Version: VersionMax, Size: uint32(binary.Size(c.m))}
		raw, err := binary.Append(nil, binary.LittleEndian, c.m)
		if err != nil {
			t.Fatal(err)
		}
		var pe *ProtocolError
		if _, err := Decode(raw); !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: decode says %v, want %q", c.what, err, c.want)
		}
	}
}

func TestOnlyTheFrozenMessagesAreReadInOtherVersions(t *testing.T) {
	for _, m := range samples(t) {
		b, err := Encode(m, VersionMax+1, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Decode(b)
		frozen := m.kind() <= TypeError
		if (err == nil) != frozen {
			t.Errorf("%T of version %d: %v", m, VersionMax+1, err)
		}
	}
}

func TestAlgorithmNamesRoundTrip(t *testing.T) {
	for a := AlgoAuto; int(a) < len(algorithms); a++ {
		if got, err := ParseAlgo(a.String()); err != nil || got != a {
			t.Errorf("%d is %q, which reads as %d, %v", a, a, got, err)
		}
	}
	for _, name := range []string{"rings", ""} {
		if _, err := ParseAlgo(name); err == nil || !strings.Contains(err.Error(), "twoshot") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestMakeForcingRefusesWhatDoesNotFit(t *testing.T) {
	if f, err := MakeForcing("allreduce:ring;^tree"); err != nil || f.String() != "allreduce:ring;^tree" {
		t.Errorf("got %q, %v", f, err)
	}
	for _, bad := range []string{strings.Repeat("x", ForcingBytes), "a\x00b", "\xff"} {
		if _, err := MakeForcing(bad); err == nil {
			t.Errorf("%q: taken", bad)
		}
	}
}

func TestMakeTextCutsBetweenCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringN(0, 400, -1).Draw(t, "s")
		m := MakeText(s)
		if err := checkCString("text", m[:]); err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(s, "\x00", ""); len(want) < TextBytes/2 && m.String() != want {
			t.Fatalf("%q became %q", s, m.String())
		}
	})
}

// A text keeps as many characters as fit before its NUL.
func TestATextIsShortenedOnlyWhereItMustBe(t *testing.T) {
	for _, character := range []string{"x", "ö", "→", "🚆"} {
		for bytes := TextBytes - 8; bytes <= TextBytes+8; bytes++ {
			s := strings.Repeat("x", bytes%len(character)) + strings.Repeat(character, bytes/len(character))
			want := s
			for len(want) >= TextBytes {
				want = want[:len(want)-len(character)]
			}
			if m := MakeText(s); m.String() != want || m[TextBytes-1] != 0 {
				t.Errorf("%d bytes of %q became %d, want %d: %q", len(s), character, len(m.String()), len(want), m.String())
			}
		}
	}
}

func TestAbortWordRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := Abort{
			Code:     Result(rapid.IntRange(1, 255).Draw(t, "code")),
			Op:       Op(rapid.IntRange(0, 255).Draw(t, "op")),
			Culprit:  rank.World(rapid.IntRange(-1, noRank-1).Draw(t, "culprit")),
			Reporter: rank.World(rapid.IntRange(-1, noRank-1).Draw(t, "reporter")),
		}
		got, ok := ParseAbort(a.Word())
		if !ok || got != a {
			t.Fatalf("%+v became %+v", a, got)
		}
		if uint32(a.Word()) == 0 {
			t.Fatal("the low half is 0: a futex could not see it")
		}
	})
	// A rank that does not fit is an unknown one, and changes no other field.
	if a, ok := ParseAbort(Abort{Code: 1, Op: 2, Culprit: noRank + 2, Reporter: noRank}.Word()); !ok || a != (Abort{Code: 1, Op: 2, Culprit: -1, Reporter: -1}) {
		t.Errorf("ranks that do not fit became %+v", a)
	}
	for _, works := range []uint64{0, 1 << 32, 0xffffff << 40} {
		if _, ok := ParseAbort(works); ok {
			t.Errorf("%#x has a low half of 0 but reads as an abort", works)
		}
	}
}

// FuzzDecode: an accepted message encodes to the same bytes, so Decode ignores none of them.
func FuzzDecode(f *testing.F) {
	for _, m := range samples(f) {
		b, err := Encode(m, VersionMax, 3)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			var pe *ProtocolError
			if !errors.As(err, &pe) {
				t.Fatalf("not a ProtocolError: %v", err)
			}
			return
		}
		back, err := Encode(m, VersionOf(m), RequestOf(m))
		if err != nil {
			t.Fatalf("accepted but cannot be encoded: %v", err)
		}
		if !bytes.Equal(back, b) {
			t.Fatalf("accepted %x, which encodes to %x", b, back)
		}
	})
}

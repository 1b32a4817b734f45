package wire

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"testing"
	"unicode"

	"railhead/internal/rank"
)

var update = flag.Bool("update", false, "write testdata/layout.golden and layout_assert.h from the Go structs")

const (
	goldenFile = "testdata/layout.golden"
	assertFile = "layout_assert.h"
)

// snake turns a Go field name into the C one: VersionMin -> version_min, TimeoutMS -> timeout_ms, CPUs -> cpus,
// EPCounters -> ep_counters.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		wordBegins := i+2 < len(s) && unicode.IsLower(rune(s[i+1])) // a single letter behind capitals is a plural s
		if unicode.IsUpper(r) && i > 0 && (wordBegins || !unicode.IsUpper(rune(s[i-1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// structsOnTheWire are all messages and the structs of the control segment.
func structsOnTheWire() []any {
	all := []any{
		Header{}, Place{}, Common{}, Own{}, ControlHeader{}, Part{}, Parts{}, Lease{}, Session{}, RankLine{}, FlightRecord{}, Choice{}, Plan{}, Plans{},
		Ledger{}, Memory{}, Outcome{}, RegionEntry{}, EPCounters{},
	}
	for t := Type(0); t < 1000; t++ {
		if m := New(t); m != nil {
			all = append(all, reflect.ValueOf(m).Elem().Interface())
		}
	}
	return all
}

func goLayout() []string {
	var lines []string
	for _, s := range structsOnTheWire() {
		t := reflect.TypeOf(s)
		name := "rhw_" + snake(t.Name())
		lines = append(lines, fmt.Sprintf("size %s %d", name, t.Size()))
		for i := range t.NumField() {
			f := t.Field(i)
			lines = append(lines, fmt.Sprintf("field %s %s %d %d", name, snake(f.Name), f.Offset, f.Type.Size()))
		}
	}
	for r, n := range resultNames {
		c := "RH_ERR_" + strings.ToUpper(n)
		if r == ResultOK {
			c = "RH_OK"
		}
		lines = append(lines, fmt.Sprintf("const %s %d", c, r))
	}
	for o := OpNone; o <= OpEPCombineRecv; o++ {
		lines = append(lines, fmt.Sprintf("const RHW_OP_%s %d", strings.ToUpper(o.String()), o))
	}
	for a := AlgoAuto; int(a) < len(algorithms); a++ {
		lines = append(lines, fmt.Sprintf("const RHW_ALGO_%s %d", strings.ToUpper(a.String()), a))
	}
	for w := WhyNone; w <= WhyNotZeroCopy; w++ {
		lines = append(lines, fmt.Sprintf("const RHW_WHY_%s %d", strings.ToUpper(w.String()), w))
	}
	for t := Type(1); t < 1000; t++ {
		if New(t) == nil {
			continue
		}
		n := "RHW_" + strings.ToUpper(snake(reflect.TypeOf(New(t)).Elem().Name()))
		lines = append(lines, fmt.Sprintf("const %s %d", n, t))
	}
	lines = append(lines,
		fmt.Sprintf("const RHW_MAGIC %d", uint64(Magic)),
		fmt.Sprintf("const RHW_VERSION_MIN %d", VersionMin),
		fmt.Sprintf("const RHW_VERSION_MAX %d", VersionMax),
		fmt.Sprintf("const RHW_MAX_MESSAGE %d", MaxMessage),
		fmt.Sprintf("const RHW_MAX_LOCAL %d", rank.MaxPerNode),
		fmt.Sprintf("const RHW_MAX_WORLD %d", rank.MaxWorld),
		fmt.Sprintf("const RHW_DEVICE_CPU %d", DeviceCPU),
		fmt.Sprintf("const RHW_DEVICE_CUDA %d", DeviceCUDA),
		fmt.Sprintf("const RHW_MEMORY_CPU %d", MemoryCPU),
		fmt.Sprintf("const RHW_MEMORY_CUDA %d", MemoryCUDA),
		fmt.Sprintf("const RHW_MEMORY_CUDA_IPC %d", MemoryCUDAIPC),
		fmt.Sprintf("const RHW_HANDLE %d", HandleBytes),
		fmt.Sprintf("const RHW_UUID %d", UUIDBytes),
		fmt.Sprintf("const RHW_REASON %d", ReasonBytes),
		fmt.Sprintf("const RHW_FORCING %d", ForcingBytes),
		fmt.Sprintf("const RHW_CPU_WORDS %d", cpuWords),
		fmt.Sprintf("const RHW_MAX_CHOICES %d", MaxChoices),
		fmt.Sprintf("const RHW_PLANS %d", PlanCount),
		fmt.Sprintf("const RHW_PLANS_CUDA %d", PlanCountCUDA),
		fmt.Sprintf("const RHW_PLAN_ALL_REDUCE_PACKETS %d", PlanAllReducePackets),
		fmt.Sprintf("const RHW_PLAN_REDUCE_SCATTER_PACKETS %d", PlanReduceScatterPackets),
		fmt.Sprintf("const RHW_PLAN_TRANSFERS %d", PlanTransfers),
		fmt.Sprintf("const RHW_MAX_PLANS %d", MaxPlans),
		fmt.Sprintf("const RHW_MAX_DEVICES %d", MaxDevices),
		fmt.Sprintf("const RHW_MAX_MEMORIES %d", MaxMemories),
		fmt.Sprintf("const RHW_MAX_REGION %d", MaxRegion),
		fmt.Sprintf("const RHW_MAX_REGISTERED %d", uint64(MaxRegistered)),
		fmt.Sprintf("const RHW_MAX_FILE_OFFSET %d", uint64(MaxFileOffset)),
		fmt.Sprintf("const RHW_REGION_SHIFT %d", RegionShift),
		fmt.Sprintf("const RHW_CONTROL_MAGIC %d", uint64(ControlMagic)),
		fmt.Sprintf("const RHW_CONTROL_VERSION %d", ControlVersion),
		fmt.Sprintf("const RHW_MAX_CONTROL %d", MaxControl),
		fmt.Sprintf("const RHW_SESSION_MAGIC %d", uint64(SessionMagic)),
		fmt.Sprintf("const RHW_SESSION_VERSION %d", SessionVersion),
		fmt.Sprintf("const RHW_SESSION_BYTES %d", SessionBytes),
		fmt.Sprintf("const RHW_NO_RANK %d", noRank),
		fmt.Sprintf("const RHW_FLIGHT_RECORDS %d", FlightRecords),
		fmt.Sprintf("const RHW_MAX_WINDOWS %d", MaxWindows),
		fmt.Sprintf("const RHW_EP_MAX_EXPERTS %d", MaxExperts),
	)
	sort.Strings(lines)
	return lines
}

// assertHeader is layout_assert.h: the golden file as C++ static assertions.
func assertHeader(lines []string) string {
	var b strings.Builder
	b.WriteString("// Made from testdata/layout.golden by `go generate ./internal/wire`. Do not edit.\n")
	b.WriteString("// Include it after wire.h and railhead.h.\n#include <stddef.h>\n")
	for _, l := range lines {
		f := strings.Fields(l)
		switch f[0] {
		case "size":
			fmt.Fprintf(&b, "static_assert(sizeof(struct %s) == %s, \"%s\");\n", f[1], f[2], f[1])
		case "field":
			fmt.Fprintf(&b, "static_assert(offsetof(struct %s, %s) == %s && sizeof(((struct %s*)0)->%s) == %s, \"%s.%s\");\n",
				f[1], f[2], f[3], f[1], f[2], f[4], f[1], f[2])
		case "const":
			fmt.Fprintf(&b, "static_assert(%s == %sull, \"%s\");\n", f[1], f[2], f[1])
		}
	}
	return b.String()
}

func TestGoLayoutsEqualTheGoldenFile(t *testing.T) {
	lines := goLayout()
	text := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile(goldenFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(assertFile, []byte(assertHeader(lines)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(golden) != text {
		t.Errorf("the Go structs differ from %s.\nThat changes the protocol: raise VersionMax, then `go generate ./internal/wire`.\nnow:\n%s", goldenFile, text)
	}
}

func TestTheCAssertionsMatchTheGoldenFile(t *testing.T) {
	golden, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(assertFile)
	if err != nil {
		t.Fatal(err)
	}
	if want := assertHeader(strings.Split(strings.TrimSpace(string(golden)), "\n")); string(have) != want {
		t.Errorf("%s does not match %s: run `go generate ./internal/wire`", assertFile, goldenFile)
	}
}

// With these messages peers of different versions refuse each other, so their layout never changes.
func TestTheFrozenMessagesAreThoseOfVersion1(t *testing.T) {
	for _, f := range []struct {
		m      Message
		kind   Type
		layout string
	}{
		{&Hello{}, 1, "H@0:24 VersionMin@24:2 VersionMax@26:2 PID@28:4 Software@32:64"},
		{&Welcome{}, 2, "H@0:24 Version@24:2 Reserved0@26:2 Reserved1@28:4 Session@32:8 Daemon@40:8 Software@48:64"},
		{&Error{}, 3, "H@0:24 Code@24:4 Culprit@28:4 Missing@32:8 Text@40:320"},
	} {
		var fields []string
		s := reflect.TypeOf(f.m).Elem()
		for i := range s.NumField() {
			field := s.Field(i)
			fields = append(fields, fmt.Sprintf("%s@%d:%d", field.Name, field.Offset, field.Type.Size()))
		}
		if got := strings.Join(fields, " "); got != f.layout || f.m.kind() != f.kind || s.Size() > 512 {
			t.Errorf("%s has number %d and %d bytes: %s, want %s", s.Name(), f.m.kind(), s.Size(), got, f.layout)
		}
	}
}

func TestRankLineOffsetsMatchTheStruct(t *testing.T) {
	line := reflect.TypeFor[RankLine]()
	for name, want := range map[string]uintptr{
		"Rank": RankOffset, "Seq": SeqOffset, "Op": OpOffset, "Chosen": ChosenOffset, "Bytes": BytesOffset, "WaitingFor": WaitingForOffset, "AsleepSince": AsleepSinceOffset,
	} {
		f, ok := line.FieldByName(name)
		if !ok || f.Offset != want {
			t.Errorf("RankLine.%s lies at %d, the constant says %d", name, f.Offset, want)
		}
	}
	if word, ok := reflect.TypeFor[Lease]().FieldByName("Word"); !ok || line.Field(0).Name != "Lease" || word.Offset != LeaseOffset {
		t.Errorf("Lease.Word lies at %d, the constant says %d of the line", word.Offset, LeaseOffset)
	}
	if f, ok := reflect.TypeFor[Session]().FieldByName("Lease"); !ok || f.Offset+LeaseOffset != SessionLeaseOffset {
		t.Errorf("Session.Lease lies at %d, the constant puts its word at %d", f.Offset, SessionLeaseOffset)
	}
	if line.Size() != rankLineBytes {
		t.Errorf("RankLine has %d bytes, the constant says %d", line.Size(), rankLineBytes)
	}
	if n := reflect.TypeFor[FlightRecord]().Size(); n != FlightWords*8 {
		t.Errorf("FlightRecord has %d bytes, the constant says %d words", n, FlightWords)
	}
	if f, ok := reflect.TypeFor[ControlHeader]().FieldByName("Abort"); !ok || f.Offset != AbortOffset {
		t.Errorf("ControlHeader.Abort lies at %d, the constant says %d", f.Offset, AbortOffset)
	}
}

func TestLedgerOffsetsMatchTheStructs(t *testing.T) {
	ledger, entry := reflect.TypeFor[Ledger](), reflect.TypeFor[RegionEntry]()
	ended, _ := ledger.FieldByName("Ended")
	outcomes, _ := ledger.FieldByName("Outcomes")
	live, _ := entry.FieldByName("Live")
	if ended.Offset != EndedOffset || outcomes.Offset != OutcomesOffset || live.Offset != LiveOffset {
		t.Errorf("Ended lies at %d, Outcomes at %d, Live at %d; the constants say %d, %d, %d", ended.Offset, outcomes.Offset,
			live.Offset, EndedOffset, OutcomesOffset, LiveOffset)
	}
	if outcomes.Type.Elem().Size() != OutcomeBytes || entry.Size() != regionEntryBytes {
		t.Errorf("an outcome has %d bytes, an entry %d; the constants say %d, %d", outcomes.Type.Elem().Size(), entry.Size(),
			OutcomeBytes, regionEntryBytes)
	}
	if ledger.Size() > ledgerBytes {
		t.Errorf("a ledger has %d bytes, the constant says %d", ledger.Size(), ledgerBytes)
	}
}

func TestEPCounterOffsetsMatchTheStruct(t *testing.T) {
	counters := reflect.TypeFor[EPCounters]()
	for name, want := range map[string]uintptr{
		"Dispatches": EPDispatchesOffset, "Combines": EPCombinesOffset, "Tokens": EPTokensOffset, "Copies": EPCopiesOffset,
		"FlagBytes": EPFlagBytesOffset, "InvalidIds": EPDroppedOffset, "LostCopies": EPDroppedOffset + 8*(EPDropped-1),
		"Experts": EPExpertsOffset, "PayloadBytes": EPPayloadOffset, "HeaderBytes": EPHeaderOffset, "WaitNS": EPWaitOffset,
		"Routed": EPRoutedOffset, "Received": EPReceivedOffset,
	} {
		if f, ok := counters.FieldByName(name); !ok || f.Offset != want {
			t.Errorf("EPCounters.%s lies at %d, the constant says %d", name, f.Offset, want)
		}
	}
	if counters.Size() != epCountersBytes || epCountersBytes%4096 != 0 {
		t.Errorf("counters of %d bytes; the constant says %d, and they are whole pages", counters.Size(), epCountersBytes)
	}
}

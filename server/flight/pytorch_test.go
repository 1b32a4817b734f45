package flight

import (
	"bytes"
	"encoding/json"
	"reflect"
	"sort"
	"strings"
	"testing"

	"railhead/internal/wire"
)

// The fields that PyTorch's analyser and its documentation name.
var (
	dumpFields  = []string{"entries", "pg_config", "pg_status", "version"}
	entryFields = []string{
		"collective_seq_id", "duration_ms", "frames", "input_dtypes", "input_sizes", "is_p2p", "op_id", "output_dtypes", "output_sizes",
		"p2p_seq_id", "pg_id", "process_group", "profiling_name", "record_id", "retired", "state", "time_created_ns",
		"time_discovered_completed_ns", "time_discovered_started_ns", "timeout_ms",
	}
)

func keys(m map[string]any) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// exampleTrace is of two ranks, of which rank 1 has not called the last all-reduce.
func exampleTrace() *Trace {
	record := func(n, collective uint64, op wire.Op, root int, bytes uint64, state State) Record {
		r := Record{
			Sequence: n, Op: op, Operation: op.String(), Collective: collective, Bytes: bytes, Dtype: "bf16", Root: root, Algorithm: "oneshot",
			State: state, EnqueuedNS: int64(n) * 1000, LastRank: -1,
		}
		if state != Running {
			r.DoneNS = r.EnqueuedNS + 500
		}
		return r
	}
	both := func(rank int) []Record {
		return []Record{
			record(1, 0, wire.OpWindowAlloc, -1, 4096, Done), record(2, 1, wire.OpAllGather, -1, 16, Done), record(3, 2, wire.OpBroadcast, 0, 16, Done),
			record(4, 0, []wire.Op{wire.OpSend, wire.OpRecv}[rank], 1-rank, 32, Done), record(5, 3, wire.OpReduceScatter, -1, 16, Done),
		}
	}
	return &Trace{Group: 3, Name: "tp", Incarnation: 1, WorldSize: 2, Ranks: []RankTrace{
		{Rank: 0, Records: append(both(0), record(6, 4, wire.OpAllReduce, -1, 64, Running))}, {Rank: 1, Records: both(1)},
	}}
}

func TestADumpHasExactlyTheFieldsThatPyTorchsAnalyserReads(t *testing.T) {
	raw, err := json.Marshal(PyTorch(exampleTrace(), 1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	var dumps map[string]map[string]any
	if err := json.Unmarshal(raw, &dumps); err != nil {
		t.Fatal(err)
	}
	if len(dumps) != 2 {
		t.Fatalf("dumps of %v", len(dumps))
	}
	for rank, d := range dumps {
		if got := keys(d); !reflect.DeepEqual(got, dumpFields) {
			t.Errorf("rank %s: fields %v", rank, got)
		}
		config := d["pg_config"].(map[string]any)["3"].(map[string]any)
		if want := map[string]any{"name": "3", "desc": "tp", "ranks": "[0, 1]"}; !reflect.DeepEqual(config, want) {
			t.Errorf("rank %s: config %v", rank, config)
		}
		pair := d["pg_config"].(map[string]any)["3-p2p-0-1"].(map[string]any)
		if want := map[string]any{"name": "3-p2p-0-1", "desc": "tp", "ranks": "[0, 1]"}; !reflect.DeepEqual(pair, want) {
			t.Errorf("rank %s: config %v", rank, pair)
		}
		for _, e := range d["entries"].([]any) {
			if got := keys(e.(map[string]any)); !reflect.DeepEqual(got, entryFields) {
				t.Errorf("rank %s: fields %v", rank, got)
			}
			if s := e.(map[string]any)["state"]; s != "started" && s != "completed" {
				t.Errorf("rank %s: state %v", rank, s)
			}
			for _, f := range e.(map[string]any)["frames"].([]any) {
				if got := keys(f.(map[string]any)); !reflect.DeepEqual(got, []string{"filename", "line", "name"}) {
					t.Errorf("rank %s: frame %v", rank, got)
				}
			}
		}
	}
	status := dumps["0"]["pg_status"].(map[string]any)["3"]
	if want := map[string]any{"last_enqueued_collective": 4., "last_started_collective": 4., "last_completed_collective": 3.}; !reflect.DeepEqual(status, want) {
		t.Errorf("status %v", status)
	}
}

func TestEntriesSayWhatWasCalled(t *testing.T) {
	dumps := PyTorch(exampleTrace(), 1_000_000)
	type said struct {
		name, state string
		in, out     int64
		collective  uint64
		p2p         bool
	}
	got := func(rank string) (all []said) {
		for _, e := range dumps[rank].Entries {
			all = append(all, said{e.ProfilingName, e.State, e.InputSizes[0][0], e.OutputSizes[0][0], e.CollectiveSeqID, e.IsP2P})
			group := "3"
			if e.IsP2P {
				group = "3-p2p-0-1"
			}
			if e.InputDtypes[0] != "BFloat16" || e.ProcessGroup != [2]string{group, "tp"} || e.TimeCreatedNS != 1_000_000+int64(e.RecordID)*1000 {
				t.Errorf("%+v", e)
			}
		}
		return all
	}
	want := []said{
		{"nccl:all_gather", "completed", 8, 16, 1, false}, {"nccl:broadcast", "completed", 8, 8, 2, false},
		{"nccl:send 0->1", "completed", 16, 16, 2, true}, {"nccl:_reduce_scatter_base", "completed", 16, 8, 3, false},
		{"nccl:all_reduce", "started", 32, 32, 4, false},
	}
	if g := got("0"); !reflect.DeepEqual(g, want) {
		t.Errorf("rank 0: %v", g)
	}
	want[2].name = "nccl:recv 1<-0"
	if g := got("1"); !reflect.DeepEqual(g, want[:4]) {
		t.Errorf("rank 1: %v", g)
	}
	last := dumps["0"].Entries[4]
	if last.TimeCompletedNS != nil || last.DurationMS != nil || last.Retired {
		t.Errorf("an operation under way: %+v", last)
	}
	if first := dumps["0"].Entries[0]; *first.DurationMS != 0.0005 || !first.Retired || first.Frames[0].Name != "all_gather oneshot" {
		t.Errorf("an operation that ended: %+v", first)
	}
}

func TestADispatchOrCombineOfMoEIsInTheDumpOnceHoweverItWasCalled(t *testing.T) {
	trace := &Trace{Group: 3, Name: "ep", WorldSize: 1, Ranks: []RankTrace{{Rank: 0}}}
	for i, op := range []wire.Op{
		wire.OpEPCreate, wire.OpEPDispatch, wire.OpEPCombine, wire.OpEPDispatchSend, wire.OpEPDispatchRecv, wire.OpEPCombineSend,
		wire.OpEPCombineRecv, wire.OpEPDestroy,
	} {
		n := uint64(i + 1)
		trace.Ranks[0].Records = append(trace.Ranks[0].Records, Record{
			Sequence: n, Op: op, Operation: op.String(), Collective: n, Bytes: 64, Dtype: "bf16", Root: -1, State: Done,
		})
	}
	var got []string
	for _, e := range PyTorch(trace, 0)["0"].Entries {
		if e.ProfilingName != "nccl:all_to_all" || e.InputSizes[0][0] != 32 || e.OutputSizes[0][0] != 32 || e.IsP2P {
			t.Errorf("%+v", e)
		}
		got = append(got, e.Frames[0].Name)
	}
	if want := []string{"ep_dispatch", "ep_combine", "ep_dispatch_send", "ep_combine_send"}; !reflect.DeepEqual(got, want) {
		t.Errorf("the dump has %v, want %v", got, want)
	}
}

// A combine's number follows that of its dispatch, whatever was called in between.
func TestACombineBehindALaterCollectiveKeepsItsNumber(t *testing.T) {
	trace := &Trace{Group: 3, Name: "ep", WorldSize: 2, Ranks: []RankTrace{{Rank: 0}}}
	for i, r := range []Record{
		{Op: wire.OpEPDispatch, Collective: 1}, {Op: wire.OpBarrier, Collective: 3}, {Op: wire.OpEPCombine, Collective: 2}, {Op: wire.OpSend, Root: 1},
	} {
		r.Sequence, r.Dtype, r.State = uint64(i+1), "u8", Done
		trace.Ranks[0].Records = append(trace.Ranks[0].Records, r)
	}
	dump := PyTorch(trace, 0)["0"]
	var got []uint64
	for _, e := range dump.Entries {
		got = append(got, e.CollectiveSeqID)
	}
	if want := []uint64{1, 3, 2, 3}; !reflect.DeepEqual(got, want) {
		t.Errorf("the entries' collectives are %v, want %v", got, want)
	}
	if got, want := dump.PGStatus["3"], (PGState{3, 3, 3}); got != want {
		t.Errorf("the last collectives are %v, want %v", got, want)
	}
}

func TestTheTableIsInTheOrderOfTheCalls(t *testing.T) {
	var out bytes.Buffer
	if err := WriteText(&out, exampleTrace(), 0); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2+11 || lines[0] != `group "tp" #1, 2 ranks` {
		t.Fatalf("%s", out.String())
	}
	for i, l := range lines[2:] {
		f := strings.Fields(l)
		if want := []string{"0", "1"}[i%2]; f[1] != want {
			t.Errorf("line %d is of rank %s: %s", i, f[1], l)
		}
	}
	if f := strings.Fields(lines[len(lines)-1]); f[4] != "all_reduce" || f[8] != "running" || f[9] != "-" {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
}

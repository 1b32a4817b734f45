package membership

import (
	"strings"
	"testing"

	"railhead/internal/wire"
)

// Pairs of outputs of one step. Only the order given here is accepted.
func TestOutputsOfAStepThatAreOutOfOrderAreFound(t *testing.T) {
	const g, file = GroupID(7), FileID(3)
	ended := Conclude{Group: g, Outcome: wire.Outcome{Op: wire.OpWindowFree}}
	failed := Conclude{Group: g, Outcome: wire.Outcome{Op: wire.OpWindowAlloc, Code: wire.ResultOutOfMemory}}
	freed := Send{To: 1, Msg: &wire.WindowFreed{Group: uint64(g)}, Ends: g}
	failure := Send{To: 1, Msg: &wire.Error{Code: wire.ResultOutOfMemory}, Ends: g}
	peer := Send{To: 1, Msg: &wire.PeerMemory{}, FD: ClientFD, File: file}
	part := Send{To: 1, Msg: &wire.PeerMemory{Group: uint64(g), Memory: wire.MemoryCUDA}, FD: ClientFD, File: file}
	handle := Send{To: 1, Msg: &wire.PeerMemory{Group: uint64(g), Region: 1, Memory: wire.MemoryCUDAIPC}}
	heap := Send{To: 1, Msg: &wire.Heap{}, FD: HeapFD, Group: g}
	for what, pair := range map[string][2]Action{
		"the ledger has an outcome before ranks are answered":            {ended, freed},
		"the ledger has a failure before ranks are answered":             {failed, failure},
		"a window is out of the ledger before its pages go":              {ended, Decommit{Group: g}},
		"pages go before ranks are answered":                             {Decommit{Group: g}, freed},
		"the abort word is set before the call that it ends is answered": {Poison{Group: g}, failure},
		"memory is adopted before anything else happens to its group":    {AdoptGroup{Group: g}, Send{To: 1, Msg: &wire.Reannounced{Group: uint64(g)}}},
		"nothing happens to a group while its memory is created":         {heap, CreateGroup{Group: g}},
		"descriptors of a group are sent before its memory is released":  {heap, ReleaseGroup{Group: g}},
		"the ledger is written before the memory is released":            {ended, ReleaseGroup{Group: g}},
		"the abort word is set before the memory is released":            {Poison{Group: g}, ReleaseGroup{Group: g}},
		"a client's descriptor is sent before it is closed":              {peer, CloseFile{file}},
		"memory is sent before the ledger says that it is mapped":        {part, ended},
		"memory is sent before the call ends":                            {handle, freed},
	} {
		if err := checkOrder([]Action{pair[0], pair[1]}); err != nil {
			t.Errorf("%s: the right order is refused: %v", what, err)
		}
		if err := checkOrder([]Action{pair[1], pair[0]}); err == nil {
			t.Errorf("%s: the wrong order is accepted", what)
		}
	}
	for _, m := range []wire.Message{&wire.GroupReady{}, &wire.WindowReady{}, &wire.Registered{}} {
		made := Send{To: 1, Msg: m, Ends: g}
		if err := checkOrder([]Action{made, Send{To: 2, Msg: m, Ends: g}}); err == nil {
			t.Errorf("%T is accepted without a Conclude", m)
		}
		if err := checkOrder([]Action{ended, made}); err != nil {
			t.Errorf("%T behind its Conclude is refused: %v", m, err)
		}
	}
	// Outputs about another group, or another file, may come in any order.
	for _, step := range [][]Action{
		{Send{To: 1, Msg: &wire.WindowFreed{}, Ends: 8}, ended}, {ReleaseGroup{Group: 8}, ended, freed}, {CloseFile{4}, peer},
	} {
		if err := checkOrder(step); err != nil {
			t.Error(err)
		}
	}
}

func TestAMachineWithOutputsOutOfOrderPanics(t *testing.T) {
	m, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if text, ok := recover().(string); !ok || !strings.Contains(text, "comes after an answer that ends a call of 7") {
			t.Errorf("it said %q", text)
		}
	}()
	m.do(Send{To: 1, Msg: &wire.WindowFreed{Group: 7}, Ends: 7})
	m.do(Conclude{Group: 7, Outcome: wire.Outcome{Op: wire.OpWindowFree}})
	m.take()
	t.Error("the machine did not panic")
}

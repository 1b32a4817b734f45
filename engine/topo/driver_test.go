package topo

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// two is a machine with two GPUs behind root ports, as /sys shows it.
func two(t *testing.T) *Graph {
	t.Helper()
	tr := twoSocketTree()
	for i, id := range []string{"0000:a1:00.0", "0000:b1:00.0"} {
		port := []string{"0000:a0:01.0", "0000:b0:01.0"}[i]
		tr.pci("0000:a0", []string{port}, map[string]string{"class": "0x060400", "numa_node": "0"})
		tr.pci("0000:a0", []string{port, id}, map[string]string{"class": "0x030200", "vendor": "0x10de", "device": "0x2335", "numa_node": "0"})
	}
	g, err := ReadMachine(tr.fs())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// busOf lists the bus ids of the GPUs of two, by their numbers in /sys.
func busOf(g *Graph) (ids []string) {
	for _, id := range g.OfKind(GPU) {
		ids = append(ids, g.Node(id).PCI.BusID)
	}
	return ids
}

func TestGPUsGetTheDriversNumbers(t *testing.T) {
	g := two(t)
	ids := busOf(g)
	if len(ids) != 3 {
		t.Fatalf("%q", ids)
	}
	warnings := len(g.Warnings)
	// The driver counts the other way around, and does not show the first one.
	err := g.AddDriver([]DriverGPU{{Dev: 0, BusID: "0000" + strings.ToUpper(ids[2]), SM: 90}, {Dev: 1, BusID: ids[1], SM: 80}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]struct {
		bus string
		sm  int
	}{"gpu0": {ids[2], 90}, "gpu1": {ids[1], 80}, "gpu2": {ids[0], 0}} {
		if n := g.Node(id); n == nil || n.PCI.BusID != want.bus || n.GPU.SM != want.sm || GPUID(n.GPU.Dev) != id {
			t.Errorf("%s: %+v, want %+v", id, n, want)
		}
		if !slices.ContainsFunc(g.Links, func(l Link) bool { return l.Kind == LinkPCI && l.B == id }) {
			t.Errorf("%s has lost its PCI link", id)
		}
	}
	if len(g.Warnings) != warnings+1 || !strings.Contains(g.Warnings[warnings], ids[0]) {
		t.Errorf("want a warning about %s: %q", ids[0], g.Warnings)
	}
}

func TestAGPUThatSysDoesNotShowIsAdded(t *testing.T) {
	g := two(t)
	if err := g.AddDriver([]DriverGPU{{Dev: 0, BusID: "00000007:01:00.0", DeviceID: "0x2335", SM: 90}}, nil); err != nil {
		t.Fatal(err)
	}
	if n := g.Node("gpu0"); n == nil || n.PCI.BusID != "0007:01:00.0" || n.Parent != "numa0" || n.PCI.Vendor != vendorNVIDIA {
		t.Errorf("%+v", n)
	}
}

func TestNVLinksToTheSameEndAreOneLink(t *testing.T) {
	g := two(t)
	ids := busOf(g)
	to := func(n int, kind RemoteKind, bus string) []NVLink { return slices.Repeat([]NVLink{{kind, bus}}, n) }
	err := g.AddDriver([]DriverGPU{
		{Dev: 0, BusID: ids[0], SM: 90, NVLinks: append(to(6, RemoteGPU, ids[1]), to(2, RemoteSwitch, "0000:77:00.0")...)},
		{Dev: 1, BusID: ids[1], SM: 90, NVLinks: append(to(6, RemoteUnknown, ids[0]), to(1, RemoteGPU, "0000:99:00.0")...)},
		{Dev: 2, BusID: ids[2], SM: 90, NVLinks: append(to(1, RemoteSwitch, "FFFFFFFF:FF:FF.0"), to(3, RemoteCPU, "")...)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []Link
	for _, l := range g.Links {
		if l.Kind == LinkNVL {
			got = append(got, l)
		}
	}
	want := []Link{
		{"gpu0", "gpu1", LinkNVL, 150, 6}, {"gpu0", "nvswitch/0000:77:00.0", LinkNVL, 50, 2},
		{"gpu2", g.numaOf(g.index(), g.Node("gpu2")), LinkNVL, 75, 3}, {"gpu2", "nvswitch/" + unknownSwitch, LinkNVL, 25, 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if w := strings.Join(g.Warnings, "\n"); !strings.Contains(w, "gpu1: an NVLink to \"0000:99:00.0\" is left out") {
		t.Errorf("%q", w)
	}
}

func TestWhatADriverReportsIsBounded(t *testing.T) {
	long := strings.Repeat("x", 2*maxTextBytes) + "\x1b"
	for want, gpu := range map[string]DriverGPU{
		"bus id":    {BusID: "1b"},
		"65 NVLink": {BusID: "0000:a1:00.0", NVLinks: make([]NVLink, maxNVLinks+1)},
		"65 slices": {BusID: "0000:a1:00.0", Slices: make([]string, maxSlices+1)},
	} {
		wantError(t, two(t).AddDriver([]DriverGPU{gpu}, nil), want)
	}
	wantError(t, two(t).AddDriver(nil, make([]PeerAccess, maxPeerAccesses+1)), "pairs of GPUs")
	g := two(t)
	ids := busOf(g)
	gpus := []DriverGPU{{Dev: 0, BusID: ids[0], Name: long, UUID: long, Slices: []string{long}, SM: -3, MemoryBytes: -1, Fabric: &FabricInfo{State: long}}, {Dev: 1, BusID: ids[1]}}
	access := []PeerAccess{{A: "gpu0", B: "gpu1", Read: long}, {A: "gpu0", B: "gpu9", Read: "ok"}}
	if err := g.AddDriver(gpus, access); err != nil {
		t.Fatal(err)
	}
	if n := g.Node("gpu0").GPU; len(n.Name) != maxTextBytes || n.SM != 0 || n.MemoryBytes != 0 || len(g.Peers) != 1 {
		t.Errorf("%+v, %+v", n, g.Peers)
	}
	if gpus[0].Name != long {
		t.Error("the caller's report was changed")
	}
}

func TestPeersOfAFileAreChecked(t *testing.T) {
	for want, peers := range map[string]string{
		`"gpu0" and "gpu0"`: `{"a": "gpu0", "b": "gpu0"}`, `"numa0"`: `{"a": "gpu0", "b": "numa0"}`, "control characters": `{"a": "gpu0", "b": "gpu1", "read": "\u001b"}`,
	} {
		text := `{"version": 1, "nodes": [{"id": "numa0", "kind": "numa", "cpu": {"number": 0}},
			{"id": "gpu0", "kind": "gpu", "parent": "numa0", "gpu": {"dev": 0, "rank": -1}, "pci": {"bus_id": "0000:01:00.0"}},
			{"id": "gpu1", "kind": "gpu", "parent": "numa0", "gpu": {"dev": 1, "rank": -1}, "pci": {"bus_id": "0000:02:00.0"}}], "links": [],
			"peers": [` + peers + `]}`
		_, err := ReadJSON(strings.NewReader(text))
		wantError(t, err, want)
	}
}

// Whatever a driver reports, the graph is valid or there is an error, and nothing that reads the graph fails.
func TestAnyReportGivesAValidGraphOrAnError(t *testing.T) {
	sysfs := twoSocketTree().fs()
	busIDs := []string{"00000000:81:00.0", "0000:83:00.0", "0000:84:00.0", "FFFFFFFF:FF:FF.0", "0000:01:00.0", "x", ""}
	rapid.Check(t, func(t *rapid.T) {
		g, err := ReadMachine(sysfs)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range g.OfKind(GPU) {
			busIDs[0] = g.Node(id).PCI.BusID
		}
		busID, small := rapid.SampledFrom(busIDs), rapid.IntRange(-1, 3)
		var gpus []DriverGPU
		for range rapid.IntRange(0, 4).Draw(t, "GPUs") {
			d := DriverGPU{Dev: small.Draw(t, "dev"), BusID: busID.Draw(t, "bus id"), SM: 10 * small.Draw(t, "sm"), LinksDown: small.Draw(t, "down")}
			for range rapid.IntRange(0, 5).Draw(t, "links") {
				d.NVLinks = append(d.NVLinks, NVLink{RemoteKind(small.Draw(t, "kind")), busID.Draw(t, "to")})
			}
			gpus = append(gpus, d)
		}
		access := []PeerAccess{{A: GPUID(small.Draw(t, "a")), B: GPUID(small.Draw(t, "b")), Read: rapid.String().Draw(t, "status")}}
		if g.AddDriver(gpus, access) != nil {
			return
		}
		if err := g.Check(); err != nil {
			t.Fatalf("%v: %+v", err, g)
		}
		var text, again strings.Builder
		if err := errors.Join(g.WriteText(&text), g.WriteSVG(&text), g.WriteXML(&text), g.WriteJSON(&again)); err != nil {
			t.Fatalf("%v: %+v", err, g)
		}
		if read, err := ReadJSON(strings.NewReader(again.String())); err != nil || read.Fingerprint() != g.Fingerprint() {
			t.Fatalf("%v: %+v", err, g)
		}
	})
}

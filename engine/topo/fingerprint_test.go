package topo

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// fromSys reads a machine of a table of /sys.
func fromSys(t *testing.T, tr tree) *Graph {
	t.Helper()
	g, err := ReadMachine(tr.fs())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestFingerprintsAreReadableFileNames(t *testing.T) {
	for name, want := range map[string]string{
		"dgx-h100": `^2n-8gpu-8nic-[0-9a-f]{12}$`, "dgx-1v": `^2n-8gpu-4nic-[0-9a-f]{12}$`,
		"pcie-two-socket": `^2n-8gpu-2nic-[0-9a-f]{12}$`, "gb200-tray": `^2n-4gpu-4nic-[0-9a-f]{12}$`,
	} {
		if got := fixture(t, name).Fingerprint(); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: %s does not match %s", name, got, want)
		}
	}
	if got := fromSys(t, twoSocketTree()).Fingerprint(); !regexp.MustCompile(`^2p-2n-4c-8t-1gpu-2nic-[0-9a-f]{12}$`).MatchString(got) {
		t.Errorf("from /sys: %s", got)
	}
}

// Fingerprints are the names of saved tables: a change here makes these useless, and needs a new fingerprintVersion.
func TestFingerprintsOfKnownMachinesDoNotChange(t *testing.T) {
	for name, want := range map[string]string{"dgx-h100": "2n-8gpu-8nic-c4b22cb8f0a5", "gb200-tray": "2n-4gpu-4nic-9d0a3ed6ea12"} {
		if got := fixture(t, name).Fingerprint(); got != want {
			t.Errorf("%s: %s, not %s as before", name, got, want)
		}
	}
}

func TestDifferentMachinesHaveDifferentFingerprints(t *testing.T) {
	of := map[string]string{}
	note := func(name string, g *Graph) {
		f := g.Fingerprint()
		if other, taken := of[f]; taken {
			t.Errorf("%s and %s both have %s", name, other, f)
		}
		of[f] = name
	}
	for _, name := range fixtures {
		note(name, fixture(t, name))
	}
	note("two sockets", fromSys(t, twoSocketTree()))
	g, _ := twoSockets()
	note("two sockets of 32 cores", g)
}

// Every row is one change to the machine of twoSocketTree: files to write, or to remove where the content is "none".
var otherMachines = map[string]tree{
	"a core of one thread": {cpuDir + "/cpu0/topology/thread_siblings_list": "0", cpuDir + "/cpu4/topology/thread_siblings_list": "4"},
	"one package": {cpuDir + "/cpu2/topology/physical_package_id": "0", cpuDir + "/cpu3/topology/physical_package_id": "0",
		cpuDir + "/cpu6/topology/physical_package_id": "0", cpuDir + "/cpu7/topology/physical_package_id": "0"},
	"one NUMA node":         {nodeDir + "/node0/cpulist": "0-7", nodeDir + "/node1/cpulist": ""},
	"another model":         {"proc/cpuinfo": "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207"},
	"another vendor":        {"proc/cpuinfo": "vendor_id\t: AuthenticAMD\ncpu family\t: 6\nmodel\t\t: 143"},
	"a larger L2":           {cpuDir + "/cpu0/cache/index2/size": "4096K"},
	"an L3 for each core":   {cpuDir + "/cpu0/cache/index3/shared_cpu_list": "0,4", cpuDir + "/cpu1/cache/index3/shared_cpu_list": "1,5"},
	"no L3":                 {cpuDir + "/cpu0/cache/index3/level": "none", cpuDir + "/cpu1/cache/index3/level": "none"},
	"another GPU":           {"sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0/device": "0x2335"},
	"no GPU":                {pciDir + "/0000:83:00.0": "none"},
	"another NIC":           {"sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/device": "0x1593"},
	"no Ethernet":           {pciDir + "/0000:01:00.0": "none"},
	"Ethernet elsewhere":    {"sys/devices/pci0000:00/0000:00:01.0/numa_node": "1"},
	"a NIC of one port":     {"sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0/infiniband/mlx5_0/ports/2/rate": "none"},
	"a slot of fewer lanes": {"sys/devices/pci0000:00/0000:00:01.0/max_link_width": "4"},
	"a slower slot":         {"sys/devices/pci0000:00/0000:00:01.0/max_link_speed": "8.0 GT/s PCIe"},
}

// The same machine at another time, or another machine of its model.
var sameMachines = map[string]tree{
	"other GUID":                  {"sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0/infiniband/mlx5_0/node_guid": "1:2:3:4"},
	"a cable pulled":              {"sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0/speed": "-1"},
	"a slower switch":             {"sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)"},
	"a kernel that reserves more": {nodeDir + "/node0/meminfo": "Node 0 MemTotal:       1048000 kB"},
	"lanes that are idle":         {"sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/current_link_width": "8"},
	"another offline CPU":         {cpuDir + "/cpu9/online": "0"},
	"another name of a port":      {netDir + "/eth0": "none", netDir + "/enp1s0": "-> ../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0"},
}

func changed(change tree) tree {
	tr := twoSocketTree()
	for name, content := range change {
		if content == "none" {
			delete(tr, name)
		} else {
			tr[name] = content
		}
	}
	return tr
}

func TestEveryChangeOfTheMachineChangesItsFingerprint(t *testing.T) {
	of := map[string]string{fromSys(t, twoSocketTree()).Fingerprint(): "the machine as it was"}
	for name, change := range otherMachines {
		f := fromSys(t, changed(change)).Fingerprint()
		if other, taken := of[f]; taken {
			t.Errorf("%s has %s, as has %s", name, f, other)
		}
		of[f] = name
	}
}

func TestMachinesOfOneModelHaveOneFingerprint(t *testing.T) {
	want := fromSys(t, twoSocketTree()).Fingerprint()
	for name, change := range sameMachines {
		if got := fromSys(t, changed(change)).Fingerprint(); got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
}

// renumbered is the machine of twoSocketTree with its CPUs numbered socket by socket, threads side by side, and the sockets and
// buses the other way round.
func renumbered() tree {
	number := map[int]int{2: 0, 6: 1, 3: 2, 7: 3, 0: 4, 4: 5, 1: 6, 5: 7}
	lists := map[string]string{"0,4": "4-5", "1,5": "6-7", "2,6": "0-1", "3,7": "2-3", "0-1,4-5": "4-7", "2-3,6-7": "0-3"}
	tr := tree{}
	for name, content := range twoSocketTree() {
		if to, isList := lists[content]; isList {
			content = to
		}
		for cpu, to := range number {
			if rest, has := strings.CutPrefix(name, fmt.Sprintf("%s/cpu%d/", cpuDir, cpu)); has {
				name = fmt.Sprintf("%s/cpu%d/%s", cpuDir, to, rest)
				break
			}
		}
		name = strings.NewReplacer("node/node0", "node/node1", "node/node1", "node/node0", "0000:8", "0000:3").Replace(name)
		content = strings.NewReplacer("0000:8", "0000:3").Replace(content)
		if strings.HasSuffix(name, "physical_package_id") || strings.HasSuffix(name, "/numa_node") {
			content = map[string]string{"0": "1", "1": "0"}[content]
		}
		tr[name] = content
	}
	return tr
}

func TestFingerprintsDoNotDependOnNumbers(t *testing.T) {
	a, b := fromSys(t, twoSocketTree()), fromSys(t, renumbered())
	if slices.Equal(a.OfKind(NIC), b.OfKind(NIC)) || a.Node("numa0").CPUs == b.Node("numa0").CPUs {
		t.Fatal("nothing was renumbered")
	}
	if a.Fingerprint() != b.Fingerprint() {
		t.Errorf("%s, and renumbered %s", a.Fingerprint(), b.Fingerprint())
	}
}

// shuffled is the graph with other identifiers, nodes and links in another order, and links turned round.
func shuffled(t *rapid.T, g *Graph) *Graph {
	order := rapid.Permutation(slices.Collect(g.numbers())).Draw(t, "order")
	name := make(map[string]string, len(order))
	for i, n := range order {
		name[g.Nodes[n].ID] = fmt.Sprintf("part%d", i)
	}
	s := &Graph{}
	placed := map[string]bool{"": true}
	for len(s.Nodes) < len(g.Nodes) { // a parent before its children
		for _, i := range order {
			n := g.Nodes[i]
			if placed[n.ID] || !placed[n.Parent] {
				continue
			}
			placed[n.ID] = true
			n.ID, n.Parent = name[n.ID], name[n.Parent]
			if n.PCI != nil {
				info := *n.PCI
				info.BusID = fmt.Sprintf("0001:%02x:00.0", len(s.Nodes)%256)
				n.PCI = &info
			}
			s.add(n)
		}
	}
	for _, i := range rapid.Permutation(slices.Collect(numbersBelow(len(g.Links)))).Draw(t, "links") {
		l := g.Links[i]
		l.A, l.B = name[l.A], name[l.B]
		if rapid.Bool().Draw(t, "turned") {
			l.A, l.B = l.B, l.A
		}
		s.Links = append(s.Links, l)
	}
	return s
}

func (g *Graph) numbers() func(func(int) bool) { return numbersBelow(len(g.Nodes)) }

func numbersBelow(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// clone copies a graph deeply.
func clone(t fataler, g *Graph) *Graph {
	raw, err := json.Marshal(g)
	if err != nil {
		t.Fatalf("%v", err)
	}
	c := &Graph{}
	if err := json.Unmarshal(raw, c); err != nil {
		t.Fatalf("%v", err)
	}
	return c
}

// changes alter one hashed trait of a node or a link, if it has that.
var changes = map[string]func(g *Graph, node, link int) bool{
	"the kind": func(g *Graph, node, _ int) bool {
		n := &g.Nodes[node]
		n.CPU, n.Cache, n.GPU, n.Net = nil, nil, nil, nil
		was := n.Kind
		n.Kind = Package
		return was != Package
	},
	"a CPU more": func(g *Graph, node, _ int) bool {
		n := &g.Nodes[node]
		cpus, _ := parseCPUList(n.CPUs)
		for more := 0; ; more++ {
			if !slices.Contains(cpus, more) {
				n.CPUs = formatCPUList(slices.Sorted(slices.Values(append(cpus, more))))
				return true
			}
		}
	},
	"the size of a cache": func(g *Graph, node, _ int) bool {
		c := g.Nodes[node].Cache
		if c != nil {
			c.SizeBytes++
		}
		return c != nil
	},
	"the device": func(g *Graph, node, _ int) bool {
		p := g.Nodes[node].PCI
		if p != nil {
			p.Device += "f"
		}
		return p != nil
	},
	"the bandwidth of a link": func(g *Graph, _, link int) bool {
		g.Links[link].GBps *= 2
		return g.Links[link].Kind != LinkNET
	},
	"a link less": func(g *Graph, _, link int) bool {
		g.Links = slices.Delete(g.Links, link, link+1)
		return true
	},
	"a link more": func(g *Graph, node, link int) bool {
		l := g.Links[link]
		g.Links = append(g.Links, Link{A: l.A, B: l.B, Kind: LinkC2C, GBps: 3})
		return true
	},
}

func TestFingerprintsDependOnPartsButNotOnTheirOrder(t *testing.T) {
	machines := []*Graph{fromSys(t, twoSocketTree())}
	for _, name := range fixtures {
		machines = append(machines, fixture(t, name))
	}
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.SampledFrom(machines).Draw(t, "machine")
		want := g.Fingerprint()
		s := shuffled(t, g)
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		if got := s.Fingerprint(); got != want {
			t.Fatalf("shuffled: %s, not %s", got, want)
		}
		c := clone(t, s)
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(changes))).Draw(t, "change")
		counts := changes[name](c, rapid.IntRange(0, len(c.Nodes)-1).Draw(t, "node"), rapid.IntRange(0, len(c.Links)-1).Draw(t, "link"))
		if got := c.Fingerprint(); (got != want) != counts {
			t.Fatalf("%s (it counts: %v): %s, before it %s", name, counts, got, want)
		}
	})
}

// The numbers of GPUs, of their models and of links are the same.
func TestFingerprintsDependOnWhatPartsAreLinkedTo(t *testing.T) {
	linked := func(pairs [][2]int) *Graph {
		g := &Graph{}
		for i := range 6 {
			g.add(Node{ID: GPUID(i), Kind: GPU, GPU: &GPUInfo{Dev: i}, PCI: &PCIInfo{BusID: "0000:01:00.0", Device: fmt.Sprint(i % 3)}})
		}
		for _, p := range pairs {
			g.Links = append(g.Links, Link{A: GPUID(p[0]), B: GPUID(p[1]), Kind: LinkNVL, GBps: 25})
		}
		return g
	}
	chains := linked([][2]int{{0, 1}, {1, 2}, {3, 4}, {4, 5}})
	crossed := linked([][2]int{{0, 1}, {1, 5}, {3, 4}, {4, 2}})
	other := linked([][2]int{{0, 1}, {0, 4}, {3, 2}, {2, 5}})
	if chains.Fingerprint() != crossed.Fingerprint() {
		t.Error("the same two chains of equal parts have different fingerprints")
	}
	if chains.Fingerprint() == other.Fingerprint() {
		t.Error("different chains have the same fingerprint")
	}
}

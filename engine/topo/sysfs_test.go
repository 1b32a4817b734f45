package topo

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"
)

// tree is /sys and /proc as a table: a path and the content of the file, or "-> target" for a link.
type tree map[string]string

func (tr tree) fs() fs.FS {
	m := fstest.MapFS{}
	for name, content := range tr {
		if target, isLink := strings.CutPrefix(content, "-> "); isLink {
			m[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		} else {
			m[name] = &fstest.MapFile{Data: []byte(content + "\n")}
		}
	}
	return m
}

// pci adds a device, in the folder that its chain of bus ids leads to.
func (tr tree) pci(root string, chain []string, attributes map[string]string) string {
	id := chain[len(chain)-1]
	dir := "sys/devices/pci" + root + "/" + strings.Join(chain, "/")
	tr[pciDir+"/"+id] = "-> ../../../devices/pci" + root + "/" + strings.Join(chain, "/")
	for k, v := range attributes {
		tr[dir+"/"+k] = v
	}
	return dir
}

// twoSocketTree is a machine of two sockets with two cores of two threads each. Socket 0 has an Ethernet NIC; socket 1 has a
// switch with a NIC of two RDMA ports and a GPU behind it.
func twoSocketTree() tree {
	tr := tree{
		"proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\nprocessor\t: 1\nmodel\t\t: 1",
		// Entries of the folders that are neither CPUs nor devices.
		cpuDir + "/cpufreq/boost": "1", cpuDir + "/possible": "0-255", netDir + "/bonding_masters": "",
		netDir + "/lo": "-> ../../devices/virtual/net/lo", "sys/devices/virtual/net/lo/speed": "x",
		cpuDir + "/cpu8/online": "0", // an offline CPU has no topology
	}
	for cpu := range 8 {
		socket, core := cpu/2%2, cpu%4
		dir := fmt.Sprintf("%s/cpu%d/", cpuDir, cpu)
		threads := fmt.Sprintf("%d,%d", core, core+4)
		tr[dir+"topology/physical_package_id"] = fmt.Sprint(socket)
		tr[dir+"topology/thread_siblings_list"] = threads
		for i, c := range []struct{ level, kind, size, cpus string }{
			{"1", "Instruction", "32K", threads}, {"1", "Data", "48K", threads}, {"2", "Unified", "2048K", threads},
			{"3", "Unified", "107520K", []string{"0-1,4-5", "2-3,6-7"}[socket]},
		} {
			index := fmt.Sprintf("%scache/index%d/", dir, i)
			tr[index+"level"], tr[index+"type"], tr[index+"size"], tr[index+"shared_cpu_list"] = c.level, c.kind, c.size, c.cpus
		}
	}
	tr[nodeDir+"/node0/cpulist"], tr[nodeDir+"/node1/cpulist"] = "0-1,4-5", "2-3,6-7"
	tr[nodeDir+"/node0/meminfo"] = "Node 0 MemTotal:       1048576 kB\nNode 0 MemFree:  1 kB"
	tr[nodeDir+"/node2/cpulist"] = "" // memory alone

	bridge := map[string]string{"class": "0x060400", "vendor": "0x1000", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "numa_node": "1"}
	tr.pci("0000:00", []string{"0000:00:01.0"}, map[string]string{"class": "0x060400", "numa_node": "0", "max_link_speed": "16.0 GT/s PCIe", "max_link_width": "8"})
	eth := tr.pci("0000:00", []string{"0000:00:01.0", "0000:01:00.0"}, map[string]string{"class": "0x020000", "vendor": "0x8086",
		"device": "0x1592", "numa_node": "0", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "current_link_width": "4"})
	tr[eth+"/net/eth0/speed"] = "25000"
	tr[netDir+"/eth0"] = "-> ../../" + strings.TrimPrefix(eth, "sys/") + "/net/eth0"
	tr.pci("0000:00", []string{"0000:00:1f.0"}, map[string]string{"class": "0x060100", "numa_node": "0"}) // neither NIC nor GPU

	up := []string{"0000:80:01.0", "0000:81:00.0"}
	for i := 1; i <= 2; i++ {
		tr.pci("0000:80", up[:i], bridge)
	}
	for _, down := range []string{"0000:82:00.0", "0000:82:01.0"} {
		tr.pci("0000:80", append(slices.Clone(up), down), bridge)
	}
	tr.pci("0000:80", append(slices.Clone(up), "0000:82:00.0", "0000:83:00.0"), map[string]string{"class": "0x030200",
		"vendor": "0x10de", "device": "0x2330", "numa_node": "1", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"})
	ib := tr.pci("0000:80", append(slices.Clone(up), "0000:82:01.0", "0000:84:00.0"), map[string]string{"class": "0x020700",
		"vendor": "0x15b3", "device": "0x1021", "numa_node": "1", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"})
	tr[rdmaDir+"/mlx5_0"] = "-> ../../" + strings.TrimPrefix(ib, "sys/") + "/infiniband/mlx5_0"
	tr[ib+"/infiniband/mlx5_0/node_guid"] = "a088:c203:0012:3456"
	tr[ib+"/infiniband/mlx5_0/ports/1/rate"] = "400 Gb/sec (4X NDR)"
	tr[ib+"/infiniband/mlx5_0/ports/2/rate"] = "200 Gb/sec (4X HDR)"
	tr[netDir+"/ib0"] = "-> ../../" + strings.TrimPrefix(ib, "sys/") + "/net/ib0" // the same port, seen by the kernel's network
	tr[ib+"/net/ib0/speed"] = "400000"
	return tr
}

func TestAMachineOfTwoSocketsIsReadFromSys(t *testing.T) {
	g, err := ReadMachine(twoSocketTree().fs())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, n := range g.Nodes {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s in %s %s", n.ID, n.Parent, n.CPUs)))
	}
	want := `package0 in
numa0 in package0 0-1,4-5
numa0/L3/cpu0 in numa0 0-1,4-5
numa0/L2/cpu0 in numa0/L3/cpu0 0,4
numa0/L1/cpu0 in numa0/L2/cpu0 0,4
core0 in numa0/L1/cpu0 0,4
numa0/L2/cpu1 in numa0/L3/cpu0 1,5
numa0/L1/cpu1 in numa0/L2/cpu1 1,5
core1 in numa0/L1/cpu1 1,5
package1 in
numa1 in package1 2-3,6-7
numa1/L3/cpu2 in numa1 2-3,6-7
numa1/L2/cpu2 in numa1/L3/cpu2 2,6
numa1/L1/cpu2 in numa1/L2/cpu2 2,6
core2 in numa1/L1/cpu2 2,6
numa1/L2/cpu3 in numa1/L3/cpu2 3,7
numa1/L1/cpu3 in numa1/L2/cpu3 3,7
core3 in numa1/L1/cpu3 3,7
nic/0000:01:00.0 in numa0
net/eth0 in nic/0000:01:00.0
pci/0000:81:00.0 in numa1
gpu0 in pci/0000:81:00.0
nic/0000:84:00.0 in pci/0000:81:00.0
net/mlx5_0:1 in nic/0000:84:00.0
net/mlx5_0:2 in nic/0000:84:00.0`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("nodes\n%s\nwant\n%s", got, want)
	}
	numa := g.Node("numa0").CPU
	if *numa != (CPUInfo{Arch: "x86_64", Vendor: "GenuineIntel", Family: 6, Model: 143, MemoryBytes: 1 << 30}) {
		t.Errorf("numa0 is %+v", *numa)
	}
	if c := g.Node("numa0/L3/cpu0").Cache; *c != (CacheInfo{Level: 3, SizeBytes: 105 << 20}) {
		t.Errorf("the L3 cache is %+v", *c)
	}
	if c := g.Node("numa0/L1/cpu0").Cache; *c != (CacheInfo{Level: 1, SizeBytes: 48 << 10}) {
		t.Errorf("the L1 cache is %+v: not the one of data", *c)
	}
	if p := g.Node("net/mlx5_0:1").Net; *p != (NetInfo{Name: "mlx5_0", Dev: 1, Port: 1, SpeedMbps: 400000, GUID: "0xa088c20300123456"}) {
		t.Errorf("the first RDMA port is %+v", *p)
	}
	// The NIC's 16 lanes of 5.0 are in a slot of 8 lanes of 4.0, and it has 4 of them.
	if p := g.Node("nic/0000:01:00.0").PCI; p.Speed != "16.0 GT/s PCIe" || p.Width != 8 {
		t.Errorf("the link of the NIC is %+v", *p)
	}
	if len(g.Warnings) != 1 || !strings.Contains(g.Warnings[0], "0000:01:00.0 runs with 4 of 8 PCI lanes") {
		t.Errorf("warnings %q", g.Warnings)
	}
}

func TestPathsOfAMachineReadFromSys(t *testing.T) {
	g, err := ReadMachine(twoSocketTree().fs())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to string
		want     PathType
		gbps     float64
		hops     int
	}{
		{"core0", "core1", LOC, localGBps, 6}, // up to the shared cache and down again
		{"core0", "core2", SYS, 22, 9},
		{"gpu0", "net/mlx5_0:1", PIX, 50, 3},
		{"gpu0", "net/mlx5_0:2", PIX, 25, 3},
		{"gpu0", "net/eth0", SYS, 3.125, 5},
		{"numa0", "net/eth0", PHB, 3.125, 2},
	} {
		if p := pathBetween(t, g, c.from, c.to); p.Type != c.want || p.GBps != c.gbps || p.Hops != c.hops {
			t.Errorf("%s to %s: %+v, want %v, %v GB/s, %d hops", c.from, c.to, p, c.want, c.gbps, c.hops)
		}
	}
}

func TestOnlyMissingCPUsAreAnError(t *testing.T) {
	full := twoSocketTree()
	for name := range full {
		less := tree{}
		for k, v := range full {
			if k != name {
				less[k] = v
			}
		}
		g, err := ReadMachine(less.fs())
		if err != nil {
			t.Errorf("without /%s: %v", name, err)
			continue
		}
		for _, w := range g.Warnings {
			// Warnings that the missing file explains.
			if !strings.Contains(w, "PCI lanes") && !strings.Contains(w, "has no NUMA node") && !strings.Contains(w, "has cores of packages") {
				t.Errorf("without /%s: %s", name, w)
			}
		}
	}
	_, err := ReadMachine(tree{"sys/kernel": "x"}.fs())
	wantError(t, err, "/sys mounted")
}

func TestAnInvalidFileOfSysIsAWarningThatNamesIt(t *testing.T) {
	const gpu = "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0"
	for file, bad := range map[string]string{
		cpuDir + "/cpu0/topology/physical_package_id":   "\xff\xfe",
		cpuDir + "/cpu1/topology/thread_siblings_list":  "1-",
		cpuDir + "/cpu0/cache/index0/shared_cpu_list":   "0-99999",
		cpuDir + "/cpu0/cache/index2/level":             "second",
		cpuDir + "/cpu0/cache/index3/level":             "77",
		cpuDir + "/cpu0/cache/index3/size":              "big",
		nodeDir + "/node1/cpulist":                      "all",
		nodeDir + "/node0/meminfo":                      "Node 0 MemTotal: much",
		"proc/cpuinfo":                                  "vendor_id: x\nmodel: new",
		"sys/devices/pci0000:80/0000:80:01.0/numa_node": "99999999999999",
		gpu + "/max_link_width":                         "wide",
		rdmaDir + "/mlx5_0/ports/1/rate":                "fast",
		netDir + "/eth0/speed":                          "fast",
		pciDir + "/here":                                "-> ../../../devices/here",
	} {
		tr := twoSocketTree()
		for _, class := range []string{rdmaDir + "/mlx5_0", netDir + "/eth0"} {
			if rest, within := strings.CutPrefix(file, class+"/"); within {
				file = class[:strings.LastIndex(class, "/")] + "/" + strings.TrimPrefix(tr[class], "-> ") + "/" + rest
				break
			}
		}
		tr[path.Clean(file)] = bad
		g, err := ReadMachine(tr.fs())
		if err != nil {
			t.Errorf("%q in /%s: %v", bad, file, err)
			continue
		}
		if !slices.ContainsFunc(g.Warnings, func(w string) bool { return strings.Contains(w, path.Base(file)) }) {
			t.Errorf("%q in /%s: only the warnings %q", bad, file, g.Warnings)
		}
	}
}

func TestNamesWithControlCharactersAreLeftOut(t *testing.T) {
	tr := twoSocketTree()
	tr[netDir+"/e\x1b[2J"] = tr[netDir+"/eth0"]
	g, err := ReadMachine(tr.fs())
	if err != nil {
		t.Fatal(err)
	}
	if len(g.OfKind(Net)) != 3 || !slices.ContainsFunc(g.Warnings, func(w string) bool { return strings.Contains(w, `"e\x1b[2J"`) }) {
		t.Errorf("ports %q, warnings %q", g.OfKind(Net), g.Warnings)
	}
}

func TestWarningsAreBoundedAndSafeOnATerminal(t *testing.T) {
	g := &Graph{}
	for i := range 2 * maxWarnings {
		g.warn("%d \x1b[2J %s", i, strings.Repeat("long", maxTextBytes))
	}
	if err := g.Check(); err != nil {
		t.Error(err)
	}
	if len(g.Warnings) != maxWarnings || !strings.HasPrefix(g.Warnings[0], "0 ?[2J long") || len(g.Warnings[0]) > maxTextBytes {
		t.Errorf("%d warnings, the first %q", len(g.Warnings), g.Warnings[0])
	}
}

func TestAnyContentOfSysMakesAGraphOrAnError(t *testing.T) {
	names := slices.Sorted(maps.Keys(twoSocketTree()))
	rapid.Check(t, func(t *rapid.T) {
		tr := twoSocketTree()
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			bad := rapid.OneOf(rapid.SampledFrom([]string{"0", "-1", "1", "7", "0-7", "2147483647", "-> ../../..", "-> /", "9 GT/s"}),
				rapid.StringN(0, 20, 100)).Draw(t, "content")
			tr[rapid.SampledFrom(names).Draw(t, "file")] = bad
		}
		g, err := ReadMachine(tr.fs())
		if err != nil {
			t.Fatalf("%v", err) // there are CPUs, whatever they say
		}
		if err := g.WriteText(io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}

func TestThisMachineHasAGraph(t *testing.T) {
	g, err := ReadMachine(os.DirFS("/"))
	if err != nil {
		t.Fatal(err)
	}
	if len(g.OfKind(Core)) == 0 || len(g.OfKind(NUMA)) == 0 {
		t.Errorf("%+v has no core", g)
	}
}

package topo

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestXMLRoundTrips(t *testing.T) {
	for _, name := range fixtures {
		g := fixture(t, name)
		var out bytes.Buffer
		if err := g.WriteXML(&out); err != nil {
			t.Fatal(err)
		}
		again, err := ReadXML(bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, out.String())
		}
		if !reflect.DeepEqual(g, again) {
			t.Errorf("%s: read again from\n%s\nit is\n%+v\nnot\n%+v", name, out.String(), again, g)
		}
	}
}

// system puts elements into a document.
func system(inner string) string { return `<system version="1">` + inner + `</system>` }

const oneGPU = `<pci busid="0000:01:00.0" class="0x030200" link_speed="" link_width="0"><gpu dev="0" sm="90" rank="0">%</gpu></pci>`

func withGPU(inner string) string {
	return system(`<cpu numaid="0" affinity="3">` + strings.Replace(oneGPU, "%", inner, 1) + `</cpu>`)
}

func TestInvalidXMLIsRefusedWithLineAndValue(t *testing.T) {
	for _, c := range []struct {
		xml  string
		want []string
	}{
		{``, []string{"<system>"}},
		{`<graphs/>`, []string{"<system>"}},
		{system("") + system(""), []string{"one <system>"}},
		{`<system><cpu></system>`, []string{"XML"}},
		{system("\n<cpu numaid=\"x\"/>"), []string{"line 2", "numaid", `"x"`}},
		{system(`<cpu affinity="xyz"/>`), []string{"affinity", `"xyz"`}},
		{system(`<cpu numaid="0"/><cpu numaid="0"/>`), []string{`"numa0"`, "two nodes"}},
		{system(strings.Repeat(`<cpu/>`, maxNUMA+1)), []string{"257 <cpu>"}},
		{system(`<cpu><pci busid="here"/></cpu>`), []string{"busid", `"here"`}},
		{system(`<cpu><pci busid="0000:01:00.0" link_speed="fast"/></cpu>`), []string{"link_speed", `"fast"`}},
		{system(`<cpu><pci busid="0000:01:00.0" link_width="-1"/></cpu>`), []string{"link_width", "below 0"}},
		{system(`<cpu><pci busid="0000:01:00.0"><gpu/><nic/></pci></cpu>`), []string{"second <nic>"}},
		{withGPU(`<nvlink target="nowhere" count="1"/>`), []string{"target", `"nowhere"`}},
		{withGPU(`<nvlink target="0000:02:00.0" count="0" tclass="0x068000"/>`), []string{"count", `"0"`, "1 to 1024"}},
		{withGPU(`<c2c count="1"/>`), []string{"<c2c>", "bw"}},
		{withGPU(`<c2c count="1" bw="NaN"/>`), []string{"bw", `"NaN"`}},
		{system(`<cpu><nic><net name="a" speed="1e5"/></nic></cpu>`), []string{"speed", `"1e5"`}},
		{system(`<cpu><nic><net name="a"/><net name="a"/></nic></cpu>`), []string{`"net/a"`, "two nodes"}},
		{system(`<cpu><nic><net name="` + strings.Repeat("a", maxTextBytes+1) + `"/></nic></cpu>`), []string{"longer than 256"}},
		{strings.Repeat(`<system>`, maxDepth+1), []string{"64 levels of nesting"}},
		{system(strings.Repeat(`<x/>`, maxNodes)), []string{"16384 elements"}},
		{system(strings.Repeat(" ", maxInputBytes)), []string{"bytes"}},
	} {
		_, err := ReadXML(strings.NewReader(c.xml))
		if err == nil {
			t.Errorf("%.100s is accepted", c.xml)
			continue
		}
		wantError(t, err, c.want...)
	}
}

func TestUnknownPartsOfXMLAreLeftOutWithAWarning(t *testing.T) {
	g, err := ReadXML(strings.NewReader(system("<cpu>\n<gin/><nic><net name=\"eth0\" future=\"1\"/></nic></cpu>")))
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Warnings) != 1 || !strings.Contains(g.Warnings[0], "line 2: <gin>") {
		t.Errorf("warnings %q", g.Warnings)
	}
	// A container sees some of the GPUs, and their NVLinks to all.
	some, err := ReadXML(strings.NewReader(withGPU(`<nvlink target="0000:02:00.0" count="1" tclass="0x0302"/>`)))
	if err != nil {
		t.Fatal(err)
	}
	if len(some.Warnings) != 1 || !strings.Contains(some.Warnings[0], "its target 0000:02:00.0 is no GPU of this file") {
		t.Errorf("warnings %q", some.Warnings)
	}
	if g.Node("net/eth0") == nil {
		t.Errorf("%+v has no eth0", g)
	}
}

func TestXMLOfVirtualMachinesAndOfPower(t *testing.T) {
	// No speed and no width: as PCI 3.0 with 16 lanes. The second GPU lists the same NVLink. Power's CPU has NVLinks.
	g, err := ReadXML(strings.NewReader(system(`<cpu numaid="0x8"><pci busid="0000:01:00.0" class="0x030200" link_speed="" link_width="0">
		<gpu dev="0" sm="70"><nvlink target="0000:02:00.0" count="2" tclass="0x030200"/><nvlink target="0000:00:00.0" count="3" tclass="0x068001"/></gpu></pci>
		<pci busid="0000:02:00.0" class="0x030200" link_speed="Unknown" link_width="0">
		<gpu dev="1" sm="70"><nvlink target="0000:01:00.0" count="2" tclass="0x030200"/></gpu></pci></cpu>`)))
	if err != nil {
		t.Fatal(err)
	}
	want := []Link{
		{A: "numa8", B: "gpu0", Kind: LinkPCI, GBps: 16}, {A: "numa8", B: "gpu1", Kind: LinkPCI, GBps: 16},
		{A: "gpu0", B: "gpu1", Kind: LinkNVL, GBps: 50, Count: 2}, {A: "gpu0", B: "numa8", Kind: LinkNVL, GBps: 75, Count: 3},
	}
	if !reflect.DeepEqual(g.Links, want) {
		t.Errorf("links %+v, want %+v", g.Links, want)
	}
	if r := g.Node("gpu0").GPU.Rank; r != -1 {
		t.Errorf("a GPU without a rank has rank %d", r)
	}
}

func TestXMLOfANICThatIsOnNoBus(t *testing.T) {
	const nic = `<nic>
      <net name="rdma0" dev="3" speed="200000" port="1" latency="75.5" guid="0xa0" maxconn="64" gdr="1"/>
    </nic>`
	g, err := ReadXML(strings.NewReader(system(`<cpu numaid="0">` + nic + `</cpu>`)))
	if err != nil {
		t.Fatal(err)
	}
	want := NetInfo{Name: "rdma0", Dev: 3, Port: 1, SpeedMbps: 200000, GUID: "0xa0", LatencyUs: 75.5, MaxConn: 64, GDR: true}
	if got := g.Node("net/rdma0:1"); got == nil || *got.Net != want {
		t.Errorf("the port is %+v", got)
	}
	if p := pathBetween(t, g, "numa0", "net/rdma0:1"); p.Type != PHB || p.GBps != 25 {
		t.Errorf("the path to it is %+v", p)
	}
	var out bytes.Buffer
	if err := g.WriteXML(&out); err != nil || !strings.Contains(out.String(), nic) {
		t.Errorf("written (%v) as\n%s", err, out.String())
	}
}

func TestRanksAreGPUsInTheOrderOfTheirRanks(t *testing.T) {
	gpu := func(bus, dev, rank string) string {
		return `<pci busid="0000:0` + bus + `:00.0"><gpu dev="` + dev + `" rank="` + rank + `"/></pci>`
	}
	g, err := ReadXML(strings.NewReader(system(`<cpu>` + gpu("1", "0", "2") + gpu("2", "1", "0") + gpu("3", "2", "1") + `</cpu>`)))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(g.Ranks(), " "); got != "gpu1 gpu2 gpu0" {
		t.Errorf("ranks 0, 1, 2 are %s", got)
	}
}

func FuzzReadXML(f *testing.F) {
	for _, name := range fixtures {
		raw, err := os.ReadFile("testdata/" + name + ".xml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(withGPU(`<c2c bw="711" count="5"/>`)))
	// Links that the two ends list in different order, or that only one end lists.
	f.Add([]byte(withGPU(`<nvlink target="0000:03:00.0" count="2" tclass="0x068000"/><nvlink target="0000:02:00.0" count="1" tclass="0x068000"/>`)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := ReadXML(bytes.NewReader(raw))
		if err != nil {
			return
		}
		useAll(t, g)
		// Writing and reading again gives the same graph, except for numbers that are left out as unknown.
		var first, second bytes.Buffer
		if err := g.WriteXML(&first); err != nil {
			t.Fatal(err)
		}
		again, err := ReadXML(bytes.NewReader(first.Bytes()))
		if err != nil {
			t.Fatalf("%v in\n%s", err, first.String())
		}
		if err := again.WriteXML(&second); err != nil {
			t.Fatal(err)
		}
		if first.String() != second.String() {
			t.Fatalf("written\n%s\nand, once read,\n%s", first.String(), second.String())
		}
	})
}

// useAll calls every method of a graph. None may fail, whatever was read, unless there are too many devices.
func useAll(t *testing.T, g *Graph) {
	if len(g.Nodes) > 200 {
		return // large graphs would slow the fuzzer down
	}
	if err := g.WriteText(&bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if err := g.WriteSVG(&bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if err := g.WriteXML(&bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
}

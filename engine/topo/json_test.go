package topo

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestJSONRoundTrips(t *testing.T) {
	graphs := []*Graph{}
	for _, name := range fixtures {
		graphs = append(graphs, fixture(t, name))
	}
	cores, _ := twoSockets()
	cores.Warnings = []string{"a warning"}
	for _, g := range append(graphs, cores) {
		var out bytes.Buffer
		if err := g.WriteJSON(&out); err != nil {
			t.Fatal(err)
		}
		again, err := ReadJSON(&out)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(g, again) {
			t.Errorf("read again it is %+v, not %+v", again, g)
		}
	}
}

func TestInvalidJSONIsRefused(t *testing.T) {
	nodes := func(s string) string { return `{"version":1,"links":[],"nodes":[` + s + `]}` }
	numa := `{"id":"a","kind":"numa","cpu":{"number":0}}`
	link := func(s string) string {
		return `{"version":1,"nodes":[` + numa + `,{"id":"b","kind":"nic"}],"links":[` + s + `]}`
	}
	chain := func(n int) string { // of nodes within each other
		s := `{"id":"0","kind":"nic"}`
		for i := 1; i < n; i++ {
			s += fmt.Sprintf(`,{"id":"%d","kind":"nic","parent":"%d"}`, i, i-1)
		}
		return s
	}
	if _, err := ReadJSON(strings.NewReader(nodes(chain(maxDepth)))); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		json string
		want []string
	}{
		{``, []string{"JSON"}},
		{`{}`, []string{"version 0", "version 1"}},
		{`{"version":1}{}`, []string{"more text after the object"}},
		{`{"version":1,"gpus":[]}`, []string{"gpus"}},
		{nodes(`{"kind":"numa"}`), []string{"no identifier"}},
		{nodes(`{"id":"a","kind":"tpu"}`), []string{`"tpu"`, "nvswitch"}},
		{nodes(`{"id":"a","kind":"numa"}`), []string{"needs its cpu"}},
		{nodes(`{"id":"a","kind":"gpu","gpu":{"dev":0,"rank":0}}`), []string{"needs its gpu and pci"}},
		{nodes(`{"id":"a","kind":"pci","pci":{"bus_id":"01"}}`), []string{"bus id", `"01"`}},
		{nodes(numa + "," + numa), []string{"two nodes", `"a"`}},
		{nodes(`{"id":"b","kind":"nic","parent":"a"},` + numa), []string{`"a"`, "before it"}},
		{nodes(`{"id":"b","kind":"nic","parent":"b"}`), []string{"before it"}},
		{nodes(chain(maxDepth + 1)), []string{"more than 64"}},
		{`{"version":1,"nodes":[],"links":[],"warnings":["\u001b"]}`, []string{"warnings"}},
		{nodes(`{"id":"a","kind":"core","cpus":"3-1"}`), []string{`"3-1"`}},
		{nodes(`{"id":"a\u001b[2J","kind":"nic"}`), []string{"control"}},
		{link(`{"a":"a","b":"c","kind":"PCI","gb_per_s":1}`), []string{`"c"`}},
		{link(`{"a":"a","b":"a","kind":"PCI","gb_per_s":1}`), []string{"link 0"}},
		{link(`{"a":"a","b":"b","kind":"USB","gb_per_s":1}`), []string{`"USB"`, "PCI"}},
		{link(`{"a":"a","b":"b","kind":"PCI","gb_per_s":0}`), []string{"0 GB/s"}},
		{link(`{"a":"a","b":"b","kind":"PCI","gb_per_s":-2}`), []string{"-2 GB/s"}},
		{strings.Repeat(" ", maxInputBytes+1), []string{"bytes"}},
	} {
		_, err := ReadJSON(strings.NewReader(c.json))
		if err == nil {
			t.Errorf("%.100s is accepted", c.json)
			continue
		}
		wantError(t, err, c.want...)
	}
}

func FuzzReadJSON(f *testing.F) {
	for _, name := range fixtures {
		var out bytes.Buffer
		if err := fixture(f, name).WriteJSON(&out); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := ReadJSON(bytes.NewReader(raw))
		if err != nil {
			return
		}
		useAll(t, g)
		var out bytes.Buffer
		if err := g.WriteJSON(&out); err != nil {
			t.Fatal(err)
		}
		again, err := ReadJSON(bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		var second bytes.Buffer
		if err := again.WriteJSON(&second); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), second.Bytes()) {
			t.Fatalf("written\n%s\nand, once read,\n%s", out.Bytes(), second.Bytes())
		}
	})
}

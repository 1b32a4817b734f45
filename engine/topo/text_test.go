package topo

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the expected texts again")

func TestTextShowsPartsLinksPathsAndARing(t *testing.T) {
	sys, err := ReadMachine(twoSocketTree().fs())
	if err != nil {
		t.Fatal(err)
	}
	for name, g := range map[string]*Graph{"gb200-tray": fixture(t, "gb200-tray"), "two-socket": sys} {
		var out bytes.Buffer
		if err := g.WriteText(&out); err != nil {
			t.Fatal(err)
		}
		golden := "testdata/" + name + ".golden"
		if *update {
			if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, out.String(), want)
		}
	}
}

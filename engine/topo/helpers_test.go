package topo

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// fixtures are machines in NCCL's topology XML, made from public facts.
var fixtures = []string{"dgx-h100", "dgx-1v", "pcie-two-socket", "gb200-tray"}

func fixture(t testing.TB, name string) *Graph {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".xml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	g, err := ReadXML(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Warnings) > 0 {
		t.Fatalf("%s: %q", name, g.Warnings)
	}
	return g
}

// pathBetween is the path between two nodes, looked up in both directions.
func pathBetween(t *testing.T, g *Graph, from, to string) Path {
	t.Helper()
	p, err := g.Paths([]string{from, to})
	if err != nil {
		t.Fatal(err)
	}
	there, back := p.Rows[0][1], p.Rows[1][0]
	slices.Reverse(back.Via)
	if there.compare(&back) != 0 || !slices.Equal(there.Via, back.Via) {
		t.Errorf("%s to %s is %+v, but back it is %+v", from, to, there, back)
	}
	return there
}

// wantError fails unless err has all of the words.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; expected one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error %q does not say %q", err, w)
		}
	}
}

package registry

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"railhead/internal/await"
)

func TestAListOfNodesIsReadFromAFlagOrAFile(t *testing.T) {
	want := []Node{{Name: "a", Addresses: []string{"10.0.0.1:7118", "[fd00::1]:7118"}}, {Name: "b-2", Addresses: []string{"host-2.example.org:1"}}}
	for _, text := range []string{
		"a=10.0.0.1:7118,[fd00::1]:7118;b-2=host-2.example.org:1",
		" a = 10.0.0.1:7118 , [fd00::1]:7118 ;; b-2=host-2.example.org:1; ",
		"# the nodes\n\na=10.0.0.1:7118,[fd00::1]:7118 # the first\r\n  b-2=host-2.example.org:1\n",
	} {
		if got, err := ParseNodes(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestListsThatAreWrongAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a=1.2.3.4:1\nb":                       `line 2: "b" is not name=address,address`,
		"a=1.2.3.4:1;a=1.2.3.4:2":              "line 1: node a is listed twice",
		"A=1.2.3.4:1":                          `node "A": a name has 1 to 63`,
		"=1.2.3.4:1":                           `node "": a name has`,
		"a=":                                   `node a: address ""`,
		"a=1.2.3.4:1,":                         `node a: address ""`,
		"a=1.2.3.4":                            "missing port",
		"a=1.2.3.4:0":                          `port "0" is outside 1..65535`,
		"a=1.2.3.4:65536":                      `port "65536" is outside`,
		"a=1.2.3.4:080":                        `port "080" is outside`,
		"a=1.2.3.4:http":                       `port "http" is outside`,
		"a=fd00::1:1":                          "too many colons",
		"a=[fe80::1%eth0]:1":                   "a zone means nothing on another node",
		"a=0.0.0.0:1":                          "0.0.0.0 is any address of this node",
		"a=[::]:1":                             ":: is any address of this node",
		"a=:1":                                 "neither an IP address nor the name of a host",
		"a=1.2.3:1":                            "neither an IP address nor the name of a host",
		"a=ho_st:1":                            "neither an IP address nor the name of a host",
		"a=" + strings.Repeat("h", 254) + ":1": "neither an IP address nor the name of a host",
		"a=" + strings.Repeat("1.2.3.4:1,", 8) + "1.2.3.4:1": "node a: 9 addresses: there are 1 to 8",
	} {
		if got, err := ParseNodes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100q: %v, %v, want %q", text, got, err, want)
		}
	}
}

// What is read is within the bounds, and in the form of the list is read again as the same.
func FuzzNodes(f *testing.F) {
	f.Add("a=10.0.0.1:7118,[fd00::1]:7118;b-2=host-2.example.org:1")
	f.Add("# c\r\n\n a = [::ffff:1.2.3.4]:65535 ; b = h:1 # d")
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := ParseNodes(text)
		if err != nil {
			return
		}
		var list []string
		for _, n := range nodes {
			if err := CheckNode(n); err != nil {
				t.Fatal(err)
			}
			list = append(list, n.Name+"="+strings.Join(n.Addresses, ","))
		}
		if again, err := ParseNodes(strings.Join(list, ";")); err != nil || !reflect.DeepEqual(again, nodes) {
			t.Fatalf("%q: %v, again %v, %v", text, nodes, again, err)
		}
	})
}

func two(t *testing.T) Registry {
	t.Helper()
	nodes, err := ParseNodes("b=10.0.0.2:1;a=10.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewStatic("a", nodes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAStaticRegistryShowsItsListAndItsOwnAgents(t *testing.T) {
	r := two(t)
	defer r.Close()
	told := make(chan error, 1)
	tell := func(err error) { told <- err }
	if err := r.AnnounceNode(7, []string{"10.0.0.9:9"}, tell); err != nil || await.Next(t, "the answer", told) != nil {
		t.Error(err)
	}
	if err := r.AnnounceAgent("x", 8, tell); err != nil || await.Next(t, "the answer", told) != nil {
		t.Error(err)
	}
	want := []Node{{"a", 7, []string{"10.0.0.9:9"}}, {"b", 0, []string{"10.0.0.2:1"}}}
	if got := r.Nodes(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	if n, err := r.Node("b"); err != nil || !reflect.DeepEqual(n, want[1]) {
		t.Errorf("%v, %v", n, err)
	}
	if _, err := r.Node("c"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if a, err := r.Agent("x"); err != nil || a != (Agent{"x", "a", 8}) || !reflect.DeepEqual(r.Agents(), []Agent{a}) {
		t.Errorf("%v, %v, %v", a, err, r.Agents())
	}
	if _, err := r.Agent("y"); !errors.Is(err, ErrAskNode) {
		t.Error(err)
	}
	if err := r.AnnounceAgent("x", 9, nil); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "incarnation 8") {
		t.Error(err)
	}
	r.WithdrawAgent("x", 9)
	if _, err := r.Agent("x"); err != nil {
		t.Error("another incarnation was withdrawn")
	}
	r.WithdrawAgent("x", 8)
	if err := r.AnnounceAgent("x", 9, nil); err != nil {
		t.Error(err)
	}
	if r.Health() != nil {
		t.Error(r.Health())
	}
}

func TestAStaticRegistrySaysWhenItChanges(t *testing.T) {
	r := two(t)
	changes := func(what string, want bool, do func()) {
		c := r.Changed()
		do()
		select {
		case <-c:
			if !want {
				t.Errorf("%s: it has changed", what)
			}
		default:
			if want {
				t.Errorf("%s: no change", what)
			}
		}
	}
	changes("a node", true, func() { _ = r.AnnounceNode(7, []string{"10.0.0.9:9"}, nil) })
	changes("an agent", true, func() { _ = r.AnnounceAgent("x", 8, nil) })
	changes("the same agent", false, func() { _ = r.AnnounceAgent("x", 8, nil) })
	changes("the withdrawal of another one", false, func() { r.WithdrawAgent("x", 9) })
	changes("a withdrawal", true, func() { r.WithdrawAgent("x", 8) })
}

func TestWhatAStaticRegistryCannotShowIsRefused(t *testing.T) {
	if _, err := NewStatic("c", []Node{{"a", 0, []string{"10.0.0.1:1"}}, {"b", 0, []string{"10.0.0.2:1"}}}); err == nil ||
		!strings.Contains(err.Error(), `node "c" is not in the list of nodes: a, b`) {
		t.Error(err)
	}
	if _, err := NewStatic("a", []Node{{"a", 0, nil}}); err == nil {
		t.Error("a node without an address")
	}
	r := two(t)
	for _, name := range []string{"", "x y", "x/y", "ä", strings.Repeat("x", 129)} {
		if err := r.AnnounceAgent(name, 1, nil); err == nil || !strings.Contains(err.Error(), "1 to 128 letters") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := r.AnnounceNode(1, []string{"0.0.0.0:1"}, nil); err == nil {
		t.Error("an address that other nodes cannot reach")
	}
}

// Callers may change what they are given.
func TestAddressesAreCopied(t *testing.T) {
	r := two(t)
	own := []string{"10.0.0.9:9"}
	if err := r.AnnounceNode(7, own, nil); err != nil {
		t.Fatal(err)
	}
	own[0] = "x"
	n, _ := r.Node("a")
	n.Addresses[0] = "x"
	r.Nodes()[0].Addresses[0] = "x"
	if n, err := r.Node("a"); err != nil || n.Addresses[0] != "10.0.0.9:9" {
		t.Errorf("%v, %v", n, err)
	}
}

func TestAnErrorAboutAnOldViewSaysSinceWhenAndWhy(t *testing.T) {
	cause := errors.New("connection refused")
	err := error(&Stale{time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC), cause})
	if !errors.Is(err, cause) || err.Error() != "the registry may have changed since 2026-12-03T12:00:00Z: connection refused" {
		t.Error(err)
	}
}

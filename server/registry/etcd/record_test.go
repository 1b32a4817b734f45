package etcd

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"railhead/server/registry"
)

// The values are what other versions read.
func TestRecordsAreWrittenAsOtherVersionsReadThem(t *testing.T) {
	for want, r := range map[string]record{
		`{"v":1,"incarnation":"00000000000000ff","addresses":["10.0.0.1:7118","[fd00::1]:7118"]}`: {
			key: "nodes/a", node: "a", incarnation: 255, addresses: []string{"10.0.0.1:7118", "[fd00::1]:7118"},
		},
		`{"v":1,"node":"a","incarnation":"ffffffffffffffff"}`: {key: "agents/x:0", node: "a", incarnation: math.MaxUint64},
	} {
		if got := encode(&r); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got, err := decode(r.key, []byte(want)); err != nil || fmt.Sprint(got) != fmt.Sprint(r) {
			t.Errorf("%+v, want %+v: %v", got, r, err)
		}
	}
	later := `{"v":1,"node":"a","incarnation":"0000000000000001","added later":[1]}`
	if got, err := decode("agents/x", []byte(later)); err != nil || got.node != "a" || got.name() != "x" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestTheLargestRecordCanBeRead(t *testing.T) {
	r := record{key: "nodes/" + strings.Repeat("a", 63), node: strings.Repeat("a", 63), incarnation: math.MaxUint64}
	for range registry.MaxAddresses {
		r.addresses = append(r.addresses, strings.Repeat("a", 253)+":65535")
	}
	if _, err := decode(r.key, []byte(encode(&r))); err != nil {
		t.Error(err)
	}
}

func TestRecordsThatAreWrongAreRefused(t *testing.T) {
	const incarnation = `"incarnation":"0000000000000001"`
	for _, c := range []struct{ key, value, want string }{
		{"nodes/a", ``, "unexpected end"},
		{"nodes/a", `{"v":1}x`, "invalid character"},
		{"nodes/a", `{"v":2,"addresses":["10.0.0.1:1"],` + incarnation + `}`, "version 2: this program reads version 1"},
		{"nodes/a", `{"addresses":["10.0.0.1:1"],` + incarnation + `}`, "version 0"},
		{"nodes/a", `{"v":1,"addresses":["10.0.0.1:1"]}`, "incarnation"},
		{"nodes/a", `{"v":1,"addresses":["10.0.0.1:1"],"incarnation":"1"}`, "16 hexadecimal digits"},
		{"nodes/a", `{"v":1,"addresses":["10.0.0.1:1"],"incarnation":"000000000000000g"}`, "16 hexadecimal digits"},
		{"nodes/a", `{"v":1,"addresses":["10.0.0.1:1"],"incarnation":1}`, "cannot unmarshal number"},
		{"nodes/a", `{"v":1,` + incarnation + `}`, "0 addresses"},
		{"nodes/A", `{"v":1,"addresses":["10.0.0.1:1"],` + incarnation + `}`, `node "A"`},
		{"nodes/a/b", `{"v":1,"addresses":["10.0.0.1:1"],` + incarnation + `}`, `node "a/b"`},
		{"agents/x", `{"v":1,` + incarnation + `}`, `node ""`},
		{"agents/x y", `{"v":1,"node":"a",` + incarnation + `}`, `agent "x y"`},
		{"agents/", `{"v":1,"node":"a",` + incarnation + `}`, `agent ""`},
		{"other/x", `{"v":1,"node":"a",` + incarnation + `}`, "neither a node's nor an agent's"},
		{"agents/x", `{"v":1,"node":"a",` + incarnation + strings.Repeat(" ", maxValue) + `}`, "at most 4096"},
	} {
		if _, err := decode(c.key, []byte(c.value)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.100s: %v, want %q", c.key, c.value, err, c.want)
		}
	}
}

// What can be read is within the bounds, and is written and read again as the same.
func FuzzRecords(f *testing.F) {
	f.Add("nodes/a", `{"v":1,"incarnation":"00000000000000ff","addresses":["10.0.0.1:7118","[fd00::1]:7118","host-1.example:1"]}`)
	f.Add("agents/x", `{"v":1,"node":"a","incarnation":"ffffffffffffffff"}`)
	f.Add("agents/x", `{"v":1,"node":"a","incarnation":"FFFFFFFFFFFFFFFF","addresses":[""]}`)
	f.Fuzz(func(t *testing.T, key, value string) {
		r, err := decode(key, []byte(value))
		if err != nil {
			return
		}
		if r.isNode() && registry.CheckNode(r.asNode()) != nil || !r.isNode() && registry.CheckAgent(r.name()) != nil || r.key != key {
			t.Fatalf("%+v was read from %s %q", r, key, value)
		}
		again, err := decode(key, []byte(encode(&r)))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(r) {
			t.Fatalf("%+v was read again as %+v, %v", r, again, err)
		}
	})
}

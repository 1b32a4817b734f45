package tuner

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const twoNodes = `{
  "version": 1,
  "nodes": 2,
  "ranks_per_node": 8,
  "link": {"kind": "nvlink-h100", "latency_us": 1},
  "nics": {"per_node": 8, "kind": "ndr", "latency_us": 2, "pcie": "pcie4"},
  "nccl": {"gpu": "hopper", "channels": 16, "bus_GBs": 360}
}`

func TestAMachineFileIsReadAndItsKindsFilledIn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(path, []byte(twoNodes), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := LoadMachine(path)
	if err != nil {
		t.Fatal(err)
	}
	if m.Link.BandwidthGBs != 450 || m.NICs.BandwidthGBs != 50 || m.NICs.effectiveGBs() != 32 || m.NCCL.Intra != "nvlink" {
		t.Errorf("link %+v, NICs %+v, NCCL %+v", m.Link, m.NICs, m.NCCL)
	}
	// The slot is the limit: 15/8 of the bytes by 8 × 32 GB/s.
	p := predict(t, m, Request{Op: "allreduce", CostModel: AlphaBeta, Algorithm: "ring", Bytes: 1_000_000})
	equal(t, "ring", map[string][2]float64{"bandwidth": {p.BandwidthUs, 1.875 * 1e6 / 256e3}})
}

func TestANumberOverridesThatOfItsKind(t *testing.T) {
	edited := strings.NewReplacer(`"kind": "nvlink-h100"`, `"kind": "nvlink-h100", "bandwidth_GBs": 400`,
		`"pcie": "pcie4"`, `"pcie": "pcie4", "pcie_GBs": 60`).Replace(twoNodes)
	m, err := ParseMachine([]byte(edited))
	if err != nil {
		t.Fatal(err)
	}
	if m.Link.BandwidthGBs != 400 || m.NICs.effectiveGBs() != 50 {
		t.Errorf("link %+v, NICs %+v", m.Link, m.NICs)
	}
}

func TestWrongMachinesAreRefusedByLineOrField(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{`"nodes": 2,`, `"nodes": 2`, "line 4: not JSON"},
		{`"nodes": 2,`, `"nodes": "two",`, "line 3: field nodes"},
		{`"nodes": 2,`, `"nodes": 2, "gpus": 8,`, `line 3: field "gpus" is not known`},
		{`"nodes": 2,`, `"nodes": 0,`, "nodes is 0"},
		{`"version": 1`, `"version": 2`, "version is 2; this program reads version 1"},
		{`"ranks_per_node": 8`, `"ranks_per_node": -1`, "ranks_per_node is -1"},
		{`nvlink-h100`, `nvlink-h101`, "link.kind: \"nvlink-h101\" is not known; there are nvlink-a100, nvlink-blackwell, nvlink-h100, pcie3, pcie4, pcie5, or give link.bandwidth_GBs"},
		{`"kind": "nvlink-h100", `, ``, "link.bandwidth_GBs is 0"},
		{`"kind": "nvlink-h100", `, `"bandwidth_GBs": -4, `, "link.bandwidth_GBs is -4"},
		{`"latency_us": 1`, `"latency_us": -1`, "link.latency_us is -1"},
		{`"latency_us": 2`, `"latency_us": 1e10`, "nics.latency_us is 1e+10"},
		{`ndr`, `xdr`, "nics.kind: \"xdr\" is not known; there are hdr, ndr"},
		{`"pcie4"`, `"pcie9"`, "nics.pcie: \"pcie9\" is not known"},
		{`"pcie": "pcie4"`, `"pcie_GBs": -1`, "nics.pcie_GBs is -1"},
		{`"per_node": 8`, `"per_node": 0`, "nics.per_node is 0"},
		{`"nics": {"per_node": 8, "kind": "ndr", "latency_us": 2, "pcie": "pcie4"},`, ``, "nics: missing; a machine of 2 nodes needs them"},
		{`hopper`, `maxwell`, "there are ampere, blackwell, hopper, volta"},
		{`"gpu": "hopper"`, `"gpu": "hopper", "intra": "net"`, "there are nvlink, pci"},
		{`"channels": 16`, `"channels": 65`, "nccl.channels is 65"},
		{`"bus_GBs": 360`, `"bus_GBs": 0`, "nccl.bus_GBs is 0"},
	} {
		if !strings.Contains(twoNodes, c.from) {
			t.Fatalf("no %q in the file", c.from)
		}
		_, err := ParseMachine([]byte(strings.Replace(twoNodes, c.from, c.to, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.to, err)
		}
	}
	for text, want := range map[string]string{
		"": "line 1: the file ends early", "{\n": "line 2: the file ends early", twoNodes + "\n{}": "more than one JSON value", "[]": "line 1: the file: a JSON array",
	} {
		if _, err := ParseMachine([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestMachineFilesThatCannotBeReadAreNamed(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.json")
	if err := os.WriteFile(big, bytes.Repeat([]byte(" "), maxMachineBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.json"): "none.json: no such file", dir: "is not a regular file", big: "big.json has 65537 bytes; at most 65536",
	} {
		if _, err := LoadMachine(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Every prediction for every machine that is accepted can be printed as JSON: no infinity, no NaN.
func FuzzMachine(f *testing.F) {
	f.Add([]byte(twoNodes))
	f.Add([]byte(`{"version":1,"nodes":1,"ranks_per_node":2,"link":{"latency_us":0,"bandwidth_GBs":1e-6}}`))
	f.Add([]byte(`{"version":1,"nodes":1,"ranks_per_node":65536,"link":{"latency_us":1e9,"bandwidth_GBs":1e9}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseMachine(raw)
		if err != nil {
			return
		}
		for _, op := range Ops() {
			for _, model := range []string{AlphaBeta, NCCLModel} {
				p, err := m.Predict(Request{Op: op, CostModel: model, Bytes: 1 << 20, Tokens: 8, Routing: Routing{TopK: 2}})
				if err != nil {
					continue
				}
				if _, err := json.Marshal(p); err != nil {
					t.Fatalf("%+v: %v", p, err)
				}
				if p.TimeUs <= 0 {
					t.Fatalf("%+v takes no time", p)
				}
			}
		}
	})
}

package topo

import (
	"encoding/json"
	"testing"
)

func TestBandwidthsAreThoseOfTheStandards(t *testing.T) {
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"PCI 3.0 x16", pciBandwidth(&PCIInfo{Speed: "8.0 GT/s PCIe", Width: 16}), 16},
		{"PCI 4.0 x16", pciBandwidth(&PCIInfo{Speed: "16.0 GT/s PCIe", Width: 16}), 32},
		{"PCI 5.0 x16", pciBandwidth(&PCIInfo{Speed: "32 GT/s", Width: 16}), 64},
		{"PCI 5.0 x4", pciBandwidth(&PCIInfo{Speed: "32.0 GT/s PCIe", Width: 4}), 16},
		{"PCI of unknown speed", pciBandwidth(&PCIInfo{Speed: "Unknown"}), 16},
		{"12 NVLinks of an A100", 12 * nvlinkBandwidth(80), 300},
		{"18 NVLinks of an H100", 18 * nvlinkBandwidth(90), 450},
		{"18 NVLinks of a B200", 18 * nvlinkBandwidth(100), 900},
		{"4 NVLinks of an A40", 4 * nvlinkBandwidth(86), 56.25},
		{"4 NVLinks of a P100", 4 * nvlinkBandwidth(60), 80},
		{"HDR", netBandwidth(200000), 25},
		{"NDR", netBandwidth(400000), 50},
		{"a port of unknown speed", netBandwidth(0), 1.25},
		{"Sapphire Rapids", socketBandwidth(&CPUInfo{Arch: "x86_64", Vendor: "GenuineIntel", Family: 6, Model: 143}), 22},
		{"Zen 4", socketBandwidth(&CPUInfo{Arch: "x86_64", Vendor: "AuthenticAMD", Family: 25, Model: 17}), 24},
		{"an unknown CPU", socketBandwidth(&CPUInfo{}), 6},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v GB/s, want %v", c.what, c.got, c.want)
		}
	}
	for _, speed := range []string{"", "fast", "-8 GT/s", "8 GB/s", "NaN GT/s", "1e9 GT/s"} {
		if v := pciGTps(speed); v != 0 {
			t.Errorf("%q is read as %v GT/s", speed, v)
		}
	}
}

func TestPathTypesHaveNCCLsNamesAndOrder(t *testing.T) {
	last := PathType(-1)
	for _, name := range []string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"} {
		v, err := ParsePathType(name)
		if err != nil || v.String() != name || v <= last {
			t.Errorf("%s is %d %q (%v), after %d", name, v, v, err, last)
		}
		last = v
	}
	_, err := ParsePathType("PIXB")
	wantError(t, err, `"PIXB"`, "PIX PXB")
	raw, err := json.Marshal(Path{Type: PXN, GBps: 50, Hops: 4})
	if err != nil || string(raw) != `{"type":"PXN","gb_per_s":50,"hops":4}` {
		t.Errorf("a path in JSON is %s (%v)", raw, err)
	}
	var p Path
	if err := json.Unmarshal(raw, &p); err != nil || p.Type != PXN {
		t.Errorf("read again it is %+v (%v)", p, err)
	}
}

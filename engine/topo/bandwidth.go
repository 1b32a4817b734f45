package topo

import (
	"strconv"
	"strings"
)

// Bandwidths in GB/s, one way. They are nominal: what a link carries is somewhat less.
const (
	// localGBps stands for "never the narrowest hop". NCCL has the same number.
	localGBps = 5000

	// A link of NVLink: an A100 has 12 for 300 GB/s, an H100 18 for 450, a Blackwell GPU 18 for 900; V100 as A100.
	nvlinkPascalGBps    = 20
	nvlinkGBps          = 25
	nvlinkGA102GBps     = 14.0625 // A40 and the like: 4 for 56.25
	nvlinkBlackwellGBps = 50

	// Where the kernel knows neither speed nor width (virtual machines), as NCCL assumes: generation 3, 16 lanes.
	unknownPCIGTps  = 8
	unknownPCIWidth = 16

	// Where a NIC does not know its speed (virtual ones), as NCCL assumes.
	unknownNetMbps = 10000
)

// nvlinkBandwidth is that of one NVLink of a GPU with this compute capability; 0 is unknown.
func nvlinkBandwidth(sm int) float64 {
	switch {
	case sm >= 100:
		return nvlinkBlackwellGBps
	case sm == 86:
		return nvlinkGA102GBps
	case sm >= 60 && sm < 70:
		return nvlinkPascalGBps
	}
	return nvlinkGBps
}

// pciGTps reads "32.0 GT/s PCIe" (older kernels: "32 GT/s"); 0 for anything else.
func pciGTps(speed string) float64 {
	number, rest, _ := strings.Cut(strings.TrimSpace(speed), " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !strings.HasPrefix(rest, "GT/s") || !(v > 0 && v <= 1024) {
		return 0
	}
	return v
}

// pciBandwidth is lanes times transfers, without the encoding: 16, 32, 64 GB/s for 16 lanes of generation 3, 4, 5.
func pciBandwidth(p *PCIInfo) float64 {
	speed, width := pciGTps(p.Speed), p.Width
	if speed == 0 {
		speed = unknownPCIGTps
	}
	if width <= 0 {
		width = unknownPCIWidth
	}
	return speed * float64(width) / 8
}

func netBandwidth(mbps int) float64 {
	if mbps <= 0 {
		mbps = unknownNetMbps
	}
	return float64(mbps) / 8000
}

// socketBandwidth is what traffic between devices gets from one NUMA node to another: the values that NCCL assumes, which are
// far below those of the links since devices' reads and writes are small there.
func socketBandwidth(c *CPUInfo) float64 {
	switch {
	case c.Arch == "ppc64" || c.Arch == "ppc64le":
		return 32
	case c.Arch == "arm64" || c.Arch == "aarch64":
		return 6
	case c.Vendor == "AuthenticAMD" && c.Family >= 26: // Zen 5
		return 32
	case c.Vendor == "AuthenticAMD" && c.Family == 25: // Zen 3, 4
		return 24
	case c.Vendor == "AuthenticAMD":
		return 16
	case c.Vendor == "GenuineIntel" && c.Model >= 207: // Emerald Rapids
		return 40
	case c.Vendor == "GenuineIntel" && c.Model >= 143: // Sapphire Rapids
		return 22
	case c.Vendor == "GenuineIntel" && c.Model >= 85: // Skylake
		return 10
	}
	return 6
}

package topo

import (
	"strconv"
	"strings"
)

// Nominal bandwidths in GB/s, one way. Real transfers reach somewhat less.
const (
	// localGBps is more than any link has, so that a local hop never limits a path. NCCL uses the same number.
	localGBps = 5000

	// One NVLink. An A100 has 12 (300 GB/s), an H100 18 (450), a Blackwell GPU 18 (900); a V100's are like an A100's.
	nvlinkPascalGBps    = 20
	nvlinkGBps          = 25
	nvlinkGA102GBps     = 14.0625 // A40 and the like: 4 for 56.25
	nvlinkBlackwellGBps = 50

	// Assumed where the kernel reports no speed or width (virtual machines), as in NCCL: generation 3, 16 lanes.
	unknownPCIGTps  = 8
	unknownPCIWidth = 16

	// Assumed where a NIC reports no speed (virtual ones), as in NCCL.
	unknownNetMbps = 10000
)

// nvlinkBandwidth is the bandwidth of one NVLink, by the compute capability of its GPU; sm 0: unknown.
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

// pciGTps parses "32.0 GT/s PCIe" (older kernels: "32 GT/s"). It returns 0 for anything else.
func pciGTps(speed string) float64 {
	number, rest, _ := strings.Cut(strings.TrimSpace(speed), " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !strings.HasPrefix(rest, "GT/s") || !(v > 0 && v <= 1024) {
		return 0
	}
	return v
}

// pciBandwidth is lanes × transfer rate, encoding not subtracted: 16, 32, 64 GB/s for 16 lanes of generation 3, 4, 5.
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

// socketBandwidth is the bandwidth of traffic between devices on two NUMA nodes, as NCCL assumes it. It is far below that of the
// links, since the reads and writes of devices are small.
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

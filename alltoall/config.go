package alltoall

import (
	"errors"
	"fmt"
	"math"

	"railhead/internal/oracle"
)

// Bounds of a Config, as in railhead.h.
const (
	MaxWorld   = 64
	MaxExperts = 2048 // physical ones
	MaxTopK    = 64
	MaxHidden  = 65536
	MaxTokens  = 1 << 20 // a rank
)

// ScaleBlock is the number of elements that share a scale. The last block of a row may be shorter.
const ScaleBlock = 128

// Mode is the mode of a buffer: LL (low latency, decode) has room for the worst case, HT (high throughput, prefill) for a few
// chunks.
type Mode int

// The modes, with the numbers of railhead.h.
const (
	LL Mode = 1
	HT Mode = 2
)

// Format is an element type, named as in railhead.h, in lower case.
type Format string

// The formats of tokens. Sums may have all but FP8E4M3.
const (
	F32     Format = "f32"
	BF16    Format = "bf16"
	F16     Format = "f16"
	FP8E4M3 Format = "fp8_e4m3"
)

// Size is an element's size in bytes.
func (f Format) Size() int { return oracle.Dtype(f).Size() }

func (f Format) isSum() bool { return f == F32 || f == BF16 || f == F16 }

// ScaleFormat is the format of the scales, with WireDtype FP8E4M3.
type ScaleFormat int

// The scale formats: a float; a power of two in one byte (exponent + 127); StaticScale for all blocks, which is not sent.
const (
	ScaleF32 ScaleFormat = iota
	ScaleUE8M0
	ScaleStatic
)

// OnInvalid is the policy for invalid input.
type OnInvalid int

// InvalidError: the call fails. InvalidDrop: the entry, token or row is left out.
const (
	InvalidError OnInvalid = iota
	InvalidDrop
)

// OnDead is the policy for the death of a rank.
type OnDead int

// DeadFail: the group breaks. DeadDrop: the others go on without the rank.
const (
	DeadFail OnDead = iota
	DeadDrop
)

// LostWeights is the policy for a token that lost some of its weights.
type LostWeights int

// LostKeep: the other weights stay as they are. LostRenormalize: the token's sum is multiplied by (sum of all its weights) /
// (sum of those not lost).
const (
	LostKeep LostWeights = iota
	LostRenormalize
)

// Device is the kind of the ranks' devices.
type Device int

// Devices: an HT buffer has larger slots on GPUs.
const (
	CPU Device = iota
	CUDA
)

// Config is rh_ep_config: the same on every rank.
type Config struct {
	Mode             Mode
	MaxTokensPerRank int     // T
	Hidden           int     // H, elements of a token
	NumExperts       int     // E, logical
	TopK             int     // K, experts of a token
	NumPhysical      int     // 0: NumExperts
	PhysicalExpert   []int32 // [NumPhysical] the logical expert of each; nil: p of physical expert p
	PhysicalRank     []int32 // [NumPhysical] the rank of each; nil: in blocks
	Dtype            Format  // of x
	WireDtype        Format  // of dispatched tokens
	CombineDtype     Format  // of partial sums
	ScaleFormat      ScaleFormat
	StaticScale      float32
	OnInvalid        OnInvalid
	OnDead           OnDead
	LostWeights      LostWeights
	DeviceKind       Device
}

// physical is the number of physical experts.
func (c *Config) physical() int {
	if c.NumPhysical == 0 {
		return c.NumExperts
	}
	return c.NumPhysical
}

// Check returns an error with a line for each problem, or nil. The library reports the first of them.
func (c *Config) Check(world int) error {
	var p problems
	p.within("world size", world, 1, MaxWorld)
	p.within("mode", int(c.Mode), int(LL), int(HT))
	p.within("max_tokens_per_rank", c.MaxTokensPerRank, 1, MaxTokens)
	p.within("hidden", c.Hidden, 1, MaxHidden)
	p.within("num_experts", c.NumExperts, 1, MaxExperts)
	p.within("topk", c.TopK, 1, MaxTopK)
	c.checkFormats(&p)
	p.within("on_invalid", int(c.OnInvalid), int(InvalidError), int(InvalidDrop))
	p.within("on_dead", int(c.OnDead), int(DeadFail), int(DeadDrop))
	p.within("lost_weights", int(c.LostWeights), int(LostKeep), int(LostRenormalize))
	p.within("device_kind", int(c.DeviceKind), int(CPU), int(CUDA))
	if c.NumPhysical != 0 {
		p.within("num_physical", c.NumPhysical, c.NumExperts, MaxExperts)
	}
	if len(p) == 0 { // the checks of the tables index by these numbers
		c.checkTables(&p, world)
	}
	return errors.Join(p...)
}

func (c *Config) checkFormats(p *problems) {
	p.require(c.Dtype.isSum() || c.Dtype == FP8E4M3, "dtype %q; want f32, bf16, f16 or fp8_e4m3", string(c.Dtype))
	p.require(c.WireDtype.isSum() || c.WireDtype == FP8E4M3, "wire_dtype %q; want f32, bf16, f16 or fp8_e4m3", string(c.WireDtype))
	p.require(c.CombineDtype.isSum(), "combine_dtype %q; want f32, bf16 or f16", string(c.CombineDtype))
	p.require(c.Dtype != FP8E4M3 || c.WireDtype == FP8E4M3,
		"wire_dtype %q with dtype fp8_e4m3; want fp8_e4m3 too", string(c.WireDtype))
	p.within("scale_format", int(c.ScaleFormat), int(ScaleF32), int(ScaleStatic))
	if c.WireDtype == FP8E4M3 && c.ScaleFormat == ScaleStatic {
		p.require(c.StaticScale > 0 && c.StaticScale <= math.MaxFloat32, "static_scale %v; want a finite number above 0", c.StaticScale)
	}
}

func (c *Config) checkTables(p *problems, world int) {
	n := c.physical()
	if c.PhysicalExpert == nil {
		p.require(n == c.NumExperts, "num_physical %d without physical_expert; want num_experts, which is %d", n, c.NumExperts)
	} else if p.require(len(c.PhysicalExpert) == n, "physical_expert has %d entries; want %d", len(c.PhysicalExpert), n) {
		held := make([]bool, c.NumExperts)
		for i, e := range c.PhysicalExpert {
			if p.within(fmt.Sprintf("physical_expert[%d]", i), int(e), 0, c.NumExperts-1) {
				held[e] = true
			}
		}
		for e, h := range held {
			p.require(h, "expert %d has no physical expert; want each of 0..%d in physical_expert", e, c.NumExperts-1)
		}
	}
	if c.PhysicalRank != nil && p.require(len(c.PhysicalRank) == n, "physical_rank has %d entries; want %d", len(c.PhysicalRank), n) {
		for i, r := range c.PhysicalRank {
			p.within(fmt.Sprintf("physical_rank[%d]", i), int(r), 0, world-1)
		}
	}
}

// problems are the errors of a config, in the order of the checks.
type problems []error

// require adds a problem unless so is true. It returns so.
func (p *problems) require(so bool, format string, args ...any) bool {
	if !so {
		*p = append(*p, fmt.Errorf("ep: "+format, args...))
	}
	return so
}

func (p *problems) within(name string, value, low, high int) bool {
	return p.require(value >= low && value <= high, "%s %d; want %d..%d", name, value, low, high)
}

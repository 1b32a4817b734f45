package alltoall

import (
	"errors"
	"fmt"
	"math"

	"railhead/internal/oracle"
)

// Bounds of a Config, those of railhead.h.
const (
	MaxWorld   = 64
	MaxExperts = 2048 // physical ones
	MaxTopK    = 64
	MaxHidden  = 65536
	MaxTokens  = 1 << 20 // of a rank
)

// ScaleBlock is how many elements of a row share a scale. The last block of a row may be shorter.
const ScaleBlock = 128

// Mode is how a buffer is used. LL (decode) has room for the worst case; HT (prefill) has room for a few chunks.
type Mode int

// The modes, with the numbers of railhead.h.
const (
	LL Mode = 1
	HT Mode = 2
)

// Format is an element type by the name that railhead.h gives it, in lower case.
type Format string

// The formats of tokens. FP8E4M3 is none of sums.
const (
	F32     Format = "f32"
	BF16    Format = "bf16"
	F16     Format = "f16"
	FP8E4M3 Format = "fp8_e4m3"
)

// Size is an element's size in bytes.
func (f Format) Size() int { return oracle.Dtype(f).Size() }

func (f Format) isSum() bool { return f == F32 || f == BF16 || f == F16 }

// ScaleFormat is what the scales of a wire of FP8E4M3 are.
type ScaleFormat int

// The scale formats: a float, a power of two in one byte (the exponent + 127), or StaticScale for all, which does not travel.
const (
	ScaleF32 ScaleFormat = iota
	ScaleUE8M0
	ScaleStatic
)

// OnInvalid is what happens to invalid input.
type OnInvalid int

// InvalidError fails the call, InvalidDrop leaves the entry, token or row out.
const (
	InvalidError OnInvalid = iota
	InvalidDrop
)

// OnDead is what happens where a rank dies.
type OnDead int

// DeadFail breaks the group, DeadDrop goes on without the rank.
const (
	DeadFail OnDead = iota
	DeadDrop
)

// LostWeights is what becomes of the other weights of a token that lost some.
type LostWeights int

// LostKeep leaves them, LostRenormalize multiplies the token's sum by (sum of all its weights) / (sum of those not lost).
const (
	LostKeep LostWeights = iota
	LostRenormalize
)

// Config is rh_ep_config: the same on every rank.
type Config struct {
	Mode             Mode
	MaxTokensPerRank int     // T
	Hidden           int     // H, elements of a token
	NumExperts       int     // E, logical
	TopK             int     // K, experts of a token
	NumPhysical      int     // 0: NumExperts
	PhysicalExpert   []int32 // [NumPhysical] of which logical expert each is one; nil: expert p
	PhysicalRank     []int32 // [NumPhysical] where each lies; nil: in blocks
	Dtype            Format  // of x
	WireDtype        Format  // of dispatched tokens
	CombineDtype     Format  // of partial sums
	ScaleFormat      ScaleFormat
	StaticScale      float32
	OnInvalid        OnInvalid
	OnDead           OnDead
	LostWeights      LostWeights
}

// physical is NumPhysical, as it is meant.
func (c *Config) physical() int {
	if c.NumPhysical == 0 {
		return c.NumExperts
	}
	return c.NumPhysical
}

// Check returns one error that has a line for each thing that is wrong, nil where nothing is. The library's own checks say the
// same of the first.
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
	if c.NumPhysical != 0 {
		p.within("num_physical", c.NumPhysical, c.NumExperts, MaxExperts)
	}
	if len(p) == 0 { // the tables are looked at by numbers that are sound
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

// problems are what is wrong with a config, in the order in which it was found.
type problems []error

// require returns whether it is so.
func (p *problems) require(so bool, format string, args ...any) bool {
	if !so {
		*p = append(*p, fmt.Errorf("ep: "+format, args...))
	}
	return so
}

func (p *problems) within(name string, value, low, high int) bool {
	return p.require(value >= low && value <= high, "%s %d; want %d..%d", name, value, low, high)
}

package tests

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/oracle"
)

// drawEPConfig draws a config and a world size. They are small, because the reference is slow.
func drawEPConfig(r *rand.Rand) (c client.EPConfig, world int) {
	world = pick(r, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 12, 16)
	sums := []client.Dtype{client.F32, client.BF16, client.F16}
	c = client.EPConfig{
		Mode:        pick(r, client.EPLowLatency, client.EPHighThroughput),
		Hidden:      pick(r, 64, 65, 72, 127, 128, 130, 777, 1000, 1024, 2880, 3584, 4096, 7168, 16384, 64+r.IntN(500)),
		NumExperts:  pick(r, 1, 2, 8, 13, 32, 64, 100, 128, 256, 384, 1000, 1024),
		TopK:        pick(r, 1, 2, 4, 6, 8, 8, 10, 16, 32, 1+r.IntN(32)),
		Dtype:       pick(r, sums...),
		Scale:       pick(r, client.EPScaleF32, client.EPScaleUE8M0, client.EPScaleStatic),
		StaticScale: pick(r, float32(0.25), 0.013, 3),
		DropInvalid: r.IntN(2) == 0,
	}
	c.WireDtype = pick(r, c.Dtype, client.F32, client.BF16, client.F16, client.FP8E4M3, client.FP8E4M3)
	if r.IntN(6) == 0 {
		c.Dtype, c.WireDtype = client.FP8E4M3, client.FP8E4M3
	}
	c.CombineDtype = pick(r, sums...)
	c.RenormalizeWeight = r.IntN(2) == 0 // has no effect unless a rank is lost
	placeExperts(r, &c, world)
	most := pick(r, 150_000, 400_000, 400_000, 1_500_000)
	c.MaxTokensPerRank = min(max(most/(world*min(c.TopK, c.NumExperts)*c.Hidden), 1), 1+r.IntN(60))
	return c, world
}

// placeExperts draws the tables: none, replicas, and experts on any or on few of the ranks.
func placeExperts(r *rand.Rand, c *client.EPConfig, world int) {
	physical := c.NumExperts
	if r.IntN(3) == 0 {
		physical += r.IntN(min(c.NumExperts, 2048-c.NumExperts) + 1)
		if r.IntN(4) == 0 {
			physical = min(physical+8*world, 2048)
		}
		c.NumPhysical = physical
		for p := range physical {
			expert := p
			if p >= c.NumExperts {
				expert = r.IntN(c.NumExperts)
			}
			c.PhysicalExpert = append(c.PhysicalExpert, int32(expert))
		}
		r.Shuffle(physical, func(i, j int) {
			c.PhysicalExpert[i], c.PhysicalExpert[j] = c.PhysicalExpert[j], c.PhysicalExpert[i]
		})
	}
	if r.IntN(2) == 0 {
		holders := 1 + r.IntN(world)
		for range physical {
			c.PhysicalRank = append(c.PhysicalRank, int32((r.IntN(holders)*5+3)%world))
		}
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func formatOf(d client.Dtype) alltoall.Format { return alltoall.Format(d.String()) }

// reference is the same config for alltoall, which computes the expected results.
func reference(c client.EPConfig) alltoall.Config {
	invalid := alltoall.InvalidError
	if c.DropInvalid {
		invalid = alltoall.InvalidDrop
	}
	return alltoall.Config{
		Mode: alltoall.Mode(c.Mode), MaxTokensPerRank: c.MaxTokensPerRank, Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK,
		NumPhysical: c.NumPhysical, PhysicalExpert: c.PhysicalExpert, PhysicalRank: c.PhysicalRank, Dtype: formatOf(c.Dtype),
		WireDtype: formatOf(c.WireDtype), CombineDtype: formatOf(c.CombineDtype), ScaleFormat: alltoall.ScaleFormat(c.Scale),
		StaticScale: c.StaticScale, OnInvalid: invalid, DeviceKind: alltoall.Device(c.Device),
	}
}

// drawInputs draws the tokens of all ranks. With DropInvalid some are invalid.
func drawInputs(r *rand.Rand, c client.EPConfig, p *alltoall.Placement) []alltoall.RankInput {
	routers := []*alltoall.Router{
		alltoall.Uniform(c.NumExperts, c.TopK, r.Uint64()), alltoall.Zipf(c.NumExperts, c.TopK, 1.2, r.Uint64()),
		alltoall.Hot(c.NumExperts, c.TopK, r.IntN(c.NumExperts), r.Uint64()), alltoall.OneRank(p, r.IntN(p.World), r.Uint64()),
	}
	router := routers[r.IntN(len(routers))]
	inputs := make([]alltoall.RankInput, p.World)
	busy := r.IntN(10) != 0 // false: no rank has a token
	for rank := range inputs {
		tokens := pick(r, 0, c.MaxTokensPerRank, r.IntN(c.MaxTokensPerRank+1), r.IntN(c.MaxTokensPerRank+1))
		if c.DropInvalid && r.IntN(8) == 0 {
			tokens = c.MaxTokensPerRank + 1 + r.IntN(3)
		}
		if !busy {
			tokens = 0
		}
		in := &inputs[rank]
		in.TopKIdx, in.TopKWeights = router.Route(rank, r.IntN(1000), tokens)
		if r.IntN(4) == 0 {
			in.TopKWeights = nil
		}
		spoilRouting(r, c, in)
		in.X, in.Scales = drawTokens(r, c, tokens)
		if c.DropInvalid && c.WireDtype == client.FP8E4M3 {
			spoilTokens(r, c, in, tokens)
		}
	}
	return inputs
}

// spoilRouting sets some entries to -1 and changes some weights. With DropInvalid it also makes some entries invalid.
func spoilRouting(r *rand.Rand, c client.EPConfig, in *alltoall.RankInput) {
	often := pick(r, 0, 0, 3, 10)
	for i := range in.TopKIdx {
		if r.IntN(30) < often {
			in.TopKIdx[i] = -1
		}
		if c.DropInvalid && r.IntN(60) < often {
			in.TopKIdx[i] = pick(r, -2, int64(c.NumExperts), math.MaxInt32, math.MinInt32, in.TopKIdx[i-i%c.TopK])
		}
		if in.TopKWeights != nil && r.IntN(40) < often {
			in.TopKWeights[i] *= pick(r, float32(-1), 0, 1e6) // in f16 large weights overflow to infinities, whose sum may be NaN
		}
	}
}

// drawTokens draws x and, if x is FP8, its scales.
func drawTokens(r *rand.Rand, c client.EPConfig, tokens int) (x, scales []byte) {
	if c.Dtype != client.FP8E4M3 {
		return drawNumbers(r, c.Dtype, tokens*c.Hidden), nil
	}
	x = make([]byte, tokens*c.Hidden)
	for i := range x {
		x[i] = byte(r.IntN(127) | r.IntN(2)<<7) // no NaN
	}
	ref := reference(c)
	for range tokens * ref.ScaleColumns() {
		if c.Scale == client.EPScaleUE8M0 {
			scales = append(scales, byte(r.IntN(255)))
			continue
		}
		scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(r.Float32()))
	}
	return x, scales
}

// drawNumbers draws numbers of many magnitudes, among them zeros of both signs.
func drawNumbers(r *rand.Rand, d client.Dtype, n int) []byte {
	values := make([]float32, n)
	magnitude := float32(1)
	for i := range values {
		bits := r.Uint64()
		if i%64 == 0 {
			magnitude = pick(r, float32(1), 1, 30, 1e-3, 1e-6, 1e3)
		}
		values[i] = (float32(bits>>40)/(1<<23) - 1) * magnitude
		if bits&31 == 0 {
			values[i] = float32(math.Copysign(0, float64(int64(bits))))
		}
	}
	out := make([]byte, n*d.Size())
	oracle.Narrow(oracle.Dtype(d.String()), values, out)
	return out
}

// spoilNumbers puts infinities and NaNs of any sign and payload into a row of f32, bf16 or f16.
func spoilNumbers(r *rand.Rand, d client.Dtype, row []byte) {
	for range 1 + r.IntN(8) {
		at := r.IntN(len(row) / d.Size())
		sign, payload := r.Uint32()<<31, pick(r, uint32(0), 1, r.Uint32())
		switch d {
		case client.F32:
			binary.LittleEndian.PutUint32(row[4*at:], sign|0x7f800000|payload&0x7fffff)
		case client.BF16:
			binary.LittleEndian.PutUint16(row[2*at:], uint16(sign>>16|0x7f80|payload&0x7f))
		default:
			binary.LittleEndian.PutUint16(row[2*at:], uint16(sign>>16|0x7c00|payload&0x3ff))
		}
	}
}

// spoilTokens puts NaNs and infinities into some tokens or their scales.
func spoilTokens(r *rand.Rand, c client.EPConfig, in *alltoall.RankInput, tokens int) {
	for token := range tokens {
		if r.IntN(8) != 0 {
			continue
		}
		at := token*c.Hidden + r.IntN(c.Hidden)
		switch columns := len(in.Scales) / tokens; {
		case c.Dtype == client.F32:
			binary.LittleEndian.PutUint32(in.X[4*at:], pick(r, uint32(0x7f800000), 0xff800000, 0x7fc00000, 0xff800001))
		case c.Dtype == client.BF16:
			binary.LittleEndian.PutUint16(in.X[2*at:], pick(r, uint16(0x7f80), 0xff80, 0x7fc0, 0xff81))
		case c.Dtype == client.F16:
			binary.LittleEndian.PutUint16(in.X[2*at:], pick(r, uint16(0x7c00), 0xfc00, 0x7e00, 0xfc01))
		case columns == 0 || r.IntN(2) == 0:
			in.X[at] = pick(r, byte(0x7f), 0xff)
		case c.Scale == client.EPScaleUE8M0:
			in.Scales[token*columns+r.IntN(columns)] = 255
		default:
			binary.LittleEndian.PutUint32(in.Scales[token*columns+r.IntN(columns/4)*4:], pick(r, uint32(0x7f800000), 0x7fc00000))
		}
	}
}

func floatsOf(d client.Dtype, row []byte) []float32 {
	out := make([]float32, len(row)/d.Size())
	oracle.Widen(oracle.Dtype(d.String()), row, out)
	return out
}

func scaleOf(f alltoall.ScaleFormat, b []byte) float64 {
	if f == alltoall.ScaleUE8M0 {
		return math.Ldexp(1, int(b[0])-127)
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
}

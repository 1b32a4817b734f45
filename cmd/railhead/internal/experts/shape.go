// Package experts is the mixture of experts that `bench moe` and `demo` play: shapes, routings, tokens and experts that are made
// up from a seed, and what the results must be. The check computes every element again, apart from the library that it checks.
package experts

import (
	"encoding/binary"
	"math"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/oracle"
)

// Shape is what the ranks agree on.
type Shape struct {
	Tokens  int                  `json:"tokens"` // of a rank, at most
	Hidden  int                  `json:"hidden"`
	Experts int                  `json:"experts"`
	TopK    int                  `json:"topk"`
	Dtype   alltoall.Format      `json:"dtype"`
	Wire    alltoall.Format      `json:"wire"`
	Combine alltoall.Format      `json:"combine"`
	Scale   alltoall.ScaleFormat `json:"scale"`
	Mode    alltoall.Mode        `json:"mode"`
	Layout  alltoall.Arrangement `json:"layout"`
	Routing string               `json:"routing"` // uniform, zipf or the path of a .npy
	Seed    uint64               `json:"seed"`
}

// zipfExponent makes the most popular of 256 experts take about 16 % of all entries.
const zipfExponent = 1

// staticScale suits the inputs, which are below 2: they keep clear of 448, and small ones of subnormals.
const staticScale = 1.0 / 128

// Config is the shape for the plain reference.
func (s *Shape) Config() alltoall.Config {
	return alltoall.Config{
		Mode: s.Mode, MaxTokensPerRank: s.Tokens, Hidden: s.Hidden, NumExperts: s.Experts, TopK: s.TopK,
		Dtype: s.Dtype, WireDtype: s.Wire, CombineDtype: s.Combine, ScaleFormat: s.Scale, StaticScale: staticScale,
	}
}

// EPConfig is the shape for the library.
func (s *Shape) EPConfig() client.EPConfig {
	return client.EPConfig{
		Mode: client.EPMode(s.Mode), MaxTokensPerRank: s.Tokens, Hidden: s.Hidden, NumExperts: s.Experts, TopK: s.TopK,
		Dtype: Dtypes[s.Dtype], WireDtype: Dtypes[s.Wire], CombineDtype: Dtypes[s.Combine],
		Scale: client.EPScale(s.Scale), StaticScale: staticScale,
	}
}

// Dtypes are the library's names of the formats.
var Dtypes = map[alltoall.Format]client.Dtype{
	alltoall.F32: client.F32, alltoall.BF16: client.BF16, alltoall.F16: client.F16, alltoall.FP8E4M3: client.FP8E4M3,
}

// Sums is the type of the experts' outputs and of the results: that of the tokens, and bf16 of tokens that are FP8 already.
func (s *Shape) Sums() alltoall.Format {
	if s.Dtype == alltoall.FP8E4M3 {
		return alltoall.BF16
	}
	return s.Dtype
}

// Router gives every rank's routing of an operation.
func (s *Shape) Router() (Router, error) {
	switch s.Routing {
	case "uniform":
		return alltoall.Uniform(s.Experts, s.TopK, s.Seed), nil
	case "zipf":
		return alltoall.Zipf(s.Experts, s.TopK, zipfExponent, s.Seed), nil
	}
	return recordedRouter(s.Routing, s)
}

// expertFactor is what a made-up expert multiplies a token by: its own, so that a token at the wrong one shows.
func expertFactor(physical int) float32 { return float32(1+physical%61) / 32 }

// WidenRow reads a row; the format of most rows has a way of its own, because tests of large shapes would take minutes otherwise.
func WidenRow(f alltoall.Format, row []byte, values []float32) {
	if f != alltoall.BF16 {
		oracle.Widen(oracle.Dtype(f), row, values)
		return
	}
	for i := range values {
		values[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
	}
}

// NarrowRow rounds finite values to a format, to the nearest, of two as near the even one.
func NarrowRow(f alltoall.Format, values []float32, row []byte) {
	if f != alltoall.BF16 {
		oracle.Narrow(oracle.Dtype(f), values, row)
		return
	}
	for i, v := range values {
		bits := math.Float32bits(v)
		binary.LittleEndian.PutUint16(row[2*i:], uint16((bits+0x7fff+bits>>16&1)>>16))
	}
}

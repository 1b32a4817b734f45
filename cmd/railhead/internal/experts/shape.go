// Package experts is the synthetic mixture of experts that `bench moe` and `demo` run: its shape, routing, tokens and experts, made from
// a seed, and the check of the results. The check computes every element independently of the library.
package experts

import (
	"encoding/binary"
	"math"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/oracle"
)

// Shape is the configuration that all ranks share.
type Shape struct {
	Tokens  int                  `json:"tokens"` // of a rank, maximum
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

// zipfExponent gives the most popular of 256 experts about 16 % of all entries.
const zipfExponent = 1

// staticScale suits the inputs, which are below 2: scaled values are below 448, the largest FP8 value, and small ones are not subnormal.
const staticScale = 1.0 / 128

// Config is the shape as package alltoall takes it.
func (s *Shape) Config() alltoall.Config {
	return alltoall.Config{
		Mode: s.Mode, MaxTokensPerRank: s.Tokens, Hidden: s.Hidden, NumExperts: s.Experts, TopK: s.TopK,
		Dtype: s.Dtype, WireDtype: s.Wire, CombineDtype: s.Combine, ScaleFormat: s.Scale, StaticScale: staticScale,
	}
}

// EPConfig is the shape as the library takes it, for comms on GPUs or on the CPU.
func (s *Shape) EPConfig(onGPU bool) client.EPConfig {
	config := client.EPConfig{
		Mode: client.EPMode(s.Mode), MaxTokensPerRank: s.Tokens, Hidden: s.Hidden, NumExperts: s.Experts, TopK: s.TopK,
		Dtype: Dtypes[s.Dtype], WireDtype: Dtypes[s.Wire], CombineDtype: Dtypes[s.Combine],
		Scale: client.EPScale(s.Scale), StaticScale: staticScale,
	}
	if onGPU {
		config.Device = client.DeviceCUDA
	}
	return config
}

// Dtypes maps formats to the library's element types.
var Dtypes = map[alltoall.Format]client.Dtype{
	alltoall.F32: client.F32, alltoall.BF16: client.BF16, alltoall.F16: client.F16, alltoall.FP8E4M3: client.FP8E4M3,
}

// Sums is the type of the experts' outputs and of the results: that of the tokens, or bf16 if the tokens are FP8.
func (s *Shape) Sums() alltoall.Format {
	if s.Dtype == alltoall.FP8E4M3 {
		return alltoall.BF16
	}
	return s.Dtype
}

// Router makes the router.
func (s *Shape) Router() (Router, error) {
	switch s.Routing {
	case "uniform":
		return alltoall.Uniform(s.Experts, s.TopK, s.Seed), nil
	case "zipf":
		return alltoall.Zipf(s.Experts, s.TopK, zipfExponent, s.Seed), nil
	}
	return recordedRouter(s.Routing, s)
}

// expertFactor is what a synthetic expert multiplies its tokens by. It differs between experts, so that a misrouted token is noticed.
func expertFactor(physical int) float32 { return float32(1+physical%61) / 32 }

// WidenRow converts a row to f32. bf16, the format of most rows, has a fast path: checks of large shapes would take minutes otherwise.
func WidenRow(f alltoall.Format, row []byte, values []float32) {
	if f != alltoall.BF16 {
		oracle.Widen(oracle.Dtype(f), row, values)
		return
	}
	for i := range values {
		values[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
	}
}

// NarrowRow rounds finite values to a format, to nearest even.
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

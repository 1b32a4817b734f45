package alltoall

import (
	"math"
	"strings"
	"testing"
)

// decode is a config without mistakes, for 8 ranks.
func decode() Config {
	return Config{
		Mode: LL, MaxTokensPerRank: 128, Hidden: 7168, NumExperts: 256, TopK: 8,
		Dtype: BF16, WireDtype: BF16, CombineDtype: BF16,
	}
}

func TestAConfigsErrorNamesTheValueAndWhatIsWanted(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Mode = 0 }, "ep: mode 0; want 1..2"},
		{func(c *Config) { c.MaxTokensPerRank = 0 }, "ep: max_tokens_per_rank 0; want 1..1048576"},
		{func(c *Config) { c.Hidden = 0 }, "ep: hidden 0; want 1..65536"},
		{func(c *Config) { c.Hidden = 65537 }, "ep: hidden 65537; want 1..65536"},
		{func(c *Config) { c.NumExperts = 2049 }, "ep: num_experts 2049; want 1..2048"},
		{func(c *Config) { c.TopK = 65 }, "ep: topk 65; want 1..64"},
		{func(c *Config) { c.Dtype = "f64" }, `ep: dtype "f64"; want f32, bf16, f16 or fp8_e4m3`},
		{func(c *Config) { c.WireDtype = "" }, `ep: wire_dtype ""; want f32, bf16, f16 or fp8_e4m3`},
		{func(c *Config) { c.CombineDtype = FP8E4M3 }, `ep: combine_dtype "fp8_e4m3"; want f32, bf16 or f16`},
		{func(c *Config) { c.Dtype = FP8E4M3 }, `ep: wire_dtype "bf16" with dtype fp8_e4m3; want fp8_e4m3 too`},
		{func(c *Config) { c.ScaleFormat = 3 }, "ep: scale_format 3; want 0..2"},
		{func(c *Config) { c.WireDtype, c.ScaleFormat = FP8E4M3, ScaleStatic }, "ep: static_scale 0; want a finite number above 0"},
		{func(c *Config) { c.OnInvalid = 2 }, "ep: on_invalid 2; want 0..1"},
		{func(c *Config) { c.OnDead = -1 }, "ep: on_dead -1; want 0..1"},
		{func(c *Config) { c.LostWeights = 2 }, "ep: lost_weights 2; want 0..1"},
		{func(c *Config) { c.NumPhysical = 255 }, "ep: num_physical 255; want 256..2048"},
		{func(c *Config) { c.NumPhysical = 257 }, "ep: num_physical 257 without physical_expert; want num_experts, which is 256"},
		{func(c *Config) { c.PhysicalExpert = []int32{0} }, "ep: physical_expert has 1 entries; want 256"},
		{func(c *Config) { c.PhysicalRank = []int32{0} }, "ep: physical_rank has 1 entries; want 256"},
		{func(c *Config) { c.NumExperts, c.NumPhysical, c.PhysicalExpert = 2, 3, []int32{0, 1, 2} }, "ep: physical_expert[2] 2; want 0..1"},
		{func(c *Config) { c.NumExperts, c.NumPhysical, c.PhysicalExpert = 2, 2, []int32{0, 0} }, "ep: expert 1 has no physical expert; want each of 0..1 in physical_expert"},
		{func(c *Config) { c.NumExperts, c.PhysicalRank = 2, []int32{7, 8} }, "ep: physical_rank[1] 8; want 0..7"},
		{func(c *Config) { c.Hidden, c.TopK = 0, 0 }, "ep: hidden 0; want 1..65536\nep: topk 0; want 1..64"},
	} {
		config := decode()
		c.change(&config)
		err := config.Check(8)
		if err == nil || err.Error() != c.want {
			t.Errorf("error is %v; want %s", err, c.want)
		}
		if _, err := BufferBytes(config, 8); err == nil {
			t.Errorf("the buffer of a config with %q has a size", c.want)
		}
	}
	config := decode()
	for _, world := range []int{0, 65} {
		if err := config.Check(world); err == nil || !strings.Contains(err.Error(), "want 1..64") {
			t.Errorf("world size %d: %v", world, err)
		}
	}
	if err := config.Check(8); err != nil {
		t.Error(err)
	}
	config.WireDtype, config.ScaleFormat, config.StaticScale = FP8E4M3, ScaleStatic, float32(math.Inf(1))
	if err := config.Check(8); err == nil {
		t.Error("an infinite static scale is accepted")
	}
}

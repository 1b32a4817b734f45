package tests

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"railhead/alltoall"
	"railhead/client"
	"railhead/internal/wire"
)

// badConfig makes a config invalid; words are those of the error.
type badConfig struct {
	spoil func(c *client.EPConfig)
	words []string
}

func badConfigs() []badConfig {
	return []badConfig{
		{func(c *client.EPConfig) { c.Mode = 0 }, []string{"mode 0", "1..2"}},
		{func(c *client.EPConfig) { c.Mode = 3 }, []string{"mode 3", "1..2"}},
		{func(c *client.EPConfig) { c.MaxTokensPerRank = 0 }, []string{"max_tokens_per_rank 0", "1..1048576"}},
		{func(c *client.EPConfig) { c.MaxTokensPerRank = 1<<20 + 1 }, []string{"max_tokens_per_rank 1048577"}},
		{func(c *client.EPConfig) { c.Hidden = 0 }, []string{"hidden 0", "1..65536"}},
		{func(c *client.EPConfig) { c.Hidden = 65537 }, []string{"hidden 65537"}},
		{func(c *client.EPConfig) { c.NumExperts = 0 }, []string{"num_experts 0", "1..2048"}},
		{func(c *client.EPConfig) { c.NumExperts = 2049 }, []string{"num_experts 2049"}},
		{func(c *client.EPConfig) { c.TopK = 0 }, []string{"topk 0", "1..64"}},
		{func(c *client.EPConfig) { c.TopK = 65 }, []string{"topk 65"}},
		{func(c *client.EPConfig) { c.NumPhysical = 5 }, []string{"num_physical 5", "6..2048"}},
		{func(c *client.EPConfig) { c.NumPhysical = 2049 }, []string{"num_physical 2049"}},
		{func(c *client.EPConfig) { c.NumPhysical = 7 }, []string{"7 physical experts of 6", "physical_expert"}},
		{func(c *client.EPConfig) { c.PhysicalExpert = []int32{0, 1, 2, 3, 4, 6} }, []string{"physical_expert[5] is 6", "0..5"}},
		{func(c *client.EPConfig) { c.PhysicalExpert = []int32{0, -1, 2, 3, 4, 5} }, []string{"physical_expert[1] is -1"}},
		{func(c *client.EPConfig) { c.PhysicalExpert = []int32{0, 1, 2, 4, 4, 5} }, []string{"expert 3", "held nowhere"}},
		{func(c *client.EPConfig) { c.PhysicalRank = []int32{0, 1, 0, 1, 0, 2} }, []string{"physical_rank[5] is 2", "0..1"}},
		{func(c *client.EPConfig) { c.PhysicalRank = []int32{0, 1, 0, -1, 0, 1} }, []string{"physical_rank[3] is -1"}},
		{func(c *client.EPConfig) { c.Dtype = client.F64 }, []string{"dtype f64", "fp8_e4m3"}},
		{func(c *client.EPConfig) { c.Dtype = 99 }, []string{"dtype", "99"}},
		{func(c *client.EPConfig) { c.WireDtype = client.FP8E5M2 }, []string{"wire_dtype fp8_e5m2"}},
		{func(c *client.EPConfig) { c.CombineDtype = client.FP8E4M3 }, []string{"combine_dtype fp8_e4m3", "f32, bf16 or f16"}},
		{func(c *client.EPConfig) { c.Dtype = client.FP8E4M3 }, []string{"fp8_e4m3", "wire_dtype f32"}},
		{func(c *client.EPConfig) { c.Device = 2 }, []string{"device_kind 2", "0 (CPU) or 1 (CUDA)"}},
		{func(c *client.EPConfig) { c.Scale = 3 }, []string{"scale_format 3", "0..2"}},
		{func(c *client.EPConfig) { c.WireDtype, c.Scale = client.FP8E4M3, client.EPScaleStatic }, []string{"static_scale 0"}},
		{func(c *client.EPConfig) {
			c.WireDtype, c.Scale, c.StaticScale = client.FP8E4M3, client.EPScaleStatic, float32(math.Inf(1))
		}, []string{"static_scale inf"}},
		{func(c *client.EPConfig) {
			c.WireDtype, c.Scale, c.StaticScale = client.FP8E4M3, client.EPScaleStatic, float32(math.NaN())
		}, []string{"static_scale", "nan"}},
	}
}

func TestAnInvalidConfigIsRefusedAndTheRankCanTryAgain(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2})
	for _, bad := range badConfigs() {
		c := smallEP
		bad.spoil(&c)
		_, err := client.EPBufferSize(c, 2)
		wantError(t, err, invalid, append(bad.words, "ep_buffer_size")...)
		_, err = ranks[1].NewEP(c)
		wantError(t, err, invalid, append(bad.words, "ep_create")...)
		ref := reference(c)
		if ref.Check(2) == nil {
			t.Errorf("%v: the reference accepts the config", bad.words)
		}
	}
	for _, world := range []int{-1, 0, 65} {
		_, err := client.EPBufferSize(smallEP, world)
		wantError(t, err, invalid, "world_size", "1..64")
	}
	all(t, ranks, func(m member) error {
		ep, err := m.NewEP(smallEP)
		if err != nil {
			return err
		}
		return ep.Destroy()
	})
}

// Sizes of a buffer depend on the device. No rank waits for one whose config names another device than its comm's.
func TestABufferForAnotherDeviceIsRefusedAndTheRankCanTryAgain(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2})
	for _, mode := range bothModes {
		c := smallEP
		c.Mode, c.Device = mode, client.DeviceCUDA
		_, err := ranks[1].NewEP(c)
		wantError(t, err, invalid, "ep_create: rank 1", "device_kind is 1 and that of the comm 0", "rh_ep_config")
	}
	all(t, ranks, func(m member) error {
		ep, err := m.NewEP(smallEP)
		if err != nil {
			return err
		}
		return ep.Destroy()
	})
}

// The least and the most of each number; with all of the least, a token arrives.
func TestTheBoundsOfAConfigsNumbersAreAccepted(t *testing.T) {
	for what, set := range map[string]func(c *client.EPConfig){
		"1 token":                 func(c *client.EPConfig) { c.MaxTokensPerRank = 1 },
		"1048576 tokens":          func(c *client.EPConfig) { c.MaxTokensPerRank = 1 << 20 },
		"1 element":               func(c *client.EPConfig) { c.Hidden = 1 },
		"65536 elements":          func(c *client.EPConfig) { c.Hidden = 65536 },
		"1 expert":                func(c *client.EPConfig) { c.NumExperts = 1 },
		"2048 experts":            func(c *client.EPConfig) { c.NumExperts = 2048 },
		"1 expert of a token":     func(c *client.EPConfig) { c.TopK = 1 },
		"64 experts of a token":   func(c *client.EPConfig) { c.NumExperts, c.TopK = 64, 64 },
		"as many physical ones":   func(c *client.EPConfig) { c.NumPhysical = 6 },
		"the last physical one":   func(c *client.EPConfig) { c.PhysicalExpert = []int32{5, 4, 3, 2, 1, 0} },
		"all on the highest rank": func(c *client.EPConfig) { c.PhysicalRank = []int32{1, 1, 1, 1, 1, 1} },
	} {
		c := smallEP
		set(&c)
		if _, err := client.EPBufferSize(c, 2); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		ref := reference(c)
		if err := ref.Check(2); err != nil {
			t.Errorf("%s: the reference says %v", what, err)
		}
	}
	if _, err := client.EPBufferSize(smallEP, 64); err != nil {
		t.Errorf("64 ranks: %v", err)
	}
	s := startDaemon(t)
	for _, mode := range bothModes {
		c := client.EPConfig{Mode: mode, MaxTokensPerRank: 1, Hidden: 1, NumExperts: 1, TopK: 1, Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32}
		all(t, formGroup(t, s, client.CommConfig{World: 2, Group: fmt.Sprint("least ", mode)}), func(m member) error {
			ep, err := m.NewEP(c)
			if err != nil {
				return err
			}
			in := epInputs{tokens: 1, x: []byte{0, 0, 0x40, 0x40}, idx: []int32{0}, weights: []float32{0.5}}
			return errors.Join(roundTrip(m, ep, c, in, client.EPFlat, 1), ep.Destroy())
		})
	}
}

func TestTablesOfTheWrongLengthAreRefused(t *testing.T) {
	for _, c := range []client.EPConfig{
		{NumExperts: 6, PhysicalRank: []int32{0}}, {NumExperts: 2, NumPhysical: 3, PhysicalExpert: []int32{0, 1}},
	} {
		if _, err := client.EPBufferSize(c, 1); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func TestDifferentConfigsFailOnEveryRankAndTheErrorNamesTheField(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 3, HeapBytes: 4 << 20})
	base := smallEP
	base.WireDtype, base.Scale, base.StaticScale = client.FP8E4M3, client.EPScaleStatic, 1
	for field, change := range map[string]func(c *client.EPConfig){
		"mode":                func(c *client.EPConfig) { c.Mode = client.EPHighThroughput },
		"max_tokens_per_rank": func(c *client.EPConfig) { c.MaxTokensPerRank = 5 },
		"hidden":              func(c *client.EPConfig) { c.Hidden = 16 },
		"num_experts":         func(c *client.EPConfig) { c.NumExperts = 7 },
		"topk":                func(c *client.EPConfig) { c.TopK = 3 },
		"num_physical":        func(c *client.EPConfig) { c.NumPhysical, c.PhysicalExpert = 7, []int32{0, 1, 2, 3, 4, 5, 5} },
		"physical_expert":     func(c *client.EPConfig) { c.PhysicalExpert = []int32{1, 0, 2, 3, 4, 5} },
		"physical_rank":       func(c *client.EPConfig) { c.PhysicalRank = []int32{0, 1, 0, 1, 2, 2} },
		"dtype":               func(c *client.EPConfig) { c.Dtype = client.BF16 },
		"wire_dtype":          func(c *client.EPConfig) { c.WireDtype = client.BF16 },
		"combine_dtype":       func(c *client.EPConfig) { c.CombineDtype = client.BF16 },
		"scale_format":        func(c *client.EPConfig) { c.Scale = client.EPScaleF32 },
		"static_scale":        func(c *client.EPConfig) { c.StaticScale = 2 },
		"on_invalid":          func(c *client.EPConfig) { c.DropInvalid = true },
		"on_dead":             func(c *client.EPConfig) { c.DropDead = true },
		"lost_weights":        func(c *client.EPConfig) { c.RenormalizeWeight = true },
	} {
		errs := together(ranks, func(m member) error {
			c := base
			if m.Rank() == 2 {
				change(&c)
			}
			_, err := m.NewEP(c)
			return err
		})
		for _, err := range errs {
			wantError(t, err, wire.ResultMismatch, "ep_create", field+" ", "rank 2", "rank 0", "same config")
		}
	}
	// Tables that equal the default placement are the same config as no tables.
	all(t, ranks, func(m member) error {
		c := base
		if m.Rank() == 1 {
			c.NumPhysical, c.PhysicalExpert, c.PhysicalRank = 6, []int32{0, 1, 2, 3, 4, 5}, []int32{0, 0, 1, 1, 2, 2}
		}
		ep, err := m.NewEP(c)
		if err != nil {
			return err
		}
		return ep.Destroy()
	})
}

func TestTheSizeOfABufferEqualsTheReferenceForAnyConfig(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 1500 {
		c, world := drawEPConfig(r)
		if c.PhysicalRank == nil {
			world = 1 + r.IntN(64)
		}
		c.MaxTokensPerRank = pick(r, c.MaxTokensPerRank, 128, 1+r.IntN(1<<20))
		c.Device = pick(r, 0, client.DeviceCUDA)
		got, err := client.EPBufferSize(c, world)
		want, wantErr := alltoall.BufferBytes(reference(c), world)
		if err != nil || wantErr != nil || got != want {
			t.Fatalf("%d ranks, %+v: %d bytes (%v), want %d (%v)", world, c, got, err, want, wantErr)
		}
	}
}

// A buffer uses EPBufferSize bytes of the heap, rounded up to 64 KiB: the next window begins there.
func TestABufferUsesItsSizeOfTheHeapAndFreesIt(t *testing.T) {
	s := startDaemon(t)
	r := rand.New(rand.NewPCG(6, 6))
	for i := range 20 {
		c, world := drawEPConfig(r)
		bytes, err := client.EPBufferSize(c, world)
		if err != nil {
			t.Fatal(err)
		}
		if bytes*uint64(world) > 64<<20 {
			continue
		}
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint("size ", i), World: world, HeapBytes: bytes + 1<<20})
		var offsets [2]uint64
		for round := range 2 {
			before := windowOffset(t, ranks, 1)
			plain := windowOffset(t, ranks, int(bytes)) - before
			eps := makeEPs(t, ranks, c)
			offsets[round] = windowOffset(t, ranks, 1)
			if eps[0].BufferBytes() != bytes || plain != 0 || offsets[round]-before < bytes || offsets[round]-before >= bytes+1<<16 {
				t.Errorf("%+v: the window after the buffer is %d bytes after the buffer's begin, want %d rounded up to 64 KiB", c, offsets[round]-before, bytes)
			}
			all(t, ranks, func(m member) error { return eps[m.Rank()].Destroy() })
		}
		if offsets[0] != offsets[1] {
			t.Errorf("%+v: the second buffer ends at %d, the first at %d", c, offsets[1], offsets[0])
		}
		all(t, ranks, finalize)
	}
}

// windowOffset returns the offset that a window of that size gets. It frees the window.
func windowOffset(t testing.TB, ranks []member, bytes int) uint64 {
	t.Helper()
	offsets := make([]uint64, len(ranks))
	all(t, ranks, func(m member) error {
		w, err := m.AllocWindow(bytes)
		if err != nil {
			return err
		}
		offsets[m.Rank()], err = w.Offset()
		return errors.Join(err, w.Free())
	})
	return slices.Max(offsets)
}

func TestABufferForDecodeOnEightRanksUsesAtMost80MiB(t *testing.T) {
	c := client.EPConfig{
		Mode: client.EPLowLatency, MaxTokensPerRank: 128, Hidden: 7168, NumExperts: 256, TopK: 8,
		Dtype: client.BF16, WireDtype: client.BF16, CombineDtype: client.BF16,
	}
	bytes, err := client.EPBufferSize(c, 8)
	if err != nil || bytes > 80<<20 {
		t.Errorf("%d bytes, %v", bytes, err)
	}
	t.Logf("%.1f MiB", float64(bytes)/(1<<20))
}

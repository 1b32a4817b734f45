package alltoall

import "testing"

func TestADecodeBufferOfDeepSeekV3IsAtMost80MiB(t *testing.T) {
	bytes, err := BufferBytes(decode(), 8)
	if err != nil {
		t.Fatal(err)
	}
	// state and links, counts, dispatch, combine
	want := uint64(4096+64*8) + 2*7*192 + 7*2*(128*72+128*14336) + 7*2*128*14336
	if bytes != want || bytes > 80<<20 {
		t.Errorf("%d bytes; want %d, at most %d", bytes, want, 80<<20)
	}
}

func TestTheSizeOfABufferIsExact(t *testing.T) {
	for _, c := range []struct {
		name   string
		world  int
		change func(*Config)
		want   uint64
	}{
		{"one rank", 1, func(*Config) {}, 4096 + 64},
		{"one element", 2, func(c *Config) { c.MaxTokensPerRank, c.Hidden, c.NumExperts, c.TopK = 1, 1, 1, 1 },
			4096 + 2*64 + 2*64 + 2*(64+64) + 2*64},
		{"uneven: Lmax is 3", 4, func(c *Config) { c.MaxTokensPerRank, c.Hidden, c.NumExperts = 3, 33, 10 },
			4096 + 4*64 + 3*2*64 + 3*2*(128+3*128) + 3*2*3*128}, // headers of 32 bytes
		{"FP8 with float scales", 2, func(c *Config) { c.MaxTokensPerRank, c.Hidden, c.NumExperts, c.WireDtype = 1, 129, 2, FP8E4M3 },
			4096 + 2*64 + 2*64 + 2*(64+192) + 2*320}, // rows of 132 + 8 bytes
		{"FP8 with UE8M0 scales", 2, func(c *Config) {
			c.MaxTokensPerRank, c.Hidden, c.NumExperts, c.WireDtype, c.ScaleFormat = 1, 61, 2, FP8E4M3, ScaleUE8M0
		}, 4096 + 2*64 + 2*64 + 2*(64+128) + 2*128}, // rows of 64 + 1 bytes
		{"FP8 with a static scale", 2, func(c *Config) {
			c.MaxTokensPerRank, c.Hidden, c.NumExperts, c.WireDtype, c.ScaleFormat, c.StaticScale = 1, 61, 2, FP8E4M3, ScaleStatic, 1
		}, 4096 + 2*64 + 2*64 + 2*(64+64) + 2*128},
		{"HT: 18 rows a chunk", 2, func(c *Config) { c.Mode, c.MaxTokensPerRank = HT, 4096 },
			4096 + 2*64 + 2*576 + 4*(1344+18*14336) + 4*18*14336}, // headers of 72 bytes
		{"HT: a row a chunk", 2, func(c *Config) { c.Mode, c.Hidden, c.WireDtype = HT, 65536, F32; c.NumExperts = 2 },
			4096 + 2*64 + 2*64 + 4*(64+262144) + 4*131072},
		{"HT: fewer tokens than a chunk", 2, func(c *Config) { c.Mode, c.MaxTokensPerRank, c.NumExperts = HT, 2, 2 },
			4096 + 2*64 + 2*64 + 4*(64+2*14336) + 4*2*14336},
		{"HT, CUDA: 146 rows a chunk", 2, func(c *Config) { c.Mode, c.MaxTokensPerRank, c.DeviceKind = HT, 4096, CUDA },
			4096 + 2*64 + 2*576 + 4*(10560+146*14336) + 4*146*14336}, // headers of 72 bytes
		{"HT, CUDA: 8 rows a chunk", 2, func(c *Config) {
			c.Mode, c.Hidden, c.MaxTokensPerRank, c.WireDtype, c.NumExperts, c.DeviceKind = HT, 65536, 4096, F32, 2, CUDA
		}, 4096 + 2*64 + 2*64 + 4*(128+8*262144) + 4*8*131072},
		{"HT, CUDA: as many tokens as positions", 2, func(c *Config) { c.Mode, c.MaxTokensPerRank, c.NumExperts, c.DeviceKind = HT, 11, 2, CUDA },
			4096 + 2*64 + 2*64 + 4*(64+2*14336) + 4*2*14336},
		{"HT, CUDA: fewer tokens than positions", 2, func(c *Config) { c.Mode, c.MaxTokensPerRank, c.NumExperts, c.DeviceKind = HT, 3, 2, CUDA },
			4096 + 2*64 + 2*64 + 4*(64+14336) + 4*14336},
		{"LL, CUDA", 2, func(c *Config) { c.MaxTokensPerRank, c.NumExperts, c.DeviceKind = 11, 2, CUDA },
			4096 + 2*64 + 2*64 + 2*(192+11*14336) + 2*11*14336},
	} {
		config := decode()
		c.change(&config)
		if got, err := BufferBytes(config, c.world); err != nil || got != c.want {
			t.Errorf("%s: %d bytes, %v; want %d", c.name, got, err, c.want)
		}
	}
}

package ncclstyle

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSizesAreReadAsNcclTestsReadsThem(t *testing.T) {
	for in, want := range map[string]uint64{
		"0": 0, "8": 8, "1024": 1024, "1K": 1024, "1k": 1024, "32M": 32 << 20, "32m": 32 << 20, "8G": 8 << 30, "8g": 8 << 30,
		"1.5K": 1536, ".5k": 512, "2.": 2, "0.4": 0, "1.9": 1, "1e3": 1000, "1E+3K": 1024000, "5e-1M": 512 << 10,
		" 4K ": 4096, "4 K": 4096, "+4": 4, "007": 7,
		"8KB": 8192, "8kib": 8192, "8MB": 8 << 20, "8GiB": 8 << 30,
		"70368744177664": MaxBytes, "65536G": MaxBytes,
		"9007199254740993e-3": 9007199254740, // through floating point
		"35184372088833":      35184372088833,
	} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestBadSizesAreErrorsThatSayWhatIsExpected(t *testing.T) {
	for in, want := range map[string]string{
		"": "expected a number", "K": "expected a number", "-1": "expected a number", "-0": "expected a number",
		"8T": "expected a number", "8B": "expected a number", "8Mfoo": "expected a number", "8MK": "expected a number",
		"1,5K": "expected a number", "0x10": "expected a number", "inf": "expected a number", "nan": "expected a number",
		"1e": "expected a number", "1e9999": "expected a number", ".": "expected a number", "1.2.3": "expected a number",
		"70368744177665": "at most", "65537G": "at most", "1e300": "at most", "1e999": "at most",
		"18446744073709551616": "at most", "18446744073709551615K": "at most", "65536.1G": "at most",
		strings.Repeat("9", 1<<20): "at most",
	} {
		got, err := ParseBytes(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseBytes(%.30q) = %d, %v; want an error with %q", in, got, err, want)
		} else if len(err.Error()) > 300 {
			t.Errorf("ParseBytes(%.30q): error of %d bytes", in, len(err.Error()))
		}
	}
}

func TestEveryWholeSizeWithinBoundsIsReadExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.SampledFrom([]uint{0, 10, 20, 30}).Draw(t, "shift")
		n := rapid.Uint64Range(0, MaxBytes>>shift).Draw(t, "n")
		suffix := map[uint]string{0: "", 10: "K", 20: "m", 30: "GiB"}[shift]
		got, err := ParseBytes(strconv.FormatUint(n, 10) + suffix)
		if err != nil || got != n<<shift {
			t.Fatalf("%d%s: got %d, %v; want %d", n, suffix, got, err, n<<shift)
		}
	})
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"", "8", "32M", "1.5k", ".5G", "1e3", "4 K", "65536G", "1e999", "-1", "0x10", "8MB", "18446744073709551616"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseBytes(s)
		if err != nil {
			if n != 0 {
				t.Fatalf("ParseBytes(%q): %d came with the error %v", s, n, err)
			}
			return
		}
		if n > MaxBytes {
			t.Fatalf("ParseBytes(%q) = %d, above the bound", s, n)
		}
		if again, err := ParseBytes(fmt.Sprint(n)); err != nil || again != n {
			t.Fatalf("ParseBytes(%q) = %d, which reads back as %d, %v", s, n, again, err)
		}
	})
}

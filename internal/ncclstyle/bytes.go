package ncclstyle

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// MaxBytes bounds every size: beyond the memory of any node, and far enough from 2^63 that a size can be multiplied by
// a world size without overflow.
const MaxBytes = 1 << 46 // 64 TiB

// sizePattern is a decimal number as C's scanf("%lf") reads it, without its hexadecimal, infinite and not-a-number
// forms, and a binary suffix. nccl-tests looks at one letter and ignores what follows, so that "32MB" is 32 MiB there;
// here the known spellings are taken and anything else is refused.
var sizePattern = regexp.MustCompile(`^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*(?:([kKmMgG])(?:i?[bB])?)?$`)

// ParseBytes reads a size as nccl-tests' -b, -e and -i do: a number, decimals allowed, and an optional K, M or G in
// either case, always binary (1K = 1024). A fraction of a byte is dropped.
func ParseBytes(s string) (uint64, error) {
	m := sizePattern.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return 0, fmt.Errorf("size %.40q: expected a number of bytes with an optional K, M or G (binary), such as 8, 64K or 1.5G", s)
	}
	tooLarge := fmt.Errorf("size %.40q: at most %d bytes (64 TiB)", s, uint64(MaxBytes))
	shift := map[string]uint{"": 0, "k": 10, "m": 20, "g": 30}[strings.ToLower(m[3])]
	// A whole number stays exact; only one with a point or an exponent goes through floating point, as all do in nccl-tests.
	if whole, err := strconv.ParseUint(m[1], 10, 64); err == nil && m[2] == "" {
		if whole > MaxBytes>>shift {
			return 0, tooLarge
		}
		return whole << shift, nil
	}
	number, err := strconv.ParseFloat(m[1]+m[2], 64)
	if err != nil || number*float64(uint64(1)<<shift) > MaxBytes {
		return 0, tooLarge
	}
	return uint64(number * float64(uint64(1)<<shift)), nil
}

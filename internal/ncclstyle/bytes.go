package ncclstyle

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// MaxBytes is the largest size: more than the memory of any node, and small enough that a size times a world size does not
// overflow.
const MaxBytes = 1 << 46 // 64 TiB

// sizePattern is a decimal number as C's scanf("%lf") reads it (but no hexadecimal number, infinity or NaN), and a binary suffix.
// nccl-tests reads one letter and ignores the rest, so "32MB" is 32 MiB there. Here only the known spellings are accepted.
var sizePattern = regexp.MustCompile(`^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*(?:([kKmMgG])(?:i?[bB])?)?$`)

// ParseBytes parses a size as nccl-tests does for -b, -e and -i: a decimal number, maybe with a fraction, and an optional K, M or G,
// upper or lower case, always binary (1K = 1024). It rounds down to whole bytes.
func ParseBytes(s string) (uint64, error) {
	m := sizePattern.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return 0, fmt.Errorf("size %.40q: expected a number of bytes with an optional K, M or G (binary), such as 8, 64K or 1.5G", s)
	}
	tooLarge := fmt.Errorf("size %.40q: at most %d bytes (64 TiB)", s, uint64(MaxBytes))
	shift := map[string]uint{"": 0, "k": 10, "m": 20, "g": 30}[strings.ToLower(m[3])]
	// A whole number is exact. Only one with a point or an exponent is parsed as floating point, as nccl-tests does with all.
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

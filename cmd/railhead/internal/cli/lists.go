package cli

import (
	"fmt"
	"slices"
	"strings"
)

// List parses a comma-separated flag. A value may be given once only.
func List[T comparable](flag, text string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for part := range strings.SplitSeq(text, ",") {
		v, err := parse(part)
		if err != nil {
			return nil, Usagef("%s: %w", flag, err)
		}
		if slices.Contains(all, v) {
			return nil, Usagef("%s: %v is given twice", flag, v)
		}
		all = append(all, v)
	}
	return all, nil
}

// Count formats a number of things; what is the singular.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

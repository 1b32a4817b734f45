package models

import "strings"

// maxSuggestLen bounds the work on a mistyped name; no built-in name comes near it.
const maxSuggestLen = 64

// nearest returns the candidate that takes the fewest edits to reach from name, ignoring case, or "" where even that
// one would share less than half of its letters: a far-fetched suggestion is worse than none.
func nearest(name string, candidates []string) string {
	if len(name) > maxSuggestLen {
		return ""
	}
	name = strings.ToLower(name)
	best, bestDist := "", 0
	for _, c := range candidates {
		d := editDistance(name, strings.ToLower(c))
		if d <= len(c)/2 && (best == "" || d < bestDist) {
			best, bestDist = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions and replacements of bytes that turn a into b (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

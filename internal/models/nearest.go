package models

import "strings"

// maxSuggestLen is the longest name for which nearest searches. Built-in names are much shorter.
const maxSuggestLen = 64

// nearest returns the candidate with the smallest edit distance from name, ignoring case, or "" where that is more than half of
// the candidate's length: a wrong suggestion is worse than none.
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

// editDistance is the Levenshtein distance of a and b, in bytes.
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

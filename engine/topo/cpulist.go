package topo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPUs bounds CPU numbers: Linux supports at most 8192 CPUs.
const maxCPUs = 8192

// parseCPUList parses a list as in /sys: "0-3,8". The result is sorted and has no duplicates.
func parseCPUList(s string) ([]int, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	var has [maxCPUs]bool
	for _, part := range strings.Split(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || lo < 0 || hi < lo || hi >= maxCPUs {
			return nil, fmt.Errorf("%.40q is not a list of CPUs such as 0-3,8 below %d", s, maxCPUs)
		}
		for cpu := lo; cpu <= hi; cpu++ {
			has[cpu] = true
		}
	}
	var cpus []int
	for cpu, is := range has {
		if is {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// formatCPUList is the inverse of parseCPUList. The numbers are sorted.
func formatCPUList(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		end := i
		for end+1 < len(cpus) && cpus[end+1] == cpus[end]+1 {
			end++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if end > i {
			b.WriteString("-" + strconv.Itoa(cpus[end]))
		}
		i = end + 1
	}
	return b.String()
}

// parseCPUMask parses an affinity mask: hexadecimal words of 32 bits, most significant first, "00000000,0000ffff".
func parseCPUMask(s string) ([]int, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	words := strings.Split(s, ",")
	if len(words) > maxCPUs/32 {
		return nil, fmt.Errorf("affinity mask of %d words; at most %d are allowed", len(words), maxCPUs/32)
	}
	slices.Reverse(words)
	var cpus []int
	for i, w := range words {
		bits, err := strconv.ParseUint(strings.TrimPrefix(w, "0x"), 16, 32)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not an affinity mask such as 00000000,0000ffff", s)
		}
		for b := range 32 {
			if bits>>b&1 == 1 {
				cpus = append(cpus, 32*i+b)
			}
		}
	}
	return cpus, nil
}

// formatCPUMask is the inverse of parseCPUMask.
func formatCPUMask(cpus []int) string {
	top := 0
	for _, c := range cpus {
		top = max(top, c)
	}
	words := make([]uint32, top/32+1)
	for _, c := range cpus {
		words[c/32] |= 1 << (c % 32)
	}
	parts := make([]string, len(words))
	for i, w := range words {
		parts[len(words)-1-i] = fmt.Sprintf("%08x", w)
	}
	return strings.Join(parts, ",")
}

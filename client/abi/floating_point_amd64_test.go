package abi

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	member      = regexp.MustCompile(`(?m)^(\S+\.o):\s+file format`)
	instruction = regexp.MustCompile(`^\s*[0-9a-f]+:\s+([a-z]\S*)`)
	x87         = regexp.MustCompile(`^f`)
	// Arithmetic, comparisons and conversions of SSE and AVX.
	computing = regexp.MustCompile(`^v?(((add|sub|mul|div|min|max|sqrt|rcp|rsqrt|round|addsub|hadd|hsub|dp|cmp[a-z_]*|u?comi|fn?m(add|sub)\w*)(ss|sd|ps|pd))|cvt\w+)$`)
)

// floatingPoint disassembles a library, and returns the instructions that compute in floating point by the name of their object file, and
// those of the x87 unit.
func floatingPoint(t *testing.T, library string) (computes map[string][]string, ofX87 []string) {
	t.Helper()
	text, err := toolOutput("objdump", "-d", "--no-show-raw-insn", library)
	if err != nil {
		t.Fatal(err)
	}
	computes = map[string][]string{}
	object, instructions := "", 0
	for line := range strings.Lines(text) {
		if m := member.FindStringSubmatch(line); m != nil {
			object = m[1]
		}
		m := instruction.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		instructions++
		switch {
		case x87.MatchString(m[1]):
			ofX87 = append(ofX87, object+": "+strings.TrimSpace(line))
		case computing.MatchString(m[1]):
			computes[object] = append(computes[object], strings.TrimSpace(line))
		}
	}
	if instructions < 10000 {
		t.Fatalf("objdump shows only %d instructions of %s", instructions, library)
	}
	return computes, ofX87
}

// The calls that run kernels set MXCSR to its standard value. So the caller's environment changes nothing where no other code computes in
// floating point, on any thread, and nothing uses the x87 unit, which has an environment of its own. kernels/host/fp_environment.h relies
// on both.
func TestOnlyKernelsComputeInFloatingPointAndNothingUsesTheX87Unit(t *testing.T) {
	shared := sharedLibrary(t)
	static := filepath.Join(filepath.Dir(shared), "librailhead.a")
	computes, x87 := floatingPoint(t, static)
	_, linked := floatingPoint(t, shared)
	if all := append(x87, linked...); len(all) > 0 {
		t.Errorf("%d instructions of the x87 unit: %q", len(all), all[:min(len(all), 5)])
	}
	kernels := 0
	for object, lines := range computes {
		switch {
		case strings.Contains(object, "kernels_"):
			kernels += len(lines)
		case strings.Contains(object, "ep_config"):
			// static_scale in a message: converted in the standard environment.
			if slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(l, "cvtss2sd") }) {
				t.Errorf("%s computes: %q", object, lines)
			}
		default:
			t.Errorf("%s computes in floating point, in the caller's environment: %q", object, lines[:min(len(lines), 5)])
		}
	}
	if kernels < 1000 {
		t.Errorf("the kernels have only %d instructions that compute in floating point", kernels)
	}
}

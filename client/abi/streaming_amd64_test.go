package abi

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	function  = regexp.MustCompile(`^[0-9a-f]+ <(.+)>:`)
	streaming = regexp.MustCompile(`^v?movnt(dq|pd|ps|i|q)$`)
)

// Stores past the caches (kernels/host/ep_fan_out.h) are weakly ordered: only a fence makes them visible before a later release. A thread
// that sees the release would otherwise see old rows, for a few hundred nanoseconds, which no test can rely on. So this one reads the code:
// in a function with such stores a fence comes after the last one.
func TestStoresPastTheCachesAreFollowedByAFence(t *testing.T) {
	text, err := toolOutput("objdump", "-d", "--no-show-raw-insn", filepath.Join(filepath.Dir(sharedLibrary(t)), "librailhead.a"))
	if err != nil {
		t.Fatal(err)
	}
	var fenced, open []string
	name, at := "", "" // the function, and its last such store without a fence behind it
	end := func() {
		if at != "" {
			open = append(open, name+": "+at)
		}
		at = ""
	}
	for line := range strings.Lines(text) {
		if m := function.FindStringSubmatch(line); m != nil {
			end()
			name = m[1]
		}
		m := instruction.FindStringSubmatch(line)
		switch {
		case m == nil:
		case streaming.MatchString(m[1]):
			at = strings.TrimSpace(line)
		case at != "" && (m[1] == "sfence" || m[1] == "mfence"):
			fenced, at = append(fenced, name), ""
		}
	}
	end()
	if len(open) > 0 {
		t.Errorf("no fence behind %q", open)
	}
	if n := len(slices.Compact(fenced)); n < 3 {
		t.Errorf("%d functions store past the caches, %q; want one for each instruction set", n, fenced)
	}
}

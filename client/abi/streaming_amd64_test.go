package abi

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	heading   = regexp.MustCompile(`^[0-9a-f]+ <(.+)>:`)
	addressed = regexp.MustCompile(`^\s*([0-9a-f]+):\s+([a-z]\S*)(?:\s+([0-9a-f]+)\s<)?`)
	streaming = regexp.MustCompile(`^v?movnt(dq|pd|ps|i|q)$`)
)

// code is a function's instructions in the order of their addresses.
type code struct {
	name         string
	instructions []struct{ address, mnemonic, target string } // target: of a jump
}

// unfenced returns a store past the caches from which a return can be reached without a fence, "" if there is none, and the number of such
// stores.
func (c *code) unfenced() (at string, stores int) {
	index := map[string]int{}
	for i, in := range c.instructions {
		index[in.address] = i
	}
	for i, in := range c.instructions {
		if !streaming.MatchString(in.mnemonic) {
			continue
		}
		stores++
		seen := make([]bool, len(c.instructions)+1)
		if c.returns(i+1, index, seen) {
			at = in.address
		}
	}
	return at, stores
}

// returns says whether the code from instruction i on can leave the function before a fence.
func (c *code) returns(i int, index map[string]int, seen []bool) bool {
	for ; !seen[i]; i++ {
		seen[i] = true
		if i == len(c.instructions) {
			return true
		}
		switch in := c.instructions[i]; {
		case in.mnemonic == "sfence" || in.mnemonic == "mfence":
			return false
		case strings.HasPrefix(in.mnemonic, "ret"):
			return true
		case in.mnemonic[0] == 'j':
			to, inside := index[in.target]
			if !inside || c.returns(to, index, seen) {
				return true
			}
			if in.mnemonic == "jmp" {
				return false
			}
		}
	}
	return false
}

// Stores past the caches (kernels/host/ep_fan_out.h) are weakly ordered: only a fence makes them visible before a later release. A thread
// that sees the release would otherwise see old rows for some hundred nanoseconds, which no test can rely on. So this one follows the code:
// from such a store each way out of its function has a fence.
func TestStoresPastTheCachesAreFollowedByAFence(t *testing.T) {
	text, err := toolOutput("objdump", "-d", "--no-show-raw-insn", filepath.Join(filepath.Dir(sharedLibrary(t)), "librailhead.a"))
	if err != nil {
		t.Fatal(err)
	}
	with := map[string]bool{} // functions that store past the caches
	var c code
	check := func() {
		at, stores := c.unfenced()
		if at != "" {
			t.Errorf("%s returns after the store at %s without a fence", c.name, at)
		}
		if stores > 0 {
			with[c.name] = true
		}
	}
	for line := range strings.Lines(text) {
		if m := heading.FindStringSubmatch(line); m != nil {
			check()
			c = code{name: m[1]}
		} else if m := addressed.FindStringSubmatch(line); m != nil {
			c.instructions = append(c.instructions, struct{ address, mnemonic, target string }{m[1], m[2], m[3]})
		}
	}
	check()
	if len(with) < 3 {
		t.Errorf("%d functions store past the caches, %v; want one for each instruction set", len(with), with)
	}
}

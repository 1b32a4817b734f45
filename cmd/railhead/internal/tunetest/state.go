// Package tunetest is for tests of `railhead tune` only: a directory for tables and journals of this machine.
package tunetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/gpus"
)

// EntriesOfAll is how many entries a table of all collectives has for one world size: for each collective one for any memory, unless only
// one algorithm copies (all-to-all has one-shot), and one for windows, if it has a zero-copy algorithm (broadcast has none).
func EntriesOfAll() int {
	entries := 0
	for collective := range plan.Algorithms() {
		copying := 0
		for _, name := range plan.Interchangeable(collective) {
			if name == tuner.WindowAlgorithm {
				entries++
			} else {
				copying++
			}
		}
		if copying > 1 {
			entries++
		}
	}
	return entries
}

// State is the directory, and this machine's fingerprint, which its files are named after.
type State struct {
	Home        string // XDG_STATE_HOME
	Dir         string
	Fingerprint string
}

// New makes an empty directory.
func New(t *testing.T) State {
	t.Helper()
	g, err := gpus.ReadMachine()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	s := State{Home: home, Dir: filepath.Join(home, "railhead", "tune"), Fingerprint: g.Fingerprint()}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

// Journal is the path of the journal.
func (s State) Journal() string { return filepath.Join(s.Dir, s.Fingerprint+".journal") }

// Lines are the complete lines of the journal, none if there is no journal.
func (s State) Lines() []string {
	raw, _ := os.ReadFile(s.Journal())
	lines := strings.SplitAfter(string(raw), "\n")
	return lines[:len(lines)-1]
}

// Files lists the directory, without the fingerprint of each name.
func (s State) Files(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimPrefix(e.Name(), s.Fingerprint))
	}
	return names
}

// Table loads the saved table.
func (s State) Table(t *testing.T) *tuner.Table {
	t.Helper()
	table, err := tuner.LoadTable(s.Dir, s.Fingerprint, plan.Algorithms())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

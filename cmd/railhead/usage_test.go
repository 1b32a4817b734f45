package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
)

func TestWrongCommandLinesSayWhatToDoAndAreUsageErrors(t *testing.T) {
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"-g: GPUs a thread: Railhead has one rank a process: use --ranks":      {"bench", "allreduce", "-b", "8", "-g", "8"},
		"--ngpus: GPUs a thread: Railhead has one rank a process: use --ranks": {"bench", "alltoall", "--ngpus=8"},
		"-t: threads a process":                            {"bench", "barrier", "-t1"},
		"-m: operations a group call":                      {"bench", "allreduce", "-m", "4"},
		"-T: deadline in seconds: use --timeout":           {"bench", "allreduce", "-T", "30"},
		"-J: JSON file: use --json":                        {"bench", "allreduce", "-J", "x"},
		"unknown flag: --no-such; see `railhead bench":     {"bench", "allreduce", "--no-such"},
		"--plot " + dir + "/x.png: plots are SVG":          {"bench", "allreduce", "-b", "8", "-e", "8", "--plot", filepath.Join(dir, "x.png")},
		"--plot " + dir + "/x.PDF: plots are SVG":          {"bench", "moe", "--plot", filepath.Join(dir, "x.PDF")},
		"unknown command \"nosuch\"":                       {"help", "nosuch"},
		"unknown command \"bench nosuch\"":                 {"help", "bench", "nosuch"},
		"admin address \"0.0.0.0\"":                        {"serve", "--admin", "0.0.0.0", "--socket", dir + "/s"},
		"admin address \"0.0.0.0:1\": only a loopback":     {"serve", "--admin", "0.0.0.0:1", "--socket", dir + "/s"},
		"admin address \"127.0.0.1:x\": invalid port":      {"serve", "--admin", "127.0.0.1:x", "--socket", dir + "/s"},
		"unknown shell \"nosuch\"; available: bash, fish":  {"completion", "nosuch"},
		"--drain-timeout 0s is not above 0":                {"serve", "--drain-timeout", "0", "--socket", dir + "/s"},
		"no command to run; write it after --":             {"run", "--", ""},
		"topo: --json and --output svg exclude each other": {"topo", "--json", "--output", "svg"},
	} {
		status, stdout, stderr := railhead(t, nil, args...)
		if status != cli.Usage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, stdout %q, stderr %q, want %q", args, status, stdout, stderr, want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the refused commands left %v, %v", left, err)
	}
}

func TestHelpIsThatOfTheCommand(t *testing.T) {
	for _, args := range [][]string{nil, {"serve"}, {"bench"}, {"bench", "moe"}, {"bench", "allreduce"}, {"trace", "dump"}, {"certs", "node"}} {
		asked := append([]string{"help"}, args...)
		status, stdout, stderr := railhead(t, nil, asked...)
		_, want, _ := railhead(t, nil, append(args, "--help")...)
		if status != 0 || stdout != want || stderr != "" || len(want) < 100 {
			t.Errorf("%v: status %d, stderr %q, stdout %q, want %q", asked, status, stderr, stdout, want)
		}
	}
}

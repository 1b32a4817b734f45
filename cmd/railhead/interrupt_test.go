package main

import (
	"strings"
	"syscall"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/await"
)

func TestAnInterruptedRunSaysSoAndDoesNotCallResultsWrong(t *testing.T) {
	for _, c := range []struct {
		want string // on stdout
		args []string
	}{
		{"Out of bounds values : 0 INCOMPLETE", []string{"bench", "allreduce", "-n", "1000000"}},
		{"# Wrong elements : 0 INCOMPLETE", []string{"bench", "moe", "-n", "16384", "--tokens", "1024"}},
		{`"ok":false`, []string{"bench", "allreduce", "-n", "1000000", "--json"}},
		{"Railhead demo", []string{"demo", "--steps", "100000", "--ranks", "2"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			p := start(t, nil, c.args...)
			await.True(t, "the ranks run", func() bool { return len(children(p.cmd.Process.Pid)) == 2 })
			_ = p.cmd.Process.Signal(syscall.SIGINT)
			status := p.wait(t)
			out := p.stdout.String()
			if status != cli.Failed || !strings.Contains(out, c.want) || strings.Contains(out+p.stderr.String(), "FAILED") {
				t.Errorf("status %d, stdout %q, want %q", status, out, c.want)
			}
			if !strings.Contains(p.stderr.String(), "interrupt") {
				t.Errorf("stderr %q does not say that the run was interrupted", p.stderr.String())
			}
		})
	}
}

package main

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/cli"
	"railhead/server"
)

func TestAnAnswerThatIsTooLongIsAnError(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", server.AdminSocketBeside(filepath.Join(dir, "rh.sock")))
	if err != nil {
		t.Fatal(err)
	}
	daemon := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 64<<20+1))
	})}
	go func() { _ = daemon.Serve(l) }()
	t.Cleanup(func() { _ = daemon.Close() })
	for _, command := range [][]string{{"status"}, {"trace", "dump"}} {
		status, stdout, stderr := railhead(t, []string{"RAILHEAD_SOCKET=" + filepath.Join(dir, "rh.sock")}, command...)
		if status != cli.Failed || stdout != "" || !strings.Contains(stderr, "larger than 64 MiB; ask for less") {
			t.Errorf("%v: status %d, %d bytes on stdout, stderr %q", command, status, len(stdout), stderr)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

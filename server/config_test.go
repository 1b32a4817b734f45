package server

import (
	"strings"
	"testing"
)

func TestASocketPathMayHaveAllBytesOfAnAddress(t *testing.T) {
	dir := shortDir(t) + "/"
	longest := dir + strings.Repeat("s", MaxSocketPath-len(dir))
	s, err := Start(Config{SocketPath: longest, TuneDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s, err = Start(Config{SocketPath: longest + "s", TuneDir: t.TempDir()}); err == nil {
		s.Close()
		t.Error("a socket path that does not fit is not refused")
	}
}

package main

import (
	"strings"
	"testing"

	"railhead/server"
)

func TestGroupsFormAndAWrongJoinIsAnError(t *testing.T) {
	s, err := server.Start(server.Config{SocketPath: t.TempDir() + "/rh.sock", TuneDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := inParallel(20, 4, func(int) error { return connectAndClose(s.SocketPath()) }); err != nil {
		t.Error(err)
	}
	if err := form(s.SocketPath(), 2, 3); err != nil {
		t.Error(err)
	}
	if err := form(s.SocketPath(), 1, 65); err == nil || !strings.Contains(err.Error(), "65 ranks on this node") {
		t.Errorf("65 ranks: %v", err)
	}
}

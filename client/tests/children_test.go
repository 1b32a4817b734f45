package tests

import (
	"fmt"
	"testing"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/client/tests/harness"
	"railhead/internal/wire"
)

type child = harness.Child

// startChildren starts a daemon and a group of so many ranks. Each runs the test of that name, which must call childRank.
func startChildren(t *testing.T, test string, world int, env ...string) []child {
	t.Helper()
	return harness.StartChildren(t, startDaemon(t).SocketPath(), test, world, env...)
}

// childRank is a rank of startChildren's group with a stream. In other processes it skips the test.
func childRank(t *testing.T) onStreams {
	t.Helper()
	session, err := client.Connect(harness.SocketOfChild(t), patience)
	if err != nil {
		t.Fatal(err)
	}
	comm, err := session.Init(client.CommConfig{Group: "children", Rank: -1, World: -1, Timeout: patience, HeapBytes: 8 << 20, Device: threads.Kind()})
	if err != nil {
		t.Fatal(err)
	}
	return onStreams{member{comm, session}, newStream(t)}
}

// killDuringReplays waits until all children have printed "replays", and kills one of them.
func killDuringReplays(t *testing.T, children []child, victim int) {
	t.Helper()
	for _, c := range children {
		c.Line(t, "replays")
	}
	if err := children[victim].Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// wantNamed checks that a child's error is the death of the victim.
func wantNamed(t *testing.T, c child, children []child, victim int) {
	t.Helper()
	said := c.Line(t, "ended ")
	died := fmt.Sprintf("rank %d (pid %d) has died", victim, children[victim].Cmd.Process.Pid)
	if err := missing("a child", said, fmt.Sprint(wire.ResultRankDead), died); err != nil {
		t.Error(err)
	}
}

package programs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/wire"
	"railhead/server"
)

func TestSanitizersFindNothingWhileTheDaemonRestarts(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) {
		socket := t.TempDir() + "/rh.sock"
		binary := b.program(t, "c/restart_loop.cc")
		s, err := server.Start(server.Config{SocketPath: socket})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		program := command(t, socket, binary)
		in, err := program.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var words bytes.Buffer
		program.Stdout, program.Stderr = &words, &words
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "three ranks have joined", func() bool { return ranksThatCame(t, s, "loop") == 3 })
		for i := range 12 {
			time.Sleep(time.Duration(i*i%37) * time.Millisecond) // at any point of their loop
			s.Close()
			if s, err = server.Start(server.Config{SocketPath: socket}); err != nil {
				t.Fatal(err)
			}
		}
		_ = in.Close()
		if err := program.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &words)
		}
	}, asanBuild, tsanBuild)
}

// A child that was forked while there was no daemon must not keep its parent's lease or connection alive.
func TestTheDeathOfARankWithAForkedChildIsNoticed(t *testing.T) {
	socket := t.TempDir() + "/rh.sock"
	start := func() *server.Server {
		s, err := server.Start(server.Config{SocketPath: socket})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	first := start()
	program := command(t, socket, plainBuild.program(t, "c/fork_restart.c"))
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = program.Wait() })
	said := bufio.NewScanner(out)
	// hear waits for a line for each of the words. They may come in any order.
	hear := func(want ...string) {
		t.Helper()
		for range want {
			if !said.Scan() {
				t.Fatalf("the program ended before it printed one of %v: %v", want, said.Err())
			}
			if w := said.Text(); w != want[0] && w != want[len(want)-1] {
				t.Fatalf("the program printed %q, want one of %v", w, want)
			}
		}
	}

	session, err := client.Connect(first.SocketPath(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	comm, err := session.Init(client.CommConfig{Group: "forks", Rank: 0, World: 2, Timeout: patience, HeapBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	hear("joined")
	first.Close()
	if _, err := in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	start()
	if _, err := comm.AllocWindow(4096); err != nil {
		t.Fatal(err)
	}
	if err := comm.Barrier(); err != nil {
		t.Fatal(err)
	}
	hear("forked", "allocated")
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = comm.Barrier()
	}
	want := fmt.Sprintf("rank 1 (pid %d)", program.Process.Pid)
	if e := (*client.Error)(nil); !errors.As(err, &e) || e.Result != wire.ResultRankDead || !strings.Contains(e.Message, want) {
		t.Errorf("got %v, want rank_dead of %s", err, want)
	}
	if err := comm.Finalize(); err != nil {
		t.Error(err)
	}
}

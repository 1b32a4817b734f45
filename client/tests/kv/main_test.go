package kv

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"railhead/client"
	"railhead/server"
)

// proxyEnv makes a process of this binary the proxy of a daemon.
const proxyEnv = "RAILHEAD_TEST_PROXY=1"

const limit = 20 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv("RAILHEAD_TEST_PROXY") != "" {
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		if err := server.RunProxy(0, log); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func startDaemon(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.Start(server.Config{
		SocketPath: t.TempDir() + "/rh.sock", TuneDir: t.TempDir(), ProxyCommand: []string{"/proc/self/exe"}, ProxyEnv: []string{proxyEnv},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func connect(t testing.TB, s *server.Server) *client.Session {
	t.Helper()
	session, err := client.Connect(s.SocketPath(), limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// agent is an agent with a pool of blocks.
type agent struct {
	*client.KVAgent
	t      testing.TB
	memory []byte
	region client.KVRegion
	pool   client.KVCache
	kept   map[uint64]client.KVEvent
	others []client.KVEvent // of no operation
}

const (
	blockBytes = 4096
	granule    = 256
)

func join(t testing.TB, session *client.Session, name string, blocks int) *agent {
	t.Helper()
	a, err := session.KVAgent(name, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Destroy() })
	memory, region, err := a.Alloc(blocks * blockBytes)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := a.Pool(region, 0, blocks, blockBytes, granule)
	if err != nil {
		t.Fatal(err)
	}
	return &agent{a, t, memory, region, pool, map[uint64]client.KVEvent{}, nil}
}

func (a *agent) block(i int) []byte { return a.memory[i*blockBytes:][:blockBytes] }

// event waits for the end of an operation.
func (a *agent) end(id uint64) client.KVEvent {
	a.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		if e, there := a.kept[id]; there {
			delete(a.kept, id)
			return e
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("operation %#x does not end", id)
		}
		events, err := a.Poll(time.Second)
		if err != nil {
			a.t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == client.KVEnded {
				a.kept[e.ID] = e
			} else {
				a.others = append(a.others, e)
			}
		}
	}
}

// do makes a transfer.
func (a *agent) do(x client.KVTransfer) client.KVEvent {
	a.t.Helper()
	id, err := a.Submit(x)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.end(id)
}

func (a *agent) grant(blocks []uint32, rights client.KVRights, reader string) client.KVReference {
	a.t.Helper()
	ref, err := a.Grant(a.pool, blocks, rights, time.Minute, reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return ref
}

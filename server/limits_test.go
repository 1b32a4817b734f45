package server

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/await"
	"railhead/internal/wire"
)

// serveWithDescriptors starts a daemon process that may have so many descriptors open, and returns its socket's path too.
func serveWithDescriptors(t *testing.T, limit uint64) (*process, string) {
	t.Helper()
	daemon, socket := startChild(t), shortDir(t)+"/rh.sock"
	daemon.must(order{Do: "serve", Socket: socket, MaxFiles: limit})
	return daemon, socket
}

// descriptorsOf is what a process has open.
func descriptorsOf(t *testing.T, p *process) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestADaemonThatHasNoDescriptorsForAGroupSaysSoToItsRanksAndRecovers(t *testing.T) {
	t.Parallel()
	const limit = 64
	daemon, socket := serveWithDescriptors(t, limit)
	before := descriptorsOf(t, daemon)
	// A rank is a connection, a pidfd and a heap.
	small, large := 4, (limit-before)/2-1
	for _, world := range []int{small, large, small, large, small} {
		ranks := make([]*rawClient, world)
		for i := range ranks {
			ranks[i] = dialRaw(t, socket)
			ranks[i].hello()
			ranks[i].join("limited", i, world)
		}
		for i, r := range ranks {
			if world == small {
				r.takeMemory()
			} else if e := expect[*wire.Error](r); e.Code != wire.ResultOutOfMemory || !strings.Contains(e.Text.String(), "too many open files; raise the daemon's `ulimit -n`") {
				t.Errorf("rank %d of %d got %s: %s", i, world, e.Code, e.Text)
			}
		}
		for _, r := range ranks {
			r.close()
		}
		await.Until(t, func() string {
			if now := descriptorsOf(t, daemon); now != before {
				return fmt.Sprintf("after a group of %d, %d descriptors are open, %d were before", world, now, before)
			}
			return ""
		})
	}
}

func TestADaemonThatHasNoDescriptorsForConnectionsTakesThemLater(t *testing.T) {
	t.Parallel()
	const limit = 40
	daemon, socket := serveWithDescriptors(t, limit)
	before := descriptorsOf(t, daemon)
	crowd := make([]*rawClient, limit)
	for i := range crowd {
		crowd[i] = dialRaw(t, socket)
		crowd[i].sendHello(helloMessage())
	}
	await.Until(t, func() string {
		if now := descriptorsOf(t, daemon); now < limit-1 {
			return fmt.Sprintf("%d descriptors are open, want all %d", now, limit)
		}
		return ""
	})
	for _, r := range crowd {
		r.close()
	}
	await.Until(t, func() string {
		late := dialRaw(t, socket)
		defer late.close()
		late.sendHello(helloMessage())
		// Refused or not heard while those before it are still on their way out.
		if m, _, err := late.receive(); err != nil {
			return err.Error()
		} else if _, ok := m.(*wire.Welcome); !ok {
			return fmt.Sprintf("got %v", m)
		}
		late.sync()
		return ""
	})
	await.Until(t, func() string {
		if now := descriptorsOf(t, daemon); now != before {
			return fmt.Sprintf("%d descriptors are open, %d were before", now, before)
		}
		return ""
	})
}

// awaitFull returns when the daemon's descriptors have all been open for longer than it waits before it accepts another connection: connections
// have taken all, and none was free meanwhile because the daemon had just closed a file of its own.
func awaitFull(t *testing.T, daemon *process, limit int) {
	t.Helper()
	const longerThanAPause = 200 * time.Millisecond
	since := time.Now()
	await.Until(t, func() string {
		now := descriptorsOf(t, daemon)
		if now < limit {
			since = time.Now()
		}
		if time.Since(since) < longerThanAPause {
			return fmt.Sprintf("%d descriptors are open, want all %d for %v", now, limit, longerThanAPause)
		}
		return ""
	})
}

func TestARankWhoseMemoryTheDaemonHasNoDescriptorForEndsWithTheReason(t *testing.T) {
	t.Parallel()
	const limit = 64
	daemon, socket := serveWithDescriptors(t, limit)
	ranks := make([]*rawClient, 2)
	for i := range ranks {
		ranks[i] = dialRaw(t, socket)
		ranks[i].hello()
		ranks[i].join("full", i, len(ranks))
	}
	for _, r := range ranks {
		r.attach()
	}
	for _, r := range ranks {
		expect[*wire.GroupReady](r)
	}
	for range limit {
		dialRaw(t, socket) // the daemon waits some seconds for its Hello
	}
	awaitFull(t, daemon, limit)
	fd, err := unix.MemfdCreate("full", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	ranks[1].send(&wire.WindowAlloc{Group: ranks[1].joined.Group, Bytes: 4096, Memory: wire.MemoryCPU})
	if err := ranks[0].conn.Send(&wire.Register{Group: ranks[0].joined.Group, Bytes: 4096, Memory: wire.MemoryCPU}, wire.VersionMax, 99, fd); err != nil {
		t.Fatal(err)
	}
	e := expect[*wire.Error](ranks[1])
	if e.Code != wire.ResultRankDead || !strings.Contains(e.Text.String(), "no free descriptor for its memory: raise the daemon's `ulimit -n`") {
		t.Errorf("rank 1 got %s: %s", e.Code, e.Text)
	}
}

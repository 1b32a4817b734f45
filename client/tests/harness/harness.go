// Package harness is for tests of the client library: a daemon in the test's process, what it says of its groups, and whether
// anything was left behind. It trusts its callers, and must not be imported by anything but tests.
package harness

import (
	"os"
	"strings"
	"testing"
	"time"

	"railhead/server"
)

// Patience is far beyond what anything here takes on a busy machine: reaching it means a hang.
const Patience = 60 * time.Second

// StartDaemon starts a daemon that ends with the test.
func StartDaemon(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.Start(server.Config{SocketPath: t.TempDir() + "/rh.sock", TuneDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Eventually waits until f holds; what says what was waited for.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Resources is what the library may leak: descriptors, mappings of a group's memory, its control thread. Go's own threads
// have other names.
type Resources struct{ Descriptors, Mappings, Threads int }

// CountResources counts those of this process.
func CountResources(t testing.TB) (r Resources) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	r.Descriptors = len(fds)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	r.Mappings = strings.Count(string(maps), "/memfd:")
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		// A thread may end between the two looks.
		if name, err := os.ReadFile("/proc/self/task/" + task.Name() + "/comm"); err == nil && string(name) == "railhead\n" {
			r.Threads++
		}
	}
	return r
}

// NothingLeaks runs f and waits until everything is as it was before: the daemon lets go a moment after its clients.
func NothingLeaks(t testing.TB, f func()) {
	t.Helper()
	before := CountResources(t)
	Eventually(t, "what went before has ended", func() bool {
		last := before
		time.Sleep(5 * time.Millisecond)
		before = CountResources(t)
		return before == last
	})
	f()
	var now Resources
	defer func() {
		if now != before {
			t.Errorf("before %+v, afterwards %+v", before, now)
		}
	}()
	Eventually(t, "descriptors, mappings and threads as before", func() bool {
		now = CountResources(t)
		return now == before
	})
}

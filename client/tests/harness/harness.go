// Package harness is for tests of the client library: a daemon in the test's process, its view of groups, and a check for leaked
// resources. Only tests may import it.
package harness

import (
	"os"
	"strings"
	"testing"
	"time"

	"railhead/internal/await"
	"railhead/server"
)

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

// Resources counts what the library could leak: descriptors, mappings of memfds, control threads.
type Resources struct{ Descriptors, Mappings, Threads int }

// CountResources counts the resources of this process.
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
		// A thread may end after ReadDir. Only the library's threads have this name.
		if name, err := os.ReadFile("/proc/self/task/" + task.Name() + "/comm"); err == nil && string(name) == "railhead\n" {
			r.Threads++
		}
	}
	return r
}

// NothingLeaks runs f and waits until the resources are the same as before. The daemon releases its own a moment after its clients.
func NothingLeaks(t testing.TB, f func()) {
	t.Helper()
	before := CountResources(t)
	await.True(t, "resources of earlier tests are released", func() bool {
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
	await.True(t, "descriptors, mappings and threads as before", func() bool {
		now = CountResources(t)
		return now == before
	})
}

package server

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"railhead/internal/await"
)

// childVariable makes a process of this test binary a child of a test (child_test.go): some ranks must really die.
const childVariable = "RAILHEAD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		runChild()
		return
	}
	if err := flag.Set("test.parallel", "8"); err != nil { // tests wait for deadlines more than they compute
		panic(err)
	}
	code := m.Run()
	if left := awaitNothingLeft(); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "after all tests:", left)
		code = 1
	}
	os.Exit(code)
}

// awaitNothingLeft waits until this process holds nothing of any daemon. After patience it returns what is left.
func awaitNothingLeft() string {
	for deadline := time.Now().Add(await.Patience); ; {
		left := whatIsLeft()
		if left == "" || time.Now().After(deadline) {
			return left
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func whatIsLeft() string {
	if g := goroutinesOfDaemons(); len(g) > 0 {
		return fmt.Sprintf("%d goroutines of a daemon are left, one of them:\n%s", len(g), g[0])
	}
	for _, kind := range []string{"memfd:railhead", "[pidfd]"} {
		if fds := descriptors(kind); len(fds) > 0 {
			return fmt.Sprintf("descriptors are left: %v", fds)
		}
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil && bytes.Contains(maps, []byte("memfd:railhead-control")) {
		return "a control segment is still mapped"
	}
	return ""
}

// goroutinesOfDaemons returns the stacks that have a method of the daemon's packages.
func goroutinesOfDaemons() (out []string) {
	for _, p := range []string{"", "/session", "/group", "/admin", "/metrics"} {
		out = append(out, goroutinesOf("railhead/server"+p+".(*")...)
	}
	return out
}

// goroutinesOf returns the stacks that have a function whose name begins so.
func goroutinesOf(prefix string) []string {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	var out []string
	for stack := range strings.SplitSeq(string(bytes.TrimRight(buf, "\x00")), "\n\n") {
		if strings.Contains(stack, "\n"+prefix) {
			out = append(out, stack)
		}
	}
	return out
}

// descriptors are those of this process whose link in /proc contains kind.
func descriptors(kind string) []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, e := range entries {
		if link, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.Contains(link, kind) {
			out = append(out, e.Name()+" "+link)
		}
	}
	return out
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func threads(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

package abi

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	_ "railhead/client" // which librarybuild.Link links
	"railhead/internal/librarybuild"
	"railhead/server"
)

// root is the top of the repository, where the Makefile's paths begin.
const root = "../.."

// libraryDir holds librailhead.so, a link with its soname, and librailhead.a. They are linked once for all tests.
var libraryDir string

var linkLibrary = sync.OnceValue(func() error { return librarybuild.Link(root, libraryDir) })

func TestMain(m *testing.M) {
	if os.Getenv(proxyEnv) != "" {
		if err := server.RunProxy(0, slog.New(slog.DiscardHandler)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	var err error
	if libraryDir, err = os.MkdirTemp("", "railhead-abi"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(libraryDir)
	os.Exit(code)
}

// sharedLibrary links both libraries without make and returns the path of the shared one.
func sharedLibrary(t *testing.T) string {
	t.Helper()
	noteSources(t)
	if err := linkLibrary(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(libraryDir, "librailhead.so")
}

// tool runs a program of the tool chain at the top of the repository.
func tool(name string, arguments ...string) error {
	_, err := toolOutput(name, arguments...)
	return err
}

func toolOutput(name string, arguments ...string) (string, error) {
	return librarybuild.Tool(root, name, arguments...)
}

func noteSources(t *testing.T) {
	t.Helper()
	if err := librarybuild.NoteSources(root, "client/tests/programs/c/*", "client/abi/testdata/*"); err != nil {
		t.Fatal(err)
	}
}

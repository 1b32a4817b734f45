package abi

import (
	"fmt"
	"path/filepath"
	"testing"

	"railhead/server"
)

// sharedLink and staticLink are the linker's arguments for either library.
func sharedLink() []string {
	return []string{"-L" + libraryDir, "-lrailhead", "-Wl,-rpath," + libraryDir}
}

func staticLink() []string { return []string{filepath.Join(libraryDir, "librailhead.a"), "-pthread"} }

// program compiles a C program with the C compiler and returns the binary's path. source is relative to the top of the repository.
func program(t *testing.T, source string, link ...string) string {
	t.Helper()
	sharedLibrary(t)
	binary := filepath.Join(t.TempDir(), "program")
	compile := []string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-Iclient/include", "-Iclient/tests/programs/c", source, "-o", binary, "-pthread"}
	if err := tool("gcc", append(compile, link...)...); err != nil {
		t.Fatal(err)
	}
	return binary
}

// checkNoDaemon runs testdata/no_daemon.c.
func checkNoDaemon(t *testing.T, binary string) {
	t.Helper()
	out, err := toolOutput(binary, filepath.Join(t.TempDir(), "nothing.sock"))
	if err != nil {
		t.Fatal(err)
	}
	v := readHeader(t, headerFolder).version
	if want := fmt.Sprintf("%d no_daemon\n", v[0]*10000+v[1]*100+v[2]); out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
}

// proxyEnv makes a process of this binary the proxy of a daemon.
const proxyEnv = "RAILHEAD_TEST_PROXY"

// startDaemon starts a daemon and sets RAILHEAD_SOCKET for the programs.
func startDaemon(t *testing.T) {
	t.Helper()
	s, err := server.Start(server.Config{
		SocketPath: t.TempDir() + "/rh.sock", ProxyCommand: []string{"/proc/self/exe"}, ProxyEnv: []string{proxyEnv + "=1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	t.Setenv("RAILHEAD_SOCKET", s.SocketPath())
}

func TestAProgramOfEitherLibraryReportsAMissingDaemon(t *testing.T) {
	sharedLibrary(t)
	checkNoDaemon(t, program(t, "client/abi/testdata/no_daemon.c", sharedLink()...))
	checkNoDaemon(t, program(t, "client/abi/testdata/no_daemon.c", staticLink()...))
}

func TestTwoRanksOfEitherLibraryAllReduce(t *testing.T) {
	startDaemon(t)
	for _, link := range [][]string{sharedLink(), staticLink()} {
		if _, err := toolOutput(program(t, "client/tests/programs/c/two_ranks.c", link...)); err != nil {
			t.Error(err)
		}
	}
}

func TestAProgramMayUnloadTheLibraryWhileItsControlThreadRuns(t *testing.T) {
	startDaemon(t)
	if _, err := toolOutput(program(t, "client/abi/testdata/unload.c", "-ldl"), sharedLibrary(t)); err != nil {
		t.Error(err)
	}
}

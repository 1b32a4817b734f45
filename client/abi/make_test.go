package abi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"railhead/internal/deep"
)

// requireMake is set by CI: there a missing make or pkg-config fails the tests.
const requireMake = "RAILHEAD_REQUIRE_MAKE"

// needTools skips the test on a machine without make or pkg-config, unless requireMake is set.
func needTools(t *testing.T) {
	t.Helper()
	for _, name := range []string{"make", "pkg-config"} {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if os.Getenv(requireMake) != "" {
			t.Fatalf("no %s, and %s is set", name, requireMake)
		}
		t.Skipf("no %s: the Makefile is not tested on this machine", name)
	}
}

// makeAndInstall builds and installs into temporary folders, and returns the staging folder and that of the build.
func makeAndInstall(t *testing.T, arguments ...string) (stage, build string) {
	t.Helper()
	noteSources(t)
	stage, build = t.TempDir(), t.TempDir()
	arguments = append([]string{fmt.Sprintf("-j%d", runtime.NumCPU()), "BUILD=" + build, "CXXFLAGS=-O1", "DESTDIR=" + stage}, arguments...)
	if err := tool("make", append(arguments, "lib")...); err != nil {
		t.Fatal(err)
	}
	if err := tool("make", append(arguments, "install")...); err != nil {
		t.Fatal(err)
	}
	return stage, build
}

func pkgConfig(t *testing.T, arguments ...string) []string {
	t.Helper()
	out, err := toolOutput("pkg-config", append(arguments, "railhead")...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(out)
}

func installedFiles(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestMakeInstallsALibraryThatPkgConfigFinds(t *testing.T) {
	deep.Only(t)
	needTools(t)
	const prefix, lib = "/opt/railhead", "/opt/railhead/lib64"
	stage, build := makeAndInstall(t, "PREFIX="+prefix, "LIBDIR="+lib)
	h := readHeader(t, headerFolder)
	v := fmt.Sprintf("%d.%d.%d", h.version[0], h.version[1], h.version[2])
	want := []string{
		prefix + "/include/railhead.h", prefix + "/include/railhead_ep.h", prefix + "/include/railhead_kv.h", lib + "/librailhead.a", lib + "/librailhead.so", lib + "/" + h.soname(), lib + "/librailhead.so." + v,
		lib + "/pkgconfig/railhead.pc",
	}
	if got := installedFiles(t, stage); !slices.Equal(got, want) {
		t.Errorf("installed %q, want %q", got, want)
	}
	if got, want := exportedSymbols(t, stage+lib+"/librailhead.so"), exportedSymbols(t, sharedLibrary(t)); !slices.Equal(got, want) {
		t.Errorf("make's library exports %v, want %v", got, want)
	}
	checkSharedSymbols(t, func(source string) string { // -O1 inlines less than what Go has built
		return build + "/objects" + strings.TrimSuffix(strings.TrimPrefix(source, "client"), ".cc") + ".o"
	})

	t.Setenv("PKG_CONFIG_LIBDIR", stage+lib+"/pkgconfig")
	t.Setenv("PKG_CONFIG_SYSROOT_DIR", stage)
	if got := pkgConfig(t, "--modversion"); !slices.Equal(got, []string{v}) {
		t.Errorf("pkg-config has version %q, railhead.h %s", got, v)
	}
	source := "client/abi/testdata/no_daemon.c"
	shared := append(pkgConfig(t, "--cflags", "--libs"), "-Wl,-rpath,"+stage+lib)
	static := pkgConfig(t, "--static", "--cflags", "--libs")
	i := slices.Index(static, "-lrailhead")
	if i < 0 {
		t.Fatalf("pkg-config --static gives %q", static)
	}
	static[i] = "-l:librailhead.a" // with -lrailhead the linker takes the shared library
	for _, link := range [][]string{shared, static} {
		binary := filepath.Join(t.TempDir(), "program")
		if err := tool("gcc", append([]string{"-std=c11", source, "-o", binary}, link...)...); err != nil {
			t.Fatal(err)
		}
		checkNoDaemon(t, binary)
	}
}

func TestMakeCleanRemovesWhatMakeLibMade(t *testing.T) {
	needTools(t)
	build := t.TempDir() + "/build"
	if err := tool("make", "BUILD="+build, build+"/railhead.pc"); err != nil {
		t.Fatal(err)
	}
	if len(installedFiles(t, build)) == 0 {
		t.Error("make made nothing")
	}
	if err := tool("make", "BUILD="+build, "clean"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(build); !os.IsNotExist(err) {
		t.Errorf("%s after make clean: %v", build, err)
	}
}

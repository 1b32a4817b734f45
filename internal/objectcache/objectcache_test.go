package objectcache

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// compileAndRun compiles value.cc, which includes value.h, and returns the number that the program prints, as its exit status.
func compileAndRun(t *testing.T, dir string, flags ...string) int {
	t.Helper()
	if err := Compile(dir, "g++", flags, "value.cc", "value.o"); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("g++", dir+"/value.o", "-o", dir+"/value").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command(dir + "/value")
	_ = c.Run()
	return c.ProcessState.ExitCode()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// loggingCompiler is a compiler that notes each compilation in a file, and returns how many there were.
func loggingCompiler(t *testing.T) (compiler string, compilations func() int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	compiler = filepath.Join(t.TempDir(), "compiler")
	write(t, compiler, "#!/bin/sh\ncase \" $* \" in *' -c '*) echo >>"+log+" ;; esac\nexec g++ \"$@\"\n")
	if err := os.Chmod(compiler, 0o700); err != nil {
		t.Fatal(err)
	}
	return compiler, func() int {
		b, _ := os.ReadFile(log) // not there: none
		return strings.Count(string(b), "\n")
	}
}

func TestAChangedHeaderOrFlagGivesAnotherObject(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/value.cc", "#include \"value.h\"\n#ifndef ADDED\n#define ADDED 0\n#endif\nint main() { return VALUE + ADDED; }\n")
	for _, value := range []string{"3", "4", "3"} {
		write(t, dir+"/value.h", "#define VALUE "+value+"\n")
		if got := compileAndRun(t, dir); got != int(value[0]-'0') {
			t.Errorf("VALUE %s: the program has %d", value, got)
		}
	}
	if got := compileAndRun(t, dir, "-DADDED=5"); got != 8 {
		t.Errorf("-DADDED=5: the program has %d, not 8", got)
	}
}

func TestWhatWasCompiledIsNotCompiledAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/value.cc", "int main() { return 7; }\n")
	compiler, compilations := loggingCompiler(t)
	for range 2 {
		if err := Compile(dir, compiler, nil, "value.cc", dir+"/value.o"); err != nil {
			t.Fatal(err)
		}
	}
	if n := compilations(); n != 1 {
		t.Errorf("%d compilations, not 1", n)
	}
}

func TestASourceThatIncludesBinaryFilesIsCompiledEachTime(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/data", "x")
	write(t, dir+"/value.cc", "__asm__(\".incbin \\\"data\\\"\");\n")
	compiler, compilations := loggingCompiler(t)
	for range 2 {
		if err := Compile(dir, compiler, nil, "value.cc", dir+"/value.o"); err != nil {
			t.Fatal(err)
		}
	}
	if n := compilations(); n != 2 {
		t.Errorf("%d compilations, not 2: the preprocessor does not see that file", n)
	}
}

func TestAnErrorOfTheCompilerIsReportedEachTime(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/value.cc", "int main() { return nothing; }\n")
	for range 2 {
		if err := Compile(dir, "g++", nil, "value.cc", "value.o"); err == nil || !strings.Contains(err.Error(), "nothing") {
			t.Errorf("error %v does not name the undeclared name", err)
		}
	}
}

func TestObjectsThatAreNotUsedAreRemoved(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{"old.o": keep + time.Hour, "new.o": time.Hour} {
		write(t, filepath.Join(dir, name), "")
		if err := os.Chtimes(filepath.Join(dir, name), now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeOld(dir, now.Add(-keep)); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(dir + "/*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "new.o" {
		t.Errorf("left %v, %v: want new.o only", left, err)
	}
}

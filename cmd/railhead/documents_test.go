package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"railhead/internal/await"
	"railhead/internal/deep"
)

const repository = "../.."

// typed is a command of a document, as a reader types it.
type typed struct {
	document string
	line     int
	text     string
}

var (
	comment = regexp.MustCompile(`\s{2,}#.*$`)
	fence   = regexp.MustCompile("^```(.*)$")
	// The shell's message about a command that does not exist. The status does not tell: in <(...) it is lost.
	notFound = regexp.MustCompile(`(?m)^bash: .*: (command not found|No such file or directory)$`)
)

// commandsOf returns the commands of a document: the lines of indented blocks, and of fenced ones without a language or for a shell. A
// block whose first line is in noCommands is left out, and its first line returned in others.
func commandsOf(t *testing.T, document string) (commands []typed, others []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(repository, document))
	if err != nil {
		t.Fatal(err)
	}
	fenced, language, block, left := false, "", false, false
	blank := true
	for i, line := range strings.Split(string(raw), "\n") {
		if m := fence.FindStringSubmatch(line); m != nil {
			fenced, language, block, blank = !fenced, m[1], false, false
			continue
		}
		code := strings.HasPrefix(line, "    ") && (block || blank) // a block begins after an empty line
		if fenced {
			code = language == "" || language == "sh"
		}
		if blank = strings.TrimSpace(line) == ""; blank {
			block = block && fenced
			continue
		}
		first := !block
		if block = code; !code {
			continue
		}
		text := comment.ReplaceAllString(strings.TrimPrefix(line, "    "), "")
		if first {
			_, left = noCommands[strings.TrimSpace(line)]
			if left {
				others = append(others, strings.TrimSpace(line))
			}
		}
		if left {
			continue
		}
		// A quotation that is not closed goes on in the next line.
		if n := len(commands) - 1; !first && n >= 0 && strings.Count(commands[n].text, "'")%2 == 1 {
			commands[n].text += "\n" + text
			continue
		}
		commands = append(commands, typed{document, i + 1, text})
	}
	return commands, others
}

func documents(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(repository, "docs/*.md"))
	if err != nil || len(found) < 8 {
		t.Fatalf("documents: %v, %v", found, err)
	}
	names := []string{"README.md"}
	for _, path := range found {
		names = append(names, "docs/"+filepath.Base(path))
	}
	return names
}

func TestTheTablesNameOnlyWhatIsInTheDocuments(t *testing.T) {
	var commands, others []string
	for _, document := range documents(t) {
		c, o := commandsOf(t, document)
		for _, command := range c {
			commands = append(commands, command.text)
		}
		others = append(others, o...)
	}
	if len(commands) < 30 {
		t.Errorf("only %d commands in the documents: %q", len(commands), commands)
	}
	for text := range exceptions {
		if !slices.Contains(commands, text) {
			t.Errorf("no document has the command %q", text)
		}
	}
	for text := range noCommands {
		if !slices.Contains(others, text) {
			t.Errorf("no document has a block that begins with %q", text)
		}
	}
}

// Every command of the documents, in a clean clone. `railhead` is this test binary where the document does not build it. It is also what
// `go build` and `go run` would make: they would compile the library again, for the clone. That a clean clone builds, CI shows: it is one.
func TestTheCommandsOfTheDocumentsRunAsTypedAndLeaveTheCloneClean(t *testing.T) {
	if _, err := os.Stat(filepath.Join(repository, ".git")); err != nil {
		if os.Getenv("RAILHEAD_REQUIRE_CLONE") != "" {
			t.Fatal("this is no clone:", err)
		}
		t.Skip("this is no clone:", err)
	}
	clone := cleanClone(t)
	bin := replacements(t)
	for _, document := range documents(t) {
		commands, _ := commandsOf(t, document)
		if len(commands) == 0 {
			continue
		}
		t.Run(filepath.Base(document), func(t *testing.T) {
			shell := startShell(t, clone, bin)
			for _, command := range before[document] {
				shell.mustRun(t, command)
			}
			for _, c := range commands {
				t.Run(strconv.Itoa(c.line), func(t *testing.T) {
					how := exceptions[c.text]
					switch {
					case shell.stuck:
						t.Fatalf("%s: not run: an earlier command of %s has not ended", c.text, c.document)
					case how.never != "":
						t.Skipf("%s: not run: %s", c.text, how.never)
					case how.deep != "" && !deep.On(t):
						t.Skipf("%s: only in the deep run, with %s=1: %s", c.text, deep.Variable, how.deep)
					}
					began := time.Now()
					run := cmp.Or(how.shorter, c.text)
					status, output := shell.run(t, run)
					if status != 0 && (how.mayFail == "" || !regexp.MustCompile(how.mayFail).MatchString(output)) {
						t.Errorf("%s:%d: %s\nstatus %d\n%s", c.document, c.line, run, status, output)
					}
					if missing := notFound.FindString(output); missing != "" {
						t.Errorf("%s:%d: %s\n%s", c.document, c.line, c.text, missing)
					}
					if how.ready != "" {
						shell.mustRun(t, how.ready)
					}
					if changed := git(t, clone, "status", "--porcelain"); changed != "" {
						t.Errorf("%s:%d: %s\nleaves\n%s", c.document, c.line, run, changed)
					}
					t.Logf("%.1f s: %s", time.Since(began).Seconds(), run)
				})
			}
		})
	}
}

// cleanClone clones the repository, with what is changed and not yet committed, and adds the files that a reader has.
func cleanClone(t *testing.T) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "railhead")
	git(t, repository, "clone", "-q", "--shared", ".", clone)
	if diff := git(t, repository, "diff", "--binary", "HEAD"); diff != "" {
		apply := exec.Command("git", "-C", clone, "apply", "--index")
		apply.Stdin = strings.NewReader(diff)
		if out, err := apply.CombinedOutput(); err != nil {
			t.Fatalf("git apply: %v: %s", err, out)
		}
		git(t, clone, "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-q", "-m", "not committed")
	}
	var names []string
	for name, content := range readersFiles(t) {
		if err := os.WriteFile(filepath.Join(clone, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		names = append(names, "/"+name+"\n")
	}
	if err := os.WriteFile(filepath.Join(clone, ".git/info/exclude"), []byte(strings.Join(names, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	return clone
}

func git(t *testing.T, dir string, arguments ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, arguments...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(arguments, " "), err, &stderr)
	}
	return string(out)
}

// replacements returns a folder for the front of PATH, with what is run in place of `railhead` and `go`.
func replacements(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	real, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	scripts := map[string]string{
		"railhead": fmt.Sprintf("%s=1 exec %s \"$@\"", asCLI, self),
		"go": fmt.Sprintf(`case "$1 $2 $3" in
"run ./cmd/railhead "*) shift 2; exec %[1]s/railhead "$@" ;;
"build -o build/railhead") mkdir -p build; exec cp %[1]s/railhead build/railhead ;;
esac
exec %[2]s "$@"`, bin, real),
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// shell is a reader's: what one command exports or starts in the background is there for the next.
type shell struct {
	in  io.Writer
	out chan string // lines

	stuck bool // a command has not ended in time
}

func startShell(t *testing.T, dir, bin string) *shell {
	t.Helper()
	home := t.TempDir()
	socket, err := os.MkdirTemp("", "rh-doc-") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(socket) })
	cmd := exec.Command("bash")
	cmd.Dir = dir
	caches, err := exec.Command("go", "env", "GOCACHE", "GOPATH").Output()
	paths := strings.Fields(string(caches))
	if err != nil || len(paths) != 2 {
		t.Fatalf("go env: %v: %s", err, caches)
	}
	// make compiles without optimization: nothing here measures its library. As in client/tests/programs, the processor must have AVX2.
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+home, "XDG_RUNTIME_DIR="+socket, "XDG_STATE_HOME="+home+"/state",
		"GOCACHE="+paths[0], "GOPATH="+paths[1], "RAILHEAD_ADMIN=127.0.0.1:0", "CXXFLAGS=-O0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	s := &shell{in: in, out: make(chan string, 64)}
	go func() {
		defer close(s.out)
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			s.out <- line
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // the daemon cleans up
		_ = in.Close()
		end := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		for range s.out { // until no process holds the pipe
		}
		end.Stop()
		_ = cmd.Wait()
		_ = r.Close()
	})
	return s
}

const mark = "exit status of the command: "

// run runs a command and returns its exit status and what was printed meanwhile, on both streams.
func (s *shell) run(t *testing.T, command string) (status int, output string) {
	t.Helper()
	ctx, cancel := await.Child(t)
	defer cancel()
	if _, err := fmt.Fprintf(s.in, "{ %s\n} </dev/null; echo \"%s$?\"\n", command, mark); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for {
		select {
		case line, open := <-s.out:
			if !open {
				s.stuck = true
				t.Fatalf("the shell has ended: %s\n%s", command, &all)
			}
			if before, after, found := strings.Cut(line, mark); found {
				all.WriteString(before)
				status, err := strconv.Atoi(strings.TrimSpace(after))
				if err != nil {
					t.Fatal(err)
				}
				return status, all.String()
			}
			all.WriteString(line)
		case <-ctx.Done():
			s.stuck = true
			t.Fatalf("%s: not done when the time of the tests ends\n%s", command, &all)
		}
	}
}

func (s *shell) mustRun(t *testing.T, command string) {
	t.Helper()
	if status, output := s.run(t, command); status != 0 {
		t.Fatalf("%s: status %d\n%s", command, status, output)
	}
}

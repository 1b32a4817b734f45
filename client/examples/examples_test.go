package examples_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	_ "railhead/client" // which librarybuild.Link links
	"railhead/internal/launch"
	"railhead/internal/librarybuild"
	"railhead/server"
)

const root = "../.." // the top of the repository

// binaries is the folder of the built examples: binaries/all_reduce is built from c/all_reduce.c.
var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "railhead-examples")
	if err == nil {
		binaries = dir
		err = build(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// build makes the library and every example. Warnings are errors.
func build(dir string) error {
	err := librarybuild.NoteSources(root, "client/*.go", "internal/wire/*.go", "kernels/*.go",
		"client/examples/c/*", "client/examples/cpp/*", "client/examples/go/*/*")
	if err != nil {
		return err
	}
	if err := librarybuild.Link(root, dir); err != nil {
		return err
	}
	for _, source := range examples() {
		name, arguments := "go", []string{"build", "-o", binary(source), "./client/examples/" + source}
		if filepath.Ext(source) != "" {
			name, arguments = "gcc", []string{"-std=c11"}
			if filepath.Ext(source) == ".cc" {
				name, arguments = "g++", []string{"-std=c++17"}
			}
			arguments = append(arguments, "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-Iclient/include", "client/examples/"+source,
				filepath.Join(dir, "librailhead.a"), "-pthread", "-o", binary(source))
		}
		if _, err := librarybuild.Tool(root, name, arguments...); err != nil {
			return err
		}
	}
	return nil
}

// examples returns the path of every example: a source file, or for Go a folder.
func examples() (all []string) {
	for _, pattern := range []string{"c/*.c", "cpp/*.cc", "go/*"} {
		paths, _ := filepath.Glob(pattern) // fails only for a malformed pattern
		all = append(all, paths...)
	}
	return all
}

func binary(source string) string {
	base := filepath.Base(source)
	return filepath.Join(binaries, strings.TrimSuffix(base, filepath.Ext(base)))
}

// run runs an example as the ranks of a group. It returns how the ranks ended, and the lines they printed, sorted and prefixed with the
// rank.
func run(t *testing.T, source string, ranks int, socket string) (launch.Result, []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), librarybuild.Patience)
	defer cancel()
	var out bytes.Buffer
	result, err := launch.Run(ctx, launch.Spec{
		N: ranks, Argv: []string{binary(source)}, Env: append(os.Environ(), "RAILHEAD_SOCKET="+socket, "RAILHEAD_GROUP=example", "RAILHEAD_TIMEOUT_MS=60000"),
		Stdout: &out, Stderr: &out, Prefix: true, Grace: librarybuild.Patience,
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", source, err, &out)
	}
	return result, slices.Sorted(strings.Lines(out.String()))
}

func daemon(t *testing.T) string {
	t.Helper()
	s, err := server.Start(server.Config{SocketPath: filepath.Join(t.TempDir(), "rh.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.SocketPath()
}

// printed is what each example prints with four ranks: the line, in which %d is the rank, and the ranks that print it.
var printed = map[string]struct {
	line  string
	ranks []int
}{
	"c/all_reduce.c":      {"[%d] rank %[1]d of 4: the sum begins with 6, 10, 14\n", []int{0, 1, 2, 3}},
	"c/tensor_parallel.c": {"[%d] rank %[1]d of 4: 65536 rows are right, added up by pull\n", []int{0, 1, 2, 3}},
	"c/rank_failure.c": {
		"[%d] all 6 steps are right, the last as rank %[1]d of 3\n[%[1]d] rank %[1]d: rank 3 died\n", []int{0, 1, 2},
	},
	"cpp/pipeline.cc": {"[%d] 8 batches went through 2 stages of 2 ranks\n", []int{2, 3}},
	"go/allgather":    {"[%d] rank %[1]d of 4: token 765 of 4000\n", []int{0, 1, 2, 3}},
}

func TestEveryExamplePrintsTheRightResultOnFourRanks(t *testing.T) {
	for _, source := range examples() {
		t.Run(source, func(t *testing.T) {
			result, lines := run(t, source, 4, daemon(t))
			want := ""
			for _, rank := range printed[source].ranks {
				want += fmt.Sprintf(printed[source].line, rank)
			}
			if got := strings.Join(lines, ""); want == "" || got != want {
				t.Errorf("printed\n%swant\n%s", got, want)
			}
			for rank, e := range result.Exits {
				if source == "c/rank_failure.c" && rank == 3 {
					if e.Signal != syscall.SIGKILL {
						t.Errorf("rank 3 did not end by SIGKILL: %s", e)
					}
				} else if e.Failed() {
					t.Errorf("rank %d: %s", rank, e)
				}
			}
		})
	}
}

func TestEveryExampleFailsWithoutADaemonAndSaysWhatToDo(t *testing.T) {
	for _, source := range examples() {
		result, lines := run(t, source, 1, filepath.Join(t.TempDir(), "nothing.sock"))
		if result.ExitStatus() != 1 || !strings.Contains(strings.Join(lines, ""), "start `railhead serve`") {
			t.Errorf("%s: exit status %d, printed %q", source, result.ExitStatus(), lines)
		}
	}
}

func TestThePipelineRefusesAnOddNumberOfRanks(t *testing.T) {
	result, lines := run(t, "cpp/pipeline.cc", 3, daemon(t))
	if result.ExitStatus() != 1 || !strings.Contains(strings.Join(lines, ""), "must be even") {
		t.Errorf("exit status %d, printed %q", result.ExitStatus(), lines)
	}
}

func TestTheReadmeListsEveryExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range examples() {
		if !strings.Contains(string(readme), "]("+source+")") {
			t.Errorf("README.md has no link to %s", source)
		}
	}
}

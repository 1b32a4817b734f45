package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLinesOfBothStreamsCarryTheRank(t *testing.T) {
	out, errs := newSink(t), newSink(t)
	mustRun(t, Spec{N: 3, Argv: sh(`echo out $RANK; echo err $RANK >&2; printf last`), Stdout: out, Stderr: errs, Prefix: true})
	for rank := range 3 {
		for _, want := range []string{fmt.Sprintf("[%d] out %d\n", rank, rank), fmt.Sprintf("[%d] last\n", rank)} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("stdout %q lacks %q", out, want)
			}
		}
		if want := fmt.Sprintf("[%d] err %d\n", rank, rank); !strings.Contains(errs.String(), want) {
			t.Errorf("stderr %q lacks %q", errs, want)
		}
	}
}

func TestLinesOfManyRanksNeverMix(t *testing.T) {
	const ranks, lines = 8, 300
	both := newSink(t) // stdout and stderr into one writer
	// Each line leaves the rank in two writes, and the two streams alternate.
	mustRun(t, Spec{N: ranks, Stdout: both, Stderr: both, Argv: sh(fmt.Sprintf(
		`i=0; while [ $i -lt %d ]; do printf "rank $RANK "; echo "line $i."; printf "rank $RANK " >&2; echo "error $i." >&2; i=$((i+1)); done`, lines))})
	got := strings.Split(strings.TrimSuffix(both.String(), "\n"), "\n")
	var want []string
	for rank := range ranks {
		for i := range lines {
			want = append(want, fmt.Sprintf("rank %d line %d.", rank, i), fmt.Sprintf("rank %d error %d.", rank, i))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d lines came, and not the %d that were written", len(got), len(want))
	}
}

func TestLongOutputArrivesWhole(t *testing.T) {
	const size = 3 << 20
	out := newSink(t)
	mustRun(t, Spec{N: 2, Stdout: out, Argv: sh(`head -c ` + strconv.Itoa(size) + ` /dev/zero | tr '\0' x; echo; echo end`)})
	if got := strings.Count(out.String(), "x"); got != 2*size {
		t.Errorf("%d bytes of %d came", got, 2*size)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > maxLine+1 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	if got := strings.Count(out.String(), "end\n"); got != 2 {
		t.Errorf("%d last lines", got)
	}
}

func TestStdoutOfARankCanGoElsewhereUnchanged(t *testing.T) {
	out := newSink(t)
	var json bytes.Buffer
	mustRun(t, Spec{N: 2, Argv: sh(`printf '{"rank":'; printf $RANK}; echo words >&2`), Stdout: out, Stderr: out, Prefix: true,
		ExtraStdout: func(rank int) io.Writer {
			if rank == 1 {
				return &json
			}
			return nil
		}})
	if json.String() != `{"rank":1}` {
		t.Errorf("rank 1 gave %q", json.String())
	}
	for _, want := range []string{"[0] {\"rank\":0}\n", "[0] words\n", "[1] words\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	if strings.Contains(out.String(), "[1] {") {
		t.Errorf("rank 1's stdout came twice: %q", out)
	}
}

var errFull = errors.New("disk full")

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestOutputThatCannotBeWrittenIsAnErrorButEndsNoRank(t *testing.T) {
	script := sh(`i=0; while [ $i -lt 100 ]; do echo some line or other; i=$((i+1)); done; exit 0`)
	for name, spec := range map[string]Spec{
		"lines": {N: 2, Argv: script, Stdout: fullDisk{}},
		"raw":   {N: 2, Argv: script, ExtraStdout: func(int) io.Writer { return fullDisk{} }},
	} {
		result, err := run(t, t.Context(), spec)
		if !errors.Is(err, errFull) || result.ExitStatus() != 0 || len(result.Exits) != 2 || result.Exits[1].Failed() {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
}

func TestProcessThatHoldsThePipeDoesNotHoldRun(t *testing.T) {
	out := newSink(t)
	// The background process keeps both pipes and outlives its rank.
	mustRun(t, Spec{N: 1, Argv: sh(`sleep 600 & echo $!; echo done`), Stdout: out, Stderr: out})
	pid, rest, _ := strings.Cut(out.String(), "\n")
	n, err := strconv.Atoi(pid)
	if err != nil || rest != "done\n" {
		t.Fatalf("output %q", out)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Errorf("the background process was gone already, so this test showed nothing: %v", err)
	}
}

// nopCloser gives a plain buffer carry's interface.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestLastLinesAreReadAfterTheDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // open during carry, as if held by a process that lives on
	const text = "the rank's last words\n"
	if _, err := w.WriteString(strings.Repeat(text, 2000)); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	carry(r, nopCloser{&got})
	if got.String() != strings.Repeat(text, 2000) {
		t.Errorf("%d bytes of %d", got.Len(), 2000*len(text))
	}
}

func TestDrainReadsAtMostTheCapacityOfAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	fill := make([]byte, 4096)
	if _, err := w.Write(fill); err != nil {
		t.Fatal(err)
	}
	// What is read is written again, so without the bound this would never end.
	total := 0
	carry(r, nopCloser{writerFunc(func(p []byte) (int, error) {
		total += len(p)
		if len(p) > 0 && total <= 4*maxPipe {
			return w.Write(p)
		}
		return len(p), nil
	})})
	if total < maxPipe || total > maxPipe+64<<10 {
		t.Errorf("%d bytes taken, bound %d", total, maxPipe)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestLinesDoNotDependOnThePiecesThatAreWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// Lengths of lines and of pieces, drawn around the bound.
		length := rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(maxLine-2, maxLine+2), rapid.IntRange(0, 3*maxLine))
		var input []byte
		for i, n := range rapid.SliceOfN(length, 0, 6).Draw(rt, "lines") {
			input = append(input, bytes.Repeat([]byte{byte('a' + i)}, n)...)
			input = append(input, '\n')
		}
		if rapid.Bool().Draw(rt, "unfinished") {
			input = bytes.TrimSuffix(input, []byte("\n"))
		}
		prefix := rapid.SampledFrom([]string{"", "[3] "}).Draw(rt, "prefix")

		s := newSink(t)
		l := &lineWriter{to: &output{}, w: s, prefix: prefix}
		for rest := input; len(rest) > 0; {
			n := min(len(rest), max(1, length.Draw(rt, "piece")))
			if wrote, err := l.Write(rest[:n]); wrote != n || err != nil {
				rt.Fatalf("wrote %d of %d: %v", wrote, n, err)
			}
			rest = rest[n:]
		}
		l.Close()

		if got, want := s.String(), wantLines(input, prefix); got != want {
			rt.Fatalf("%d bytes in gave %d bytes out, want %d", len(input), len(got), len(want))
		}
	})
}

// wantLines is a reference for lineWriter that has the whole input.
func wantLines(input []byte, prefix string) string {
	var want strings.Builder
	for line := range bytes.Lines(input) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		for first := true; first || len(line) > 0; first = false {
			n := min(len(line), maxLine)
			want.WriteString(prefix + string(line[:n]) + "\n")
			line = line[n:]
		}
	}
	return want.String()
}

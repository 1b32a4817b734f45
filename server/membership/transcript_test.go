package membership

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the machine's answers into testdata instead of comparing")

// A transcript is a text file of blocks: comments (#) and commands, a line "----", and under it the actions that the
// machine answered with, up to an empty line. `new` starts another scenario in the same file.
//
//	go test ./server/membership -run Transcripts -rewrite
//
// writes the answers; read the diff before you commit it.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d transcripts (%v), expected some in testdata", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playFile(t, file) })
	}
}

func playFile(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := parseTranscript(string(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var out strings.Builder
	stage, err := newStage(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		got, err := stage.play(b.script)
		if err != nil {
			t.Fatalf("%s:%d: %v", file, b.line, err)
		}
		if !*rewrite && got != b.output {
			t.Errorf("%s:%d: after\n%s\nthe machine answers\n%s\nthe transcript says\n%s", file, b.line,
				strings.Join(b.script, "\n"), got, b.output)
		}
		fmt.Fprintf(&out, "%s\n%s\n%s\n\n", strings.Join(b.script, "\n"), answerMark, got)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(out.String(), "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const answerMark = "----"

type block struct {
	line   int // of the script's beginning, from 1
	script []string
	output string
}

func parseTranscript(text string) (blocks []block, err error) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		b := block{line: i + 1}
		for i < len(lines) && lines[i] != answerMark {
			b.script = append(b.script, lines[i])
			i++
		}
		if i == len(lines) {
			return nil, fmt.Errorf("line %d: no %q under the script that begins here", b.line, answerMark)
		}
		i++ // the mark
		var output []string
		for i < len(lines) && lines[i] != "" {
			output = append(output, lines[i])
			i++
		}
		i++ // the empty line
		b.output = strings.Join(output, "\n")
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// play runs a block's commands and prints what came of them.
func (s *stage) play(script []string) (string, error) {
	var printed []string
	for _, line := range script {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		a, err := parseCommand(line)
		if err != nil {
			return "", err
		}
		run, ok := commands[a.name]
		if !ok {
			return "", fmt.Errorf("no command %q", a.name)
		}
		printed = append(printed, run(s, a)...)
		if err := a.finish(); err != nil {
			return "", fmt.Errorf("%s: %w", line, err)
		}
	}
	if len(printed) == 0 {
		return "nothing", nil
	}
	return strings.Join(printed, "\n"), nil
}

package abi

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write railhead.abi from railhead.h and the library instead of comparing with it")

const (
	recordPath  = "railhead.abi"
	recordIntro = `# What programs that are built against the library rely on. A line that changes or goes breaks them; one that is added does not.
# Written by: go test ./client/abi -update
`
)

// abiLines is the current ABI, one fact a line.
func abiLines(t *testing.T) []string {
	t.Helper()
	h := readHeader(t, headerFolder)
	lines := []string{"soname " + h.soname()}
	for _, s := range exportedSymbols(t, sharedLibrary(t)) {
		lines = append(lines, "symbol "+s.name+"@"+s.version)
	}
	return slices.Concat(lines, version1Lines(t), headerLines(t, headerFolder))
}

// headerLines is the header's part of the ABI: its declarations, and the sizes, offsets and values that the compiler computes.
func headerLines(t *testing.T, folder string) (lines []string) {
	t.Helper()
	h := readHeader(t, folder)
	for _, f := range h.functions {
		lines = append(lines, "function "+f.signature)
	}
	for _, name := range h.opaque {
		lines = append(lines, "opaque struct "+name)
	}
	for _, text := range h.initializers {
		lines = append(lines, "initializer "+text)
	}
	dir := t.TempDir()
	source, binary := dir+"/layout.c", dir+"/layout"
	if err := os.WriteFile(source, []byte(layoutProgram(h)), 0o600); err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := tool("gcc", "-std=c11", "-Wall", "-Werror", "-I"+absolute, source, "-o", binary); err != nil {
		t.Fatal(err)
	}
	out, err := toolOutput(binary)
	if err != nil {
		t.Fatal(err)
	}
	return append(lines, strings.Split(strings.TrimSpace(out), "\n")...)
}

// layoutProgram is a C program that prints sizes, offsets and values.
func layoutProgram(h *header) string {
	var b strings.Builder
	b.WriteString("#include <stdio.h>\n#include \"railhead.h\"\nint main(void) {\n")
	for _, name := range h.types {
		fmt.Fprintf(&b, "printf(\"type %s size %%zu\\n\", sizeof(%s));\n", name, name)
	}
	for _, name := range h.values {
		fmt.Fprintf(&b, "printf(\"value %s %%lld\\n\", (long long)(%s));\n", name, name)
	}
	for _, s := range h.structs {
		fmt.Fprintf(&b, "printf(\"struct %s size %%zu align %%zu\\n\", sizeof(%s), _Alignof(%s));\n", s.name, s.name, s.name)
		for _, f := range s.fields {
			fmt.Fprintf(&b, "printf(\"field %s.%s %s offset %%zu size %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n",
				s.name, f.name, f.ctype, s.name, f.name, s.name, f.name)
		}
	}
	b.WriteString("return 0;\n}\n")
	return b.String()
}

// difference returns the lines that only recorded contains, and the lines that only now contains.
func difference(recorded, now []string) (gone, added []string) {
	only := func(lines, other []string) (rest []string) {
		for _, l := range lines {
			if !slices.Contains(other, l) {
				rest = append(rest, l)
			}
		}
		return rest
	}
	return only(recorded, now), only(now, recorded)
}

func TestTheABIEqualsTheRecord(t *testing.T) {
	now := abiLines(t)
	if *update {
		if err := os.WriteFile(recordPath, []byte(recordIntro+strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(recordPath)
	if err != nil {
		t.Fatal(err)
	}
	recorded, found := strings.CutPrefix(strings.TrimSuffix(string(text), "\n"), recordIntro)
	if !found {
		t.Errorf("%s does not begin with:\n%s", recordPath, recordIntro)
	}
	gone, added := difference(strings.Split(recorded, "\n"), now)
	for _, l := range gone {
		t.Errorf("gone: %s", l)
	}
	for _, l := range added {
		t.Errorf("new:  %s", l)
	}
	const accept = "go test ./client/abi -run TestTheABIEqualsTheRecord -update"
	switch {
	case len(gone) > 0:
		t.Errorf("this breaks existing programs. Undo the change, or accept it with\n    %s\nThen describe it in CHANGELOG.md and, "+
			"if a version has been released, raise RH_VERSION_MAJOR", accept)
	case len(added) > 0:
		t.Errorf("this breaks no program, but it cannot be removed after a release. Accept it with\n    %s", accept)
	}
}

func TestAChangeOfTheHeaderChangesTheRecord(t *testing.T) {
	before := headerLines(t, headerFolder)
	for _, c := range []struct{ name, old, changed, gone, added string }{
		{"a value", "RH_ERR_BUSY = 22,", "RH_ERR_BUSY = 23,", "value RH_ERR_BUSY 22", "value RH_ERR_BUSY 23"},
		{"a constant", "#define RH_SPLIT_NONE (-1)", "#define RH_SPLIT_NONE (-2)", "value RH_SPLIT_NONE -1", "value RH_SPLIT_NONE -2"},
		{"a field's sign", "int32_t culprit;", "uint32_t culprit;",
			"field rh_comm_status.culprit int32_t offset 16 size 4", "field rh_comm_status.culprit uint32_t offset 16 size 4"},
		{"a field's size", "char message[512];", "char message[513];",
			"field rh_comm_status.message char[512] offset 144 size 512", "field rh_comm_status.message char[513] offset 144 size 513"},
		{"a parameter", "rh_comm_rank(rh_comm *comm, int32_t *rank)", "rh_comm_rank(rh_comm *comm, int64_t *rank)",
			"function rh_result rh_comm_rank(rh_comm *, int32_t *)", "function rh_result rh_comm_rank(rh_comm *, int64_t *)"},
		{"a default", "{sizeof(rh_session_config), 1, NULL, 0, 0}", "{sizeof(rh_session_config), 2, NULL, 0, 0}",
			"initializer RH_SESSION_CONFIG_INIT {sizeof(rh_session_config), 1, NULL, 0, 0}",
			"initializer RH_SESSION_CONFIG_INIT {sizeof(rh_session_config), 2, NULL, 0, 0}"},
		{"a type", "typedef int32_t rh_op;", "typedef int64_t rh_op;", "type rh_op size 4", "type rh_op size 8"},
		{"a new function", "rh_result rh_group_start(void);", "rh_result rh_group_start(void);\nrh_result rh_group_cancel(void);",
			"", "function rh_result rh_group_cancel(void)"},
		{"a parameter's name", "rh_comm_rank(rh_comm *comm, int32_t *rank)", "rh_comm_rank(rh_comm *comm, int32_t *mine)", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			gone, added := difference(before, headerLines(t, writeHeader(t, map[string]string{c.old: c.changed})))
			if c.gone == "" && len(gone) > 0 || c.gone != "" && !slices.Contains(gone, c.gone) {
				t.Errorf("gone: %q, want %q", gone, c.gone)
			}
			if c.added == "" && len(added) > 0 || c.added != "" && !slices.Contains(added, c.added) {
				t.Errorf("new: %q, want %q", added, c.added)
			}
		})
	}
}

func TestTheHeaderParserRefusesOtherDeclarations(t *testing.T) {
	for _, text := range []string{
		"int rh_x;", "struct rh_x { int a; };", "typedef struct rh_x { int a, b; } rh_x;", "typedef struct rh_x { int a : 3; } rh_x;",
		"typedef struct rh_x { void (*f)(int); } rh_x;", "typedef struct rh_x { union { int a; float b; } u; } rh_x;",
		"typedef void (*rh_x)(void);", "void rh_x(void (*f)(int));", "#define RH_X(a) a", "#define X 1", "#define RH_X \\\n  1",
		"static inline int rh_x(void) { return 1; }", "typedef enum rh_x { RH_A = 1 << 3 } rh_x;",
	} {
		if h, err := parseHeader(text); err == nil {
			t.Errorf("%s: understood as %+v", text, *h)
		}
	}
}

package abi

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const headerFolder = "../include"

// headerFiles are the files of the C ABI in a folder. The first one includes the others.
var headerFiles = []string{"railhead.h", "railhead_ep.h", "railhead_kv.h"}

// header is what the files declare, in their order.
type header struct {
	structs      []structure
	types        []string // enums and aliases, which have a size but no fields
	opaque       []string // structs without a definition
	values       []string // enumerators and macros that are numbers
	initializers []string // macros that initialize a struct, with their text
	functions    []function
	version      [3]int // major, minor, patch
}

type structure struct {
	name   string
	fields []field
}

type field struct{ name, ctype string }

type function struct{ name, signature string }

var (
	comment      = regexp.MustCompile(`(?s)/\*.*?\*/`)
	cplusplus    = regexp.MustCompile(`(?s)#ifdef __cplusplus\n.*?#endif`)
	directive    = regexp.MustCompile(`(?m)^#.*$`)
	macro        = regexp.MustCompile(`(?m)^#define (\w+)(.*)$`)
	spaces       = regexp.MustCompile(`\s+`)
	structDecl   = regexp.MustCompile(`^typedef struct (\w+) \{ (.*;) \} (\w+)$`)
	enumDecl     = regexp.MustCompile(`^(?:typedef )?enum (\w+ )?\{ (.*) \}( \w+)?$`)
	opaqueDecl   = regexp.MustCompile(`^typedef struct (\w+) (\w+)$`)
	aliasDecl    = regexp.MustCompile(`^typedef (\w+) (\w+)$`)
	functionDecl = regexp.MustCompile(`^([^(){}]*\W)(rh_\w+)\(([^(){}]*)\)$`)
	enumerator   = regexp.MustCompile(`^(\w+)(?: = -?\w+)?$`)
	declarator   = regexp.MustCompile(`^([^,:(){}]*[ *])(\w+)((?:\[\w+\])*)$`)
	versionPart  = map[string]int{"RH_VERSION_MAJOR": 0, "RH_VERSION_MINOR": 1, "RH_VERSION_PATCH": 2}
)

func readHeader(t *testing.T, folder string) *header {
	t.Helper()
	h, err := parseHeader(strings.Join(headerTexts(t, folder), "\n"))
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	return h
}

// headerTexts reads the files.
func headerTexts(t *testing.T, folder string) (texts []string) {
	t.Helper()
	for _, name := range headerFiles {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// writeHeader writes the files into a new folder, with changes. Each text that is to be replaced is once in all of the files together.
func writeHeader(t *testing.T, changes map[string]string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	texts := headerTexts(t, headerFolder)
	for old, changed := range changes {
		if strings.Count(strings.Join(texts, "\n"), old) != 1 {
			t.Fatalf("%q is not once in %v", old, headerFiles)
		}
		for i := range texts {
			texts[i] = strings.Replace(texts[i], old, changed, 1)
		}
	}
	for i, name := range headerFiles {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(texts[i]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// soname contains the major version, so that the loader refuses a library with another major version.
func (h *header) soname() string { return fmt.Sprintf("librailhead.so.%d", h.version[0]) }

func parseHeader(text string) (*header, error) {
	h := &header{}
	text = cplusplus.ReplaceAllString(comment.ReplaceAllString(text, ""), "")
	for _, m := range macro.FindAllStringSubmatch(text, -1) {
		if err := h.addMacro(m[1], m[2]); err != nil {
			return nil, err
		}
	}
	for _, s := range statements(directive.ReplaceAllString(text, "")) {
		if err := h.addStatement(s); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// statements splits at the semicolons that are not within braces.
func statements(text string) (all []string) {
	depth, start := 0, 0
	for i, c := range text {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		case ';':
			if depth == 0 {
				all = append(all, strings.TrimSpace(spaces.ReplaceAllString(text[start:i], " ")))
				start = i + 1
			}
		}
	}
	if rest := strings.TrimSpace(text[start:]); rest != "" {
		all = append(all, rest)
	}
	return all
}

func (h *header) addMacro(name, text string) error {
	if strings.HasPrefix(text, "(") {
		return fmt.Errorf("macro %s has parameters", name)
	}
	text = strings.TrimSpace(text)
	part, isVersion := versionPart[name]
	switch {
	case isVersion:
		var err error
		h.version[part], err = strconv.Atoi(text)
		return err
	case text == "": // the guard against including twice
	case strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}"):
		h.initializers = append(h.initializers, name+" "+text)
	case strings.HasPrefix(name, "RH_") && !strings.HasSuffix(text, `\`):
		h.values = append(h.values, name)
	default:
		return fmt.Errorf("not understood: #define %s %s", name, text)
	}
	return nil
}

func (h *header) addStatement(s string) error {
	if m := structDecl.FindStringSubmatch(s); m != nil && m[1] == m[3] {
		fields, err := parseFields(m[2])
		h.structs = append(h.structs, structure{m[1], fields})
		return err
	}
	if m := enumDecl.FindStringSubmatch(s); m != nil {
		if m[3] != "" {
			h.types = append(h.types, strings.TrimSpace(m[3]))
		}
		return h.addEnumerators(m[2])
	}
	if m := opaqueDecl.FindStringSubmatch(s); m != nil && m[1] == m[2] {
		h.opaque = append(h.opaque, m[1])
		return nil
	}
	if m := aliasDecl.FindStringSubmatch(s); m != nil {
		h.types = append(h.types, m[2])
		return nil
	}
	if m := functionDecl.FindStringSubmatch(s); m != nil {
		return h.addFunction(m[1], m[2], strings.Split(m[3], ","))
	}
	return fmt.Errorf("not understood: %s", s)
}

func (h *header) addFunction(returns, name string, parameters []string) error {
	for i, p := range parameters {
		if parameters[i] = strings.TrimSpace(p); parameters[i] == "void" {
			continue
		}
		d := declarator.FindStringSubmatch(parameters[i])
		if d == nil {
			return fmt.Errorf("parameter %q of %s not understood", p, name)
		}
		parameters[i] = strings.TrimSpace(d[1]) + d[3] // without its name, which is not part of the ABI
	}
	h.functions = append(h.functions, function{name, returns + name + "(" + strings.Join(parameters, ", ") + ")"})
	return nil
}

func parseFields(text string) (fields []field, err error) {
	for _, s := range strings.Split(strings.TrimSuffix(text, ";"), ";") {
		d := declarator.FindStringSubmatch(strings.TrimSpace(s))
		if d == nil {
			return nil, fmt.Errorf("field %q not understood", s)
		}
		fields = append(fields, field{d[2], strings.TrimSpace(d[1]) + d[3]})
	}
	return fields, nil
}

func (h *header) addEnumerators(text string) error {
	for _, s := range strings.Split(text, ",") {
		m := enumerator.FindStringSubmatch(strings.TrimSpace(s))
		if m == nil {
			return fmt.Errorf("enumerator %q not understood", s)
		}
		h.values = append(h.values, m[1])
	}
	return nil
}

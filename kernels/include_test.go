package kernels_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// mayInclude lists, for each folder of include/railhead, the other folders whose headers it may include.
var mayInclude = map[string][]string{
	"base":        nil,
	"exchange":    {"base"},
	"collectives": {"base", "exchange"},
	"ep":          {"base", "exchange"},
	"gpu":         {"base", "exchange", "collectives", "ep"},
}

func TestHeadersIncludeOnlyTheFoldersBelowTheirs(t *testing.T) {
	const root = "include/railhead"
	folders, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	included := regexp.MustCompile(`(?m)^#include "(?:railhead/([a-z]+)/)?`)
	for _, folder := range folders {
		allowed, known := mayInclude[folder.Name()]
		if !known {
			t.Errorf("%s/%s is not in mayInclude: add what it may include", root, folder.Name())
			continue
		}
		headers, err := filepath.Glob(filepath.Join(root, folder.Name(), "*.h"))
		if err != nil || len(headers) == 0 {
			t.Fatalf("%s: %d headers, %v", folder.Name(), len(headers), err)
		}
		for _, header := range headers {
			text, err := os.ReadFile(header)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range included.FindAllStringSubmatch(string(text), -1) {
				if m[1] != folder.Name() && !slices.Contains(allowed, m[1]) {
					t.Errorf("%s includes a header of %q, which only folders above it may", header, m[1])
				}
			}
		}
	}
}

func TestEveryHeaderIsIncluded(t *testing.T) {
	var headers []string
	used := map[string]bool{} // by base name
	include := regexp.MustCompile(`(?m)^ *#include "(?:[^"]*/)?([^"/]+)"`)
	for _, folder := range []string{".", "../client", "../benchmarks/gpu"} {
		err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".h", ".cc", ".cu", ".cuh"}, filepath.Ext(path)) {
				return err
			}
			if match, _ := filepath.Match("include/railhead/*/*.h", path); match {
				headers = append(headers, path)
			}
			text, err := os.ReadFile(path)
			for _, m := range include.FindAllSubmatch(text, -1) {
				used[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(headers) < 30 {
		t.Fatalf("%d headers", len(headers))
	}
	for _, h := range headers {
		if !used[filepath.Base(h)] {
			t.Errorf("nothing includes %s", h)
		}
	}
}

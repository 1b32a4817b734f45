package sizeplot

import (
	"strings"
	"testing"
)

func TestNamesOfOtherFormatsAreRefused(t *testing.T) {
	for _, path := range []string{"", "x.svg", "a.b/x", "x.SVG", "/dev/stdout", "x.png.svg"} {
		if err := CheckName(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	for path, want := range map[string]string{"x.png": "use the name x.svg", "a/b.c.PDF": "use the name a/b.c.svg", "x.svg.gz": "SVG"} {
		if err := CheckName(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
}

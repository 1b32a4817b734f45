package sidebyside

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"railhead/internal/librarybuild"
)

// Library builds the client library in a folder of dir and returns the static library, which Railhead's sides link.
func Library(root, dir, optimization string, notes io.Writer) (archive string, err error) {
	fmt.Fprintln(notes, "compiling the library")
	library := filepath.Join(dir, "library")
	if err := os.Mkdir(library, 0o700); err != nil {
		return "", err
	}
	return filepath.Join(library, "librailhead.a"), librarybuild.Build(root, library, optimization)
}

package sidebyside

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"railhead/internal/librarybuild"
)

// Library makes the client library, as Go compiles it, in a folder of dir and returns the static library, which Railhead's sides link.
func Library(root, dir string, notes io.Writer) (archive string, err error) {
	fmt.Fprintln(notes, "compiling the library")
	library := filepath.Join(dir, "library")
	if err := os.Mkdir(library, 0o700); err != nil {
		return "", err
	}
	return filepath.Join(library, "librailhead.a"), librarybuild.Link(root, library)
}

package librarybuild

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Link makes what Build makes with -O3, and compiles nothing: it links the objects that the go command has compiled of the same sources.
// A test that calls it imports railhead/client, so that these objects are there before the test runs. more are folders whose objects
// both libraries have in addition.
func Link(root, dir string, more ...string) error {
	assigned, err := makefileAssignments(root)
	if err != nil {
		return err
	}
	objects, err := Objects(root, dir, slices.Concat(assigned["LIBRARY_FOLDERS"], more)...)
	if err != nil {
		return err
	}
	return link(root, dir, assigned["LIBRARY_LDFLAGS"], objects)
}

// Objects writes the objects of the C++ sources in folders to dir, under the names of Object, and returns their paths. The go command
// keeps the objects in its build cache. It builds a package first if a source, a flag or the compiler has changed.
func Objects(root, dir string, folders ...string) (objects []string, err error) {
	arguments := []string{"list", "-export", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, folder := range folders {
		arguments = append(arguments, "./"+folder)
	}
	out, err := Tool(root, "go", arguments...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		var importPath, archive string
		if _, err := fmt.Sscan(line, &importPath, &archive); err != nil {
			return nil, fmt.Errorf("go list -export printed %q: %w", line, err)
		}
		_, folder, _ := strings.Cut(importPath, "/") // after the module's name
		written, err := extract(archive, root, folder, dir)
		if err != nil {
			return nil, fmt.Errorf("%s, the build of %s: %w", archive, importPath, err)
		}
		objects = append(objects, written...)
	}
	return objects, nil
}

// extract writes the objects of a folder's C++ sources from the archive of its Go package.
func extract(archive, root, folder, dir string) (objects []string, err error) {
	content, err := os.ReadFile(archive)
	if err != nil {
		return nil, err
	}
	members, err := membersOf(content)
	if err != nil {
		return nil, err
	}
	sources, err := filepath.Glob(filepath.Join(root, folder, "*.cc"))
	if err != nil {
		return nil, err
	}
	for _, source := range sources {
		member, ok := members[filepath.Base(source)]
		if !ok {
			return nil, fmt.Errorf("it has no object of %s", source)
		}
		object := Object(dir, folder+"/"+filepath.Base(source))
		if err := os.WriteFile(object, member, 0o600); err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// membersOf returns the objects of an archive by the name of the source that the compiler has written into each. An archive is
// "!<arch>\n", then for each member 60 bytes of header, its content, and a byte if the content's size is odd.
func membersOf(archive []byte) (map[string][]byte, error) {
	const magic, header = "!<arch>\n", 60
	members := map[string][]byte{}
	rest, ok := bytes.CutPrefix(archive, []byte(magic))
	if !ok {
		return nil, errors.New("it is no archive")
	}
	for len(rest) >= header {
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[48:58])))
		if err != nil || size < 0 || size > len(rest)-header {
			return nil, fmt.Errorf("a member has the size %q of %d bytes that are left", rest[48:58], len(rest)-header)
		}
		content := rest[header : header+size]
		rest = rest[min(header+size+size%2, len(rest)):]
		object, err := elf.NewFile(bytes.NewReader(content))
		if err != nil {
			continue // what Go's compiler has written
		}
		symbols, err := object.Symbols()
		if err != nil {
			continue // an object without symbols is of no C++ source
		}
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) == elf.STT_FILE {
				members[s.Name] = content
				break
			}
		}
	}
	return members, nil
}

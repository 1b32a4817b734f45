package nodetls

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// file is one to be written. A key's mode is 0600.
type file struct {
	name string
	data []byte
	mode fs.FileMode
}

// writeFiles writes files to a directory, which it makes if there is none: all of them, or none. Files that exist are replaced or refused.
// The files are complete before any of them gets its name.
func writeFiles(dir string, files []file, replace bool) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	publish := os.Link // fails where the name exists
	if replace {
		publish = os.Rename
	}
	var complete, published []string
	defer func() {
		for _, path := range complete {
			_ = os.Remove(path) // after a rename there is none
		}
		if err != nil && !replace {
			for _, path := range published {
				_ = os.Remove(path)
			}
		}
	}()
	for _, f := range files {
		path, err := writeComplete(dir, f)
		if err != nil {
			return err
		}
		complete = append(complete, path)
	}
	for i, f := range files {
		path := filepath.Join(dir, f.name)
		if err := publish(complete[i], path); errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: %w", path, fs.ErrExist)
		} else if err != nil {
			return err
		}
		published = append(published, path)
	}
	return nil
}

// writeComplete writes a file under a temporary name, which it returns.
func writeComplete(dir string, f file) (string, error) {
	out, err := os.CreateTemp(dir, "."+f.name+"-*")
	if err != nil {
		return "", err
	}
	_, err = out.Write(f.data)
	err = errors.Join(err, out.Chmod(f.mode), out.Sync(), out.Close())
	if err != nil {
		_ = os.Remove(out.Name())
		return "", err
	}
	return out.Name(), nil
}

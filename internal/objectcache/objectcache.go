// Package objectcache compiles C and C++ sources for tests, and keeps the objects, as the go command keeps those of packages: in the folder
// railhead/objects of the user's cache folder. An object is used again if compiler, flags, folder and preprocessed source are the same.
package objectcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	patience = 5 * time.Minute    // of a compiler, far more than it needs on a busy machine
	keep     = 5 * 24 * time.Hour // how long an object stays after its last use, as in the go command's cache
)

// Compile compiles a source to an object, as `compiler flags... -c source -o object` in dir does.
func Compile(dir, compiler string, flags []string, source, object string) error {
	if !filepath.IsAbs(object) {
		object = filepath.Join(dir, object)
	}
	kept, err := keptObject(dir, compiler, flags, source)
	if err != nil {
		return err
	}
	if kept != "" && copyFile(kept, object) == nil {
		now := time.Now()
		_ = os.Chtimes(kept, now, now) // another process may have removed it
		return nil
	}
	if _, err := run(dir, compiler, append(append([]string{}, flags...), "-c", source, "-o", object)); err != nil {
		return err
	}
	if kept != "" {
		_ = store(object, kept) // without it the next run compiles again
	}
	return nil
}

// keptObject is the path of the object in the cache, whether it is there or not. It is empty if there is no cache folder, or if the source
// includes files that the preprocessor does not see.
func keptObject(dir, compiler string, flags []string, source string) (string, error) {
	folder, err := cacheFolder()
	if err != nil {
		return "", nil // tests work without a cache
	}
	version, err := run(dir, compiler, []string{"--version"})
	if err != nil {
		return "", err
	}
	text, err := run(dir, compiler, append(append([]string{}, flags...), "-E", source))
	if err != nil {
		return "", err
	}
	if bytes.Contains(text, []byte(".incbin")) {
		return "", nil
	}
	absolute, err := filepath.Abs(dir) // lies in debug information
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, part := range [][]byte{version, []byte(absolute), fmt.Appendf(nil, "%q", flags), []byte(source), text} {
		fmt.Fprintf(hash, "%d\n", len(part))
		hash.Write(part)
	}
	return filepath.Join(folder, fmt.Sprintf("%x.o", hash.Sum(nil))), nil
}

// cacheFolder makes the folder, and removes what has not been used for long, once.
var cacheFolder = sync.OnceValues(func() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(base, "railhead", "objects")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	return folder, removeOld(folder, time.Now().Add(-keep))
})

func removeOld(folder string, before time.Time) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.ModTime().Before(before) {
			err = os.Remove(filepath.Join(folder, e.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another process does the same
			return err
		}
	}
	return nil
}

// store puts a copy of an object into the cache. Others see all of it or nothing.
func store(object, kept string) error {
	f, err := os.CreateTemp(filepath.Dir(kept), "new-*")
	if err != nil {
		return err
	}
	name := f.Name()
	if err := errors.Join(f.Close(), copyFile(object, name), os.Rename(name, kept)); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// run runs the compiler and returns its standard output.
func run(dir, compiler string, arguments []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, compiler, arguments...)
	c.Dir = dir
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", compiler, strings.Join(arguments, " "), err, stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

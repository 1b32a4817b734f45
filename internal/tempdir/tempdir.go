// Package tempdir makes temporary directories and removes those of dead processes: one that is killed cannot remove its own.
//
// A directory is locked (flock) by its owner as long as that lives. It must never remove what is locked, of another user, or not named
// as Make names directories.
package tempdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The name has the owner's pid for people to see. It decides nothing: pids are reused, and differ between pid namespaces.
var ours = regexp.MustCompile(`^railhead-[0-9]+-[0-9]+$`)

const attempts = 100 // each one fails because another process took the new directory for one of a dead process

// Dir is a temporary directory of this process.
type Dir struct {
	path string
	lock *os.File // the directory itself; closed by exec, so that no child holds the lock
}

// Make makes a directory that only this user can enter, and removes those of dead processes beside it.
func Make() (*Dir, error) {
	removeDead(os.TempDir())
	for range attempts {
		path, err := os.MkdirTemp("", "railhead-"+strconv.Itoa(os.Getpid())+"-")
		if err != nil {
			return nil, fmt.Errorf("temporary directory: %w; set TMPDIR to a directory that this user can write", err)
		}
		lock, err := lockDirectory(path)
		switch {
		case err == nil:
			return &Dir{path: path, lock: lock}, nil
		case !errors.Is(err, errTaken):
			_ = os.Remove(path)
			return nil, fmt.Errorf("temporary directory: %w", err)
		}
	}
	return nil, fmt.Errorf("temporary directory: other processes remove new ones in %s", os.TempDir())
}

// Path is where the directory is.
func (d *Dir) Path() string { return d.path }

// Remove removes the directory and all that is in it.
func (d *Dir) Remove() error {
	return errors.Join(os.RemoveAll(d.path), d.lock.Close())
}

// errTaken: another process holds the lock of a directory, or has removed the directory.
var errTaken = errors.New("taken by another process")

// lockDirectory locks a directory of this user.
func lockDirectory(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errTaken
	}
	if err == nil {
		err = checkNamed(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// checkNamed: the directory still has its name after it has been locked, and is of this user.
func checkNamed(f *os.File) error {
	locked, err := f.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Lstat(f.Name()); err != nil || !os.SameFile(locked, named) {
		return errTaken
	}
	if uid := locked.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Geteuid() {
		return fmt.Errorf("%s is of uid %d", f.Name(), uid)
	}
	return nil
}

// removeDead removes the directories whose owner does not hold its lock any more. What cannot be removed is left.
func removeDead(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !ours.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(parent, e.Name())
		if lock, err := lockDirectory(path); err == nil {
			_ = os.RemoveAll(path) // under the lock: an owner that is about to take it finds the directory gone
			_ = lock.Close()
		}
	}
}

package tempdir

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// in makes a directory for the temporary directories of a test.
func in(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

func mustMake(t *testing.T) *Dir {
	t.Helper()
	d, err := Make()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// die leaves a directory as a process does that is killed.
func die(t *testing.T, d *Dir) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.Path(), "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.lock.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDirectoriesOfDeadProcessesAreRemovedAndThoseOfLivingOnesStay(t *testing.T) {
	parent := in(t)
	alive, dead := mustMake(t), mustMake(t)
	die(t, dead)
	next := mustMake(t)
	if exists(dead.Path()) || !exists(alive.Path()) || !exists(next.Path()) {
		entries, err := os.ReadDir(parent)
		t.Errorf("dead %s, alive %s, next %s; there are %v, %v", dead.Path(), alive.Path(), next.Path(), entries, err)
	}
	if fi, err := os.Stat(next.Path()); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	for _, d := range []*Dir{alive, next} {
		if err := d.Remove(); err != nil || exists(d.Path()) {
			t.Errorf("%s is left: %v", d.Path(), err)
		}
	}
}

func TestWhatIsNotOursIsLeft(t *testing.T) {
	parent := in(t)
	var left []string
	add := func(name string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, filepath.Join(parent, name))
	}
	for _, name := range []string{"railhead-1", "railhead-state-12", "railhead-1-2x", "other-1-2", "Xrailhead-1-2"} {
		add(name, os.Mkdir(filepath.Join(parent, name), 0o700))
	}
	add("railhead-1-3", os.WriteFile(filepath.Join(parent, "railhead-1-3"), nil, 0o600))
	add("railhead-1-4", os.Symlink(filepath.Join(parent, "railhead-1"), filepath.Join(parent, "railhead-1-4")))
	if os.Geteuid() == 0 {
		add("railhead-1-5", os.Mkdir(filepath.Join(parent, "railhead-1-5"), 0o700))
		if err := os.Chown(filepath.Join(parent, "railhead-1-5"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	d := mustMake(t)
	defer func() { _ = d.Remove() }()
	for _, path := range left {
		if !exists(path) {
			t.Errorf("%s has been removed", path)
		}
	}
}

// A directory that has just been made is not locked yet, as if its owner were dead.
func TestManyWhoMakeDirectoriesAtOnceKeepTheirs(t *testing.T) {
	in(t)
	made := make([]*Dir, 64)
	var wg sync.WaitGroup
	for i := range made {
		wg.Go(func() {
			d, err := Make()
			if err != nil {
				t.Error(err)
				return
			}
			made[i] = d
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, d := range made {
		if d == nil {
			continue
		}
		if !exists(d.Path()) || seen[d.Path()] {
			t.Errorf("%s is missing, or two have it", d.Path())
		}
		seen[d.Path()] = true
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	}
}

func TestADirectoryThatCannotBeMadeIsAnError(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	t.Setenv("TMPDIR", missing)
	if _, err := Make(); err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "set TMPDIR") {
		t.Errorf("got %v", err)
	}
}

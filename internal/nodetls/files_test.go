package nodetls

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// contents are a directory's files and what is in them.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, e := range entries {
		if found[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func same(a, b map[string][]byte) bool {
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			return false
		}
	}
	return len(a) == len(b)
}

func TestTheFilesOfANodeAreItsIdentity(t *testing.T) {
	_, a := authority(t)
	dir := filepath.Join(t.TempDir(), "deep", "node-1")
	if err := a.IssueTo(dir, "node-1", time.Now(), time.Hour, false); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{NodeFile: 0o644, NodeKeyFile: 0o600, AuthorityFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info, err, mode)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if found := contents(t, dir); len(found) != 3 {
		t.Errorf("%d files: %v", len(found), found)
	}
	id, err := LoadIdentity(filepath.Join(dir, NodeFile), filepath.Join(dir, NodeKeyFile), filepath.Join(dir, AuthorityFile))
	if err != nil || id.Node() != "node-1" {
		t.Error(id, err)
	}
}

// Whichever of the files exists, none is changed and none is added.
func TestFilesThatExistAreNotReplaced(t *testing.T) {
	_, a := authority(t)
	for _, name := range []string{NodeKeyFile, NodeFile, AuthorityFile} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		if err := a.IssueTo(dir, "node-1", time.Now(), time.Hour, false); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
		if after := contents(t, dir); !same(before, after) {
			t.Errorf("%s: the directory was changed: %q", name, after)
		}
	}
	for _, name := range []string{AuthorityKeyFile, AuthorityFile} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		if _, err := CreateAuthority(dir, time.Now()); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
		if after := contents(t, dir); !same(before, after) {
			t.Errorf("%s: the directory was changed: %q", name, after)
		}
	}
}

func TestFilesAreReplacedWhenAsked(t *testing.T) {
	dir, a := authority(t)
	node := t.TempDir()
	var keys [][]byte
	for i := range 3 {
		if i == 2 {
			var err error
			if a, err = ReplaceAuthority(dir, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.IssueTo(node, "node-1", time.Now(), time.Hour, true); err != nil {
			t.Fatal(err)
		}
		id, err := LoadIdentity(filepath.Join(node, NodeFile), filepath.Join(node, NodeKeyFile), filepath.Join(dir, AuthorityFile))
		if err != nil || id.Node() != "node-1" {
			t.Fatal(err)
		}
		found := contents(t, node)
		if len(found) != 3 || !bytes.Equal(found[AuthorityFile], contents(t, dir)[AuthorityFile]) {
			t.Fatalf("round %d: %q", i, found)
		}
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, found[NodeKeyFile]) }) {
			t.Error("a key was used again")
		}
		keys = append(keys, found[NodeKeyFile])
	}
}

// A node that has the authority's certificate gets its own without being asked to replace anything.
func TestACopyOfTheSameAuthorityMayExist(t *testing.T) {
	dir, a := authority(t)
	node := t.TempDir()
	if err := os.WriteFile(filepath.Join(node, AuthorityFile), contents(t, dir)[AuthorityFile], 0o444); err != nil {
		t.Fatal(err)
	}
	if err := a.IssueTo(node, "node-1", time.Now(), time.Hour, false); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(node, AuthorityFile)); err != nil || info.Mode() != 0o444 {
		t.Errorf("it was replaced: %v, %v", info, err)
	}
}

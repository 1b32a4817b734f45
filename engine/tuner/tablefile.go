package tuner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxTableBytes bounds a table's file.
const maxTableBytes = 4 << 20

// remedy is for a table that cannot be used.
const remedy = "`railhead tune` makes a new one; without the file the defaults hold"

// TableDir is where tables are kept: $XDG_STATE_HOME/railhead/tune, else in ~/.local/state.
func TableDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	// The XDG specification has relative paths ignored.
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil || !filepath.IsAbs(home) {
			return "", errors.New("tuning tables: neither XDG_STATE_HOME nor HOME is an absolute path; set one")
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "railhead", "tune"), nil
}

func tablePath(dir, fingerprint string) string { return filepath.Join(dir, fingerprint+".json") }

// LoadTable reads a topology's table. One that has never been saved is fs.ErrNotExist.
func LoadTable(dir, fingerprint string, known Algorithms) (*Table, error) {
	if err := checkFingerprint(fingerprint); err != nil {
		return nil, fmt.Errorf("tuning table: %w", err)
	}
	path := tablePath(dir, fingerprint)
	raw, err := readBounded(path, maxTableBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("tuning table: %w; nothing was measured for this machine: `railhead tune` does, and until then the defaults hold", err)
	}
	if err != nil {
		return nil, fmt.Errorf("tuning table: %w; %s", err, remedy)
	}
	t, err := ParseTable(raw, known)
	if err != nil {
		return nil, fmt.Errorf("tuning table %s: %w; %s", path, err, remedy)
	}
	if t.Fingerprint != fingerprint {
		return nil, fmt.Errorf("tuning table %s: fingerprint: it is of another machine, %s; %s", path, t.Fingerprint, remedy)
	}
	return t, nil
}

// ParseTable reads and checks a table's JSON.
func ParseTable(raw []byte, known Algorithms) (*Table, error) {
	t := &Table{}
	if err := decodeStrict(raw, t); err != nil {
		return nil, err
	}
	if err := t.Check(known); err != nil {
		return nil, err
	}
	return t, nil
}

// Save writes the table beside its place and renames it, so that a reader sees the old one or the new one whole, also after
// a crash. It checks first what LoadTable would.
func (t *Table) Save(dir string, known Algorithms) error {
	if err := t.Check(known); err != nil {
		return fmt.Errorf("tuning table: not saved: %w", err)
	}
	raw, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("tuning table: %w", err)
	}
	raw = append(raw, '\n')
	if len(raw) > maxTableBytes {
		return fmt.Errorf("tuning table: not saved: %d bytes; at most %d", len(raw), maxTableBytes)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("tuning table: %w; make the directory writable, or set XDG_STATE_HOME", err)
	}
	if err := replaceFile(tablePath(dir, t.Fingerprint), raw); err != nil {
		return fmt.Errorf("tuning table: %w; make the directory writable, or set XDG_STATE_HOME", err)
	}
	return nil
}

// replaceFile leaves nothing behind when it fails.
func replaceFile(path string, raw []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(raw)
	// The content must be on the disk before the name is.
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

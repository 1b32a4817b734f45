package plan

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"railhead/engine/tuner"
	"railhead/internal/wire"
)

//go:embed tables
var shipped embed.FS

// Shipped returns the table for CUDA devices that comes with Railhead for a fingerprint, nil if there is none.
func Shipped(fingerprint string) (*tuner.Table, error) {
	raw, err := shipped.ReadFile(path.Join("tables", fingerprint+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t, err := tuner.ParseTable(raw, TableAlgorithms(wire.DeviceCUDA))
	if err != nil {
		return nil, fmt.Errorf("plan: the table that comes with Railhead for %s: %w", fingerprint, err)
	}
	if t.Fingerprint != fingerprint {
		return nil, fmt.Errorf("plan: the table that comes with Railhead for %s is for %s", fingerprint, t.Fingerprint)
	}
	return t, nil
}

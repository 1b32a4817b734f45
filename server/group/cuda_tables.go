package group

import (
	"log/slog"
	"maps"
	"slices"

	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// cudaTables are the user's tables for CUDA devices, as they were when the daemon started. Which of them a group needs is known when it forms.
type cudaTables struct {
	byModel map[string]*tuner.Table                        // by fingerprint without its prefix
	refused map[string]string                              // why a table cannot be used
	shipped func(fingerprint string) (*tuner.Table, error) // plan.Shipped; tests have others
	log     *slog.Logger
}

// CUDA describes a table for CUDA devices.
type CUDA struct {
	Fingerprint string `json:"fingerprint"` // of the GPUs and links
	Entries     int    `json:"entries"`
	Noisy       int    `json:"noisy,omitempty"`
	Refused     string `json:"refused,omitempty"`
}

func readCUDATables(dir string, log *slog.Logger) cudaTables {
	t := cudaTables{byModel: map[string]*tuner.Table{}, refused: map[string]string{}, shipped: plan.Shipped, log: log}
	names, err := tuner.CUDATables(dir)
	if err != nil {
		log.Error("the tuning tables of CUDA devices are not used", "error", err)
	}
	for _, name := range names {
		table, err := tuner.LoadTable(dir, name, plan.TableAlgorithms(wire.DeviceCUDA))
		if err != nil {
			t.refused[name] = err.Error()
			log.Error("a tuning table of CUDA devices is not used", "error", err)
			continue
		}
		t.byModel[name[len(tuner.CUDAPrefix):]] = table
		log.Info("tuning table of CUDA devices", "fingerprint", name, "entries", len(table.Entries), "noisy", table.Noisy())
	}
	return t
}

// of returns the table for groups of a model (gpus.Group): the one that comes with Railhead, with the user's entries in place of its own. nil if
// there is neither.
func (t *cudaTables) of(model string) *tuner.Table {
	if model == "" {
		return nil
	}
	user := t.byModel[model]
	table, err := t.shipped(tuner.CUDAPrefix + model)
	if err != nil {
		t.log.Error("a table that comes with Railhead is not used", "error", err)
	}
	if table == nil {
		return user
	}
	if user != nil {
		table.Replace(user.Entries)
	}
	return table
}

func (t *cudaTables) info() (all []CUDA) {
	for _, model := range slices.Sorted(maps.Keys(t.byModel)) {
		table := t.byModel[model]
		all = append(all, CUDA{Fingerprint: table.Fingerprint, Entries: len(table.Entries), Noisy: table.Noisy()})
	}
	for _, name := range slices.Sorted(maps.Keys(t.refused)) {
		all = append(all, CUDA{Fingerprint: name, Refused: t.refused[name]})
	}
	return all
}

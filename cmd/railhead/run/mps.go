package run

import (
	"context"
	"errors"
	"fmt"
	"os"

	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/gpus"
	"railhead/internal/launch"
	"railhead/internal/mps"
)

// runOnSharedGPUs runs the ranks with an MPS daemon, which ends with them.
func runOnSharedGPUs(ctx context.Context, spec launch.Spec) error {
	visible, err := visibleGPUs()
	if err != nil {
		return cli.Failuref("--mps: %w", err)
	}
	d, err := mps.Start(ctx)
	if err != nil {
		return cli.Failuref("--mps: %w", err)
	}
	spec.Env = append(spec.Env, d.Env()...)
	spec.RankEnv = func(rank int) []string {
		return []string{gpus.VisibleVariable + "=" + visible[gpus.OfRank(rank, spec.N, len(visible))]}
	}
	failed := run(ctx, spec)
	if err := d.Stop(); err != nil {
		err = cli.Failure(err)
		if failed != nil { // the status of the ranks
			fmt.Fprintln(os.Stderr, "railhead:", err)
			return failed
		}
		return err
	}
	return failed
}

// visibleGPUs lists the entries of CUDA_VISIBLE_DEVICES that show one GPU each.
func visibleGPUs() ([]string, error) {
	value, set := os.LookupEnv(gpus.VisibleVariable)
	report, err := gpus.Read()
	if err != nil && !(set && errors.Is(err, gpus.ErrNoLibrary)) {
		return nil, fmt.Errorf("no GPUs: %w", err)
	}
	if err != nil { // nothing to compare the entries with
		return gpus.Entries(value)
	}
	visible, err := gpus.VisibleGPUs(value, set, report.GPUs)
	if err != nil {
		return nil, err
	}
	if len(visible) == 0 {
		return nil, errors.New("no GPUs: the driver shows none to this process, or " + gpus.VisibleVariable + " is empty")
	}
	entries := make([]string, len(visible))
	for i, v := range visible {
		entries[i] = v.Entry
	}
	return entries, nil
}

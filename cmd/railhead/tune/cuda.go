package tune

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/ranks"
	"railhead/engine/tuner"
	"railhead/internal/gpus"
	"railhead/internal/wire"
)

// sharingRanks is the largest default number of ranks where they may share GPUs.
const sharingRanks = 8

// tuneCUDA measures on GPUs. Ranks of different numbers may have GPUs and links of different models: then there is a table, and a run, for each.
func (f *flags) tuneCUDA(ctx context.Context, out, progress io.Writer) (failed error) {
	if _, err := planOf(f, wire.DeviceCUDA, 2); err != nil { // wrong flags, on machines without GPUs too
		return err
	}
	count, err := ranks.CountGPUs()
	if err != nil {
		return cli.Failuref("tune: --device cuda: %w", err)
	}
	most := count
	if f.share {
		most = max(most, sharingRanks)
	}
	p, err := planOf(f, wire.DeviceCUDA, most)
	if err != nil {
		return err
	}
	on, err := ranks.UseGPUs(ctx, slices.Max(p.Ranks), f.share)
	if err != nil {
		return cli.Failuref("tune: --device cuda: %w", err)
	}
	defer func() { failed = errors.Join(failed, on.Stop()) }()
	runs, err := p.byModel()
	if err != nil {
		return cli.Failuref("tune: --device cuda: %w", err)
	}
	for _, r := range runs {
		_, _ = fmt.Fprintf(progress, "tune: ranks %v: GPUs %s, at most %v thread blocks for a rank\n", r.plan.Ranks, r.model, r.plan.Blocks)
		if err := f.run(ctx, &r.plan, tuner.CUDAPrefix+r.model, on.Env, out, progress); err != nil {
			return cli.Failuref("tune: %w", err)
		}
	}
	return nil
}

// cudaRun is what is measured for one table.
type cudaRun struct {
	model string
	plan  schedule
}

// byModel divides the numbers of ranks by the model of their GPUs and links.
func (p *schedule) byModel() ([]cudaRun, error) {
	machine, err := gpus.ReadMachine()
	if err != nil {
		return nil, err
	}
	var runs []cudaRun
	for _, n := range p.Ranks {
		members, err := ranks.MembersOf(n)
		if err != nil {
			return nil, err
		}
		group := gpus.GroupOf(&machine, members)
		if group.Model == "" {
			return nil, fmt.Errorf("--ranks %d: %d GPUs of different models, or with different numbers of ranks: no table can be for them; measure a "+
				"multiple of the number of GPUs, or show fewer with CUDA_VISIBLE_DEVICES", n, group.GPUs)
		}
		i := slices.IndexFunc(runs, func(r cudaRun) bool { return r.model == group.Model })
		if i < 0 {
			i = len(runs)
			runs = append(runs, cudaRun{group.Model, *p})
			runs[i].plan.Ranks = nil
		}
		of := &runs[i].plan
		of.Ranks, of.Blocks = append(of.Ranks, n), append(of.Blocks, group.Blocks)
	}
	return runs, nil
}

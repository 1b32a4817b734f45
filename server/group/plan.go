package group

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/bits"
	"runtime"

	"railhead/engine/plan"
	"railhead/engine/topo"
	"railhead/engine/tuner"
	"railhead/internal/gpus"
	"railhead/internal/wire"
	"railhead/server/membership"
)

// planner chooses the algorithms of a group from the machine's topology and tuning table.
type planner struct {
	machine     *gpus.Machine // nil: it could not be read
	fingerprint string
	table       *tuner.Table // nil: there is no table for this machine, or it cannot be used
	refused     string       // why it cannot be used
	cuda        cudaTables
}

// newPlanner reads the machine's topology and the tuning table for it. The daemon works without either.
func newPlanner(tuneDir string, log *slog.Logger) *planner {
	p := &planner{cuda: readCUDATables(tuneDir, log)}
	machine, err := gpus.ReadMachine()
	if err != nil {
		log.Warn("cannot read the machine's topology: rings follow the order of ranks, and no tuning table is used", "error", err)
		p.refused = err.Error()
		return p
	}
	p.machine = &machine
	p.fingerprint = machine.Fingerprint()
	p.table, err = tuner.LoadTable(tuneDir, p.fingerprint, plan.Algorithms())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		log.Info("no tuning table for this machine: the default thresholds decide; `railhead tune` makes one", "fingerprint", p.fingerprint)
	case err != nil:
		p.refused = err.Error()
		log.Error("the tuning table is not used: the default thresholds decide", "error", err)
	default:
		log.Info("tuning table", "fingerprint", p.fingerprint, "entries", len(p.table.Entries))
		if n := p.table.Noisy(); n > 0 {
			log.Warn("the tuning table has entries that were measured on a busy machine and saved with --allow-noisy; `railhead tune` on an idle "+
				"machine replaces them", "noisy", n, "entries", len(p.table.Entries))
		}
	}
	return p
}

// Tuning describes the table by which algorithms are chosen.
type Tuning struct {
	Fingerprint string `json:"fingerprint,omitempty"` // of the machine
	Entries     int    `json:"entries"`               // of the tuning table; 0 = the default thresholds decide
	Noisy       int    `json:"noisy,omitempty"`       // of these, how many were measured on a busy machine
	Refused     string `json:"refused,omitempty"`     // why an existing table is not used
	CUDA        []CUDA `json:"cuda,omitempty"`        // the user's tables for CUDA devices
}

// Tuning does not change while the daemon runs. Any goroutine.
func (g *Groups) Tuning() Tuning { return g.planner.info() }

func (p *planner) info() Tuning {
	i := Tuning{Fingerprint: p.fingerprint, Refused: p.refused, CUDA: p.cuda.info()}
	if p.table != nil {
		i.Entries, i.Noisy = len(p.table.Entries), p.table.Noisy()
	}
	return i
}

// checkForcing parses a rank's RAILHEAD_ALGO and returns its canonical form.
func checkForcing(device wire.Device, text string) (string, error) {
	f, err := tuner.ParseForcing(text, plan.AlgorithmsOn(device))
	if err != nil {
		return "", err
	}
	return f.String(), nil
}

// writePlans chooses the algorithms of a new group and writes the plans into its control segment, before any rank has the segment.
// Plans never change, so all ranks read the same.
func (p *planner) writePlans(m *memory) error {
	plans, err := p.plansOf(m.group)
	if err != nil {
		return err
	}
	for i := range plans {
		m.store.value(m.parts.Plans.At(i), plans[i])
	}
	for _, rank := range plans[0].Order[:m.world] {
		m.ring = append(m.ring, int(rank))
	}
	return nil
}

// plansOf are the plans of the CPU, on which set-up calls run, and those of the device if it is another one.
func (p *planner) plansOf(a membership.CreateGroup) ([]wire.Plans, error) {
	forcing, err := tuner.ParseForcing(a.Forcing, plan.AlgorithmsOn(a.Device))
	if err != nil {
		return nil, fmt.Errorf("RAILHEAD_ALGO: %w", err)
	}
	r := plan.Request{
		World: a.World, CPUs: runtime.NumCPU(), Forcing: forcing, Reproducible: a.Reproducible, Table: p.table, Order: p.order(a.CPUs),
		Channels: plan.RingChannels, LLBelowBytes: plan.RingLLBelowBytes,
	}
	if a.Device == wire.DeviceCPU {
		plans, err := plan.Make(r)
		return []wire.Plans{plans}, err
	}
	cpu, cuda, err := plan.MakeGPU(r, p.gpusOf(a.GPUs))
	return []wire.Plans{cpu, cuda}, err
}

// gpusOf describes the GPUs of a group's ranks, with the table for them.
func (p *planner) gpusOf(ranks []membership.GPU) plan.GPUs {
	members := make([]gpus.Member, len(ranks))
	for i, g := range ranks {
		members[i] = gpus.Member{UUID: g.UUID.String(), SM: int(g.Architecture), Multiprocessors: int(g.Multiprocessors)}
	}
	of := gpus.GroupOf(p.machine, members)
	return plan.GPUs{Blocks: of.Blocks, Shared: of.GPUs < len(ranks), Table: p.cuda.of(of.Model)}
}

// order is a ring of near neighbours. If the ranks' CPUs are not known, it is the order of ranks.
func (p *planner) order(ranks []wire.CPUMask) []int {
	order := make([]int, len(ranks))
	cpus := make([]topo.CPUSet, len(ranks))
	known := p.machine != nil
	for r, mask := range ranks {
		order[r] = r
		for w, word := range mask {
			for ; word != 0; word &= word - 1 {
				cpus[r] = append(cpus[r], 64*w+bits.TrailingZeros64(word))
			}
		}
		known = known && len(cpus[r]) > 0
	}
	if !known {
		return order
	}
	if ring, err := p.machine.RingOrder(cpus); err == nil {
		return ring
	}
	return order
}

package tune

import (
	"fmt"
	"slices"

	"railhead/engine/plan"
	"railhead/engine/tuner"
	"railhead/internal/wire"
)

// variant is a candidate on CUDA devices: an algorithm, and the kind of its grids, an index in plan.Grids. A group of ranks has a daemon for each,
// whose table makes it run.
type variant struct {
	algorithm string
	kind      int
}

func (v variant) String() string { return fmt.Sprintf("%s/%d", v.algorithm, v.kind) }

// cudaSettings returns the entries to measure: for each collective one for any memory, then one for windows if it has an algorithm for those.
func (p *schedule) cudaSettings() (settings []setting) {
	for _, n := range p.Ranks {
		for _, collective := range p.Collectives {
			settings = append(settings, setting{collective, n, tuner.AnyMemory})
			if slices.Contains(cudaAlgorithms(collective), tuner.WindowAlgorithm) {
				settings = append(settings, setting{collective, n, tuner.InWindows})
			}
		}
	}
	return settings
}

func cudaAlgorithms(collective string) []string {
	return plan.InterchangeableOn(wire.DeviceCUDA, collective)
}

// variants of a setting are those that are measured for it. Algorithms that copy take as long between windows, so they are measured once.
func (p *schedule) variants(s setting) (all []variant) {
	for _, algorithm := range cudaAlgorithms(s.Collective) {
		if (algorithm == tuner.WindowAlgorithm) != (s.Memory == tuner.InWindows) {
			continue
		}
		for kind := range p.grids(s, algorithm, p.FromBytes) {
			all = append(all, variant{algorithm, kind})
		}
	}
	return all
}

// allVariants are those of all settings, each once.
func (p *schedule) allVariants() (all []variant) {
	for _, s := range p.cudaSettings() {
		for _, v := range p.variants(s) {
			if !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
	}
	return all
}

func (p *schedule) grids(s setting, algorithm string, size uint64) []plan.Grid {
	a, _ := wire.ParseAlgo(algorithm) // of cudaAlgorithms
	return plan.Grids(s.Collective, a, size, s.Ranks, p.Blocks[slices.Index(p.Ranks, s.Ranks)])
}

// cudaCase is the case that measures a variant at a size.
func (p *schedule) cudaCase(s setting, v variant, size uint64) algoCase {
	g := p.grids(s, v.algorithm, size)[v.kind]
	return algoCase{setting: s, Algorithm: v.algorithm, Blocks: g.Blocks, Threads: g.Threads}
}

// ownSizes are the sizes at which no earlier kind of the same algorithm has the variant's grid: the same kernel is measured once.
func (p *schedule) ownSizes(s setting, v variant) []uint64 {
	return slices.DeleteFunc(p.sizes(s), func(size uint64) bool {
		grids := p.grids(s, v.algorithm, size)
		return slices.Index(grids, grids[v.kind]) < v.kind
	})
}

func (p *schedule) cudaPoints() map[algoCase][]uint64 {
	points := map[algoCase][]uint64{}
	for _, s := range p.cudaSettings() {
		points[algoCase{setting: s, Algorithm: defaultChoice}] = p.sizes(s)
		for _, v := range p.variants(s) {
			for _, size := range p.ownSizes(s, v) {
				c := p.cudaCase(s, v, size)
				points[c] = append(points[c], size)
			}
		}
	}
	return points
}

// table makes a daemon run the variant for every collective that has it.
func (p *schedule) table(v variant, fingerprint string) (*tuner.Table, error) {
	t := &tuner.Table{Version: tuner.TableVersion, Fingerprint: fingerprint}
	for _, s := range p.cudaSettings() {
		if !slices.Contains(p.variants(s), v) {
			continue
		}
		labelled := []tuner.Range{{Algorithm: v.String()}}
		ranges, err := p.withGrids(s, labelled)
		if err != nil {
			return nil, err
		}
		t.Replace([]tuner.Entry{{Collective: s.Collective, WorldSize: s.Ranks, Memory: s.Memory, Ranges: ranges}})
	}
	return t, nil
}

// withGrids replaces the variants that ranges name with their algorithms and grids. A grid holds from its size up to the next one.
func (p *schedule) withGrids(s setting, labelled []tuner.Range) (ranges []tuner.Range, err error) {
	from := uint64(0)
	for i, size := range p.sizes(s) {
		if i > 0 {
			from = size
		}
		name, _ := tuner.AlgorithmFor(labelled, size)
		var v variant
		if v, err = p.variantOf(s, name); err != nil {
			return nil, err
		}
		c := p.cudaCase(s, v, size)
		r := tuner.Range{FromBytes: from, Algorithm: c.Algorithm, Blocks: c.Blocks, Threads: c.Threads}
		if n := len(ranges); n > 0 {
			last := &ranges[n-1]
			if last.Algorithm == r.Algorithm && last.Blocks == r.Blocks && last.Threads == r.Threads {
				continue
			}
			last.ToBytes = from
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

func (p *schedule) variantOf(s setting, name string) (variant, error) {
	for _, memory := range []tuner.Memory{tuner.AnyMemory, s.Memory} {
		for _, v := range p.variants(setting{s.Collective, s.Ranks, memory}) {
			if v.String() == name {
				return v, nil
			}
		}
	}
	return variant{}, fmt.Errorf("%s: no variant %q", s, name)
}

package paged

import "fmt"

// Heads are neighbouring KV heads of a model.
type Heads struct{ First, Count int }

// intersect returns the heads that both have.
func (h Heads) intersect(other Heads) Heads {
	first, end := max(h.First, other.First), min(h.First+h.Count, other.First+other.Count)
	return Heads{first, max(0, end-first)}
}

// HeadsOf returns the heads of a rank of a tensor-parallel group of size tp: a slice of the model's heads, or one of them if there are more
// ranks than heads. Then tp/heads neighbouring ranks hold the same head. MLA has one head, which every rank holds.
func HeadsOf(heads, tp, rank int) (Heads, error) {
	switch {
	case heads < 1 || tp < 1:
		return Heads{}, fmt.Errorf("KV heads of rank %d: %d heads on %d ranks: both must be at least 1", rank, heads, tp)
	case rank < 0 || rank >= tp:
		return Heads{}, fmt.Errorf("KV heads of rank %d: a tensor-parallel group of %d has ranks 0 to %d", rank, tp, tp-1)
	case heads%tp == 0:
		n := heads / tp
		return Heads{rank * n, n}, nil
	case tp%heads == 0:
		return Heads{rank / (tp / heads), 1}, nil
	}
	return Heads{}, fmt.Errorf("KV heads of rank %d: %d heads on %d ranks: one number must divide the other", rank, heads, tp)
}

// Source is a rank from which heads are read.
type Source struct {
	Rank  int
	Heads Heads
}

// Sources returns from which ranks of a group of size from rank `rank` of a group of size to gets its heads, in their order. Where ranks
// of the source hold the same head, the ranks that read it take them in turn.
func Sources(heads, from, to, rank int) ([]Source, error) {
	wanted, err := HeadsOf(heads, to, rank)
	if err != nil {
		return nil, err
	}
	first, err := HeadsOf(heads, from, 0)
	if err != nil {
		return nil, err
	}
	replicas := max(1, from/heads)
	var sources []Source
	for head := wanted.First; head < wanted.First+wanted.Count; {
		source := head/first.Count*replicas + rank%replicas
		held, err := HeadsOf(heads, from, source)
		if err != nil {
			return nil, err
		}
		common := held.intersect(wanted)
		sources = append(sources, Source{source, common})
		head = common.First + common.Count
	}
	return sources, nil
}

package flight

import "railhead/internal/rank"

// Lateness is, for each rank, how much later than the first rank it began collectives, on average, in ns. Only collectives that all
// ranks' records still have count; n is their number, 0 = nothing is known.
func Lateness(ranks []RankTrace) (mean []float64, n int) {
	began := make([]map[uint64]int64, len(ranks)) // by the number of the collective
	for i, r := range ranks {
		began[i] = map[uint64]int64{}
		for _, rec := range r.Records {
			if rec.Collective > 0 && rec.EnqueuedNS > 0 {
				began[i][rec.Collective] = rec.EnqueuedNS
			}
		}
	}
	if len(ranks) == 0 || len(ranks) > rank.MaxPerNode {
		return nil, 0
	}
	mean = make([]float64, len(ranks))
	for collective, first := range began[0] {
		times := []int64{first}
		for _, b := range began[1:] {
			if at, ok := b[collective]; ok {
				times = append(times, at)
				first = min(first, at)
			}
		}
		if len(times) < len(ranks) {
			continue
		}
		n++
		for i, at := range times {
			mean[i] += float64(at - first)
		}
	}
	for i := range mean {
		mean[i] /= float64(max(n, 1))
	}
	return mean, n
}

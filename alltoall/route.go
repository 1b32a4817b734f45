package alltoall

import (
	"errors"
	"fmt"
)

// Entry is an expert that a token is routed to.
type Entry struct {
	Physical int
	Rank     int // that holds it
	Local    int // its index there
	Weight   float32
}

// Copy is the copy of a token for one rank. There is one whatever the number of the token's experts there.
type Copy struct {
	Source, Token int     // the token's rank, and its index there
	Rank          int     // the destination
	Entries       []Entry // in the order of topk_idx
	X, Scales     []byte  // the row on the wire; set by Dispatch
}

// Routing has the destinations of one rank's tokens.
type Routing struct {
	Rank    int
	Entries [][]Entry // [token] its valid entries, in the order of topk_idx
	Copies  [][]Copy  // [token] its entries grouped by rank, ascending
	Report  Report
}

// Route routes a rank's tokens by topk_idx, [tokens, K], and weights of the same shape (nil: all 1). Invalid are: an entry that is
// neither -1 nor in 0..E-1, the second occurrence of an expert in a token, and every token from number T on, whose entries are
// not checked. With InvalidDrop invalid input is left out. With InvalidError it is an error, returned with the routing of the rest.
func (p *Placement) Route(rank int, topkIdx []int64, weights []float32) (*Routing, error) {
	k := p.config.TopK
	switch {
	case rank < 0 || rank >= p.World:
		return nil, fmt.Errorf("ep: rank %d; want 0..%d", rank, p.World-1)
	case len(topkIdx)%k != 0:
		return nil, fmt.Errorf("ep: rank %d: topk_idx has %d entries; want a multiple of topk, which is %d", rank, len(topkIdx), k)
	case weights != nil && len(weights) != len(topkIdx):
		return nil, fmt.Errorf("ep: rank %d: topk_weights has %d entries; want %d, the number of entries of topk_idx", rank, len(weights), len(topkIdx))
	}
	tokens := len(topkIdx) / k
	r := &Routing{Rank: rank, Entries: make([][]Entry, tokens), Copies: make([][]Copy, tokens)}
	for token := range tokens {
		if token >= p.config.MaxTokensPerRank {
			r.Report.note(&r.Report.ExcessTokens, "rank %d has %d tokens; max_tokens_per_rank is %d",
				rank, tokens, p.config.MaxTokensPerRank)
			continue
		}
		var w []float32
		if weights != nil {
			w = weights[token*k:][:k]
		}
		r.Entries[token] = p.entries(rank, token, topkIdx[token*k:][:k], w, &r.Report)
		r.Copies[token] = copies(rank, token, r.Entries[token], p.World)
	}
	return r, r.Report.refusal(p.config.OnInvalid)
}

// entries returns the valid entries of a token.
func (p *Placement) entries(rank, token int, topkIdx []int64, weights []float32, report *Report) (valid []Entry) {
	seen := map[int64]bool{}
	for i, logical := range topkIdx {
		switch {
		case logical == -1:
			continue
		case logical < 0 || logical >= int64(p.config.NumExperts):
			report.note(&report.InvalidIDs, "rank %d token %d: expert %d in topk_idx; want -1 or 0..%d",
				rank, token, logical, p.config.NumExperts-1)
			continue
		case seen[logical]:
			report.note(&report.DuplicateIDs, "rank %d token %d: expert %d twice in topk_idx", rank, token, logical)
			continue
		}
		seen[logical] = true
		e := p.Replica(int(logical), rank, token)
		weight := float32(1)
		if weights != nil {
			weight = weights[i]
		}
		valid = append(valid, Entry{Physical: e, Rank: p.Rank[e], Local: p.Local[e], Weight: weight})
	}
	return valid
}

// copies groups a token's entries by rank.
func copies(source, token int, entries []Entry, world int) (grouped []Copy) {
	for rank := range world {
		c := Copy{Source: source, Token: token, Rank: rank}
		for _, e := range entries {
			if e.Rank == rank {
				c.Entries = append(c.Entries, e)
			}
		}
		if len(c.Entries) > 0 {
			grouped = append(grouped, c)
		}
	}
	return grouped
}

// drop leaves a token out.
func (r *Routing) drop(token int) { r.Entries[token], r.Copies[token] = nil, nil }

// Loads counts the token copies for each physical expert.
func (r *Routing) Loads(p *Placement) []uint64 {
	loads := make([]uint64, len(p.Rank))
	for _, entries := range r.Entries {
		for _, e := range entries {
			loads[e.Physical]++
		}
	}
	return loads
}

// Traffic is the minimum that a rank must write to each rank, [rank], if each token is sent once to each rank. Copies counts the
// rank's copies to itself too; their bytes are 0.
type Traffic struct {
	Copies   []uint64 // of tokens
	Payload  []uint64 // bytes of a dispatch: Config.RowBytes a copy
	Headers  []uint64 // bytes of a dispatch: 8 a copy and 8 an entry
	Partials []uint64 // bytes that each rank writes to it in the combine: Config.CombineRowBytes a copy
}

// Traffic computes the traffic of a routing. A rank writes in a combine what the Partials of the others have for it.
func (r *Routing) Traffic(p *Placement) Traffic {
	t := Traffic{make([]uint64, p.World), make([]uint64, p.World), make([]uint64, p.World), make([]uint64, p.World)}
	for _, copies := range r.Copies {
		for _, c := range copies {
			t.Copies[c.Rank]++
			if c.Rank == r.Rank {
				continue
			}
			t.Payload[c.Rank] += uint64(p.config.RowBytes())
			t.Headers[c.Rank] += 8 + 8*uint64(len(c.Entries))
			t.Partials[c.Rank] += uint64(p.config.CombineRowBytes())
		}
	}
	return t
}

// Report is rh_ep_report: what was lost, invalid or over capacity. It is zero where there was nothing of that.
type Report struct {
	LostRanks    Ranks
	LostCopies   uint64 // token copies that did not reach these ranks, or did not return from them
	InvalidIDs   uint64 // entries of topk_idx
	DuplicateIDs uint64
	ExcessTokens uint64
	NonFinite    uint64 // tokens
	OverCapacity uint64 // rows, on the receiver
	Message      string // the first of each kind
}

// note adds 1 to a counter, and for the first adds the message.
func (r *Report) note(counter *uint64, format string, args ...any) {
	if *counter++; *counter > 1 {
		return
	}
	if r.Message != "" {
		r.Message += "; "
	}
	r.Message += fmt.Sprintf(format, args...)
}

// refusal turns the report of invalid input into an error, with InvalidError.
func (r *Report) refusal(policy OnInvalid) error {
	if policy == InvalidDrop || r.InvalidIDs+r.DuplicateIDs+r.ExcessTokens+r.NonFinite+r.OverCapacity == 0 {
		return nil
	}
	return errors.New("ep: " + r.Message)
}

// Ranks is a set of ranks: bit r is rank r.
type Ranks uint64

// Has says whether a rank is in the set.
func (s Ranks) Has(rank int) bool { return s>>rank&1 != 0 }

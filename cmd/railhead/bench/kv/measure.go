package kv

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/ranks"
)

// Report is what --json prints.
type Report struct {
	Op         string `json:"op"`
	Transport  string `json:"transport"`
	BlockBytes uint64 `json:"block_bytes"`
	Iterations int    `json:"iterations"`
	Threads    int    `json:"threads"` // 0: the default
	Rows       []Row  `json:"rows"`
	OK         bool   `json:"ok"`
	Error      string `json:"error,omitempty"`
}

// Row is the result for one size.
type Row struct {
	Bytes  uint64  `json:"bytes"`
	Blocks uint64  `json:"blocks"`
	GBs    float64 `json:"gb_s"` // 10^9 bytes per second, of the median time
	P50us  float64 `json:"p50_us"`
	P99us  float64 `json:"p99_us"`
	Wrong  int     `json:"wrong"` // bytes; -1: not checked
}

// pair is the two agents. The holder has the blocks that the mover reads or writes.
type pair struct {
	holder, mover *side
	write         bool
	blockBytes    uint64
	check         bool
	timeout       time.Duration
}

// side is an agent with a pool.
type side struct {
	agent  *client.KVAgent
	memory []byte
	pool   client.KVCache
}

func (b *flags) measure(ctx context.Context, socket string, p planned, report *Report, table io.Writer) error {
	session, err := client.Connect(socket, b.timeout)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	most := slices.Max(p.counts)
	pair := &pair{write: p.write, blockBytes: p.blockBytes, check: b.check, timeout: b.timeout}
	for name, s := range map[string]**side{"holder": &pair.holder, "mover": &pair.mover} {
		if *s, err = newSide(session, name, most, p.blockBytes, b.timeout); err != nil {
			return err
		}
		defer func() { _ = (*s).agent.Destroy() }()
	}
	rights := client.KVRead
	if p.write {
		rights = client.KVWrite
	}
	ref, err := pair.holder.agent.Grant(pair.holder.pool, nil, rights, 24*time.Hour, "mover")
	if err != nil {
		return err
	}
	fmt.Fprintf(table, "# %s of blocks of %d bytes, transport %s, %d transfers a size\n%14s %10s %10s %12s %12s %8s\n", report.Op, p.blockBytes, report.Transport,
		b.iters, "size", "blocks", "GB/s", "p50 us", "p99 us", "wrong")
	wrong := 0
	for _, n := range p.counts {
		row, err := pair.row(ctx, ref, n, b.iters)
		if err != nil {
			return fmt.Errorf("%d blocks of %d bytes: %w", n, p.blockBytes, err)
		}
		report.Rows = append(report.Rows, row)
		fmt.Fprintf(table, "%14d %10d %10.2f %12.1f %12.1f %8s\n", row.Bytes, row.Blocks, row.GBs, row.P50us, row.P99us, wrongText(row.Wrong))
		wrong += max(row.Wrong, 0)
	}
	if wrong > 0 {
		return fmt.Errorf("%d bytes are wrong", wrong)
	}
	return nil
}

func wrongText(n int) string {
	if n < 0 {
		return "N/A"
	}
	return fmt.Sprint(n)
}

func newSide(session *client.Session, name string, blocks, blockBytes uint64, timeout time.Duration) (*side, error) {
	a, err := session.KVAgent(name, timeout)
	if err != nil {
		return nil, err
	}
	s := &side{agent: a}
	var region client.KVRegion
	if s.memory, region, err = a.Alloc(int(blocks * blockBytes)); err == nil {
		s.pool, err = a.Pool(region, 0, int(blocks), int(blockBytes), int(min(blockBytes, 1<<16)))
	}
	if err != nil {
		_ = a.Destroy()
		return nil, err
	}
	return s, nil
}

// row measures transfers of n blocks, the same ones in another order each time.
func (p *pair) row(ctx context.Context, ref client.KVReference, n uint64, iters int) (Row, error) {
	row := Row{Bytes: n * p.blockBytes, Blocks: n, Wrong: -1}
	source, target := p.holder, p.mover
	if p.write {
		source, target = target, source
	}
	random := rand.New(rand.NewPCG(n, uint64(time.Now().UnixNano())))
	for i := 0; i+8 <= len(source.memory); i += 8 {
		binary.LittleEndian.PutUint64(source.memory[i:], random.Uint64())
	}
	clear(target.memory) // also makes its pages
	var times []float64
	const warmUp = 2
	for i := range iters + warmUp {
		if err := ctx.Err(); err != nil {
			return row, err
		}
		own, theirs := order(random, n), order(random, n)
		checked := p.check && (i == warmUp || i == warmUp+iters-1)
		if checked {
			for j := range target.memory {
				target.memory[j] = 0xa5
			}
		}
		t, err := p.transfer(ref, own, theirs)
		if err != nil {
			return row, err
		}
		if i >= warmUp {
			times = append(times, t.Seconds()*1e6)
		}
		if checked {
			from, to := theirs, own
			if p.write {
				from, to = own, theirs
			}
			row.Wrong = max(row.Wrong, 0) + p.wrong(source, target, from, to)
		}
	}
	slices.Sort(times)
	row.P50us, row.P99us = ranks.Percentile(times, 0.5), ranks.Percentile(times, 0.99)
	row.GBs = float64(row.Bytes) / row.P50us / 1e3
	return row, nil
}

// order is numbers below n in a random order.
func order(random *rand.Rand, n uint64) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i)
	}
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// transfer makes one transfer.
func (p *pair) transfer(ref client.KVReference, own, theirs []uint32) (time.Duration, error) {
	x := client.KVTransfer{Op: client.KVRead, Cache: p.mover.pool, Peer: "holder", Reference: ref, Blocks: own, Places: theirs, Timeout: p.timeout}
	if p.write {
		x.Op = client.KVWrite
	}
	begin := time.Now()
	if _, err := p.mover.agent.Submit(x); err != nil {
		return 0, err
	}
	for {
		events, err := p.mover.agent.Poll(0)
		if err != nil {
			return 0, err
		}
		if len(events) > 0 {
			return time.Since(begin), events[0].Err()
		}
	}
}

// wrong counts bytes of the target that are not those of the source's blocks, or were not to be written.
func (p *pair) wrong(source, target *side, from, to []uint32) int {
	wrong := 0
	written := make([]bool, uint64(len(target.memory))/p.blockBytes)
	block := func(s *side, i uint32) []byte { return s.memory[uint64(i)*p.blockBytes:][:p.blockBytes] }
	for i := range from {
		written[to[i]] = true
		wrong += differ(block(source, from[i]), block(target, to[i]))
	}
	untouched := bytes.Repeat([]byte{0xa5}, int(p.blockBytes))
	for i, w := range written {
		if !w {
			wrong += differ(untouched, block(target, uint32(i)))
		}
	}
	return wrong
}

func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	n := 0
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

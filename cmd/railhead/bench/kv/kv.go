// Package kv is `railhead bench kv`: it measures transfers of blocks between two agents of this machine.
package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"railhead/cmd/railhead/internal/cli"
	"railhead/cmd/railhead/internal/private"
	"railhead/internal/ncclstyle"
)

// transports that bytes can take today.
const transportShm = "shm"

// flags of the command.
type flags struct {
	sizes      cli.Sweep
	iters      int
	blockBytes string
	blocks     int
	threads    int
	op         string
	transport  string
	check      bool
	timeout    time.Duration
	asJSON     bool
}

// Command is `railhead bench kv`.
func Command() *cobra.Command {
	var b flags
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Measure KV transfers between two agents on this machine",
		Long: "Starts a daemon, its proxy process and two agents, each with a pool of blocks in memory of its own. A transfer moves scattered blocks of\n" +
			"one agent to scattered blocks of the other; the proxy copies them (transport shm: one copy). Its time is from the submission to the\n" +
			"event of its end, which the agent polls for. With --check every byte of both pools is compared after the first and the last transfer of\n" +
			"a size, and a wrong one is an error; the destination is overwritten before.\n\n" +
			"size    bytes of a transfer: blocks x --block-bytes\n" +
			"GB/s    10^9 bytes per second, of the median time",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := b.plan(cmd)
			if err != nil {
				return err
			}
			return b.bench(cmd.Context(), p, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&b.sizes.Min, "minbytes", "b", "64K", "smallest size of a transfer, in bytes")
	f.StringVarP(&b.sizes.Max, "maxbytes", "e", "64M", "largest size of a transfer")
	f.Uint64VarP(&b.sizes.Factor, "stepfactor", "f", 4, "factor between sizes")
	f.IntVarP(&b.iters, "iters", "i", 20, "timed transfers of a size")
	f.StringVar(&b.blockBytes, "block-bytes", "64K", "size of a block: a power of two")
	f.IntVar(&b.blocks, "blocks", 0, "blocks of a transfer, in place of -b, -e and -f; 0 means by them")
	f.IntVar(&b.threads, "threads", 0, fmt.Sprintf("threads of the proxy that copy; 0 means one a processor, at most 8 (here %d)", min(runtime.NumCPU(), 8)))
	f.StringVar(&b.op, "op", "read", "read or write")
	f.StringVar(&b.transport, "transport", transportShm, "how bytes move: shm, between processes of a node")
	f.BoolVar(&b.check, "check", true, "compare every byte")
	cli.AddTimeout(f, &b.timeout)
	cli.AddJSON(f, &b.asJSON)
	cli.Complete(cmd, "op", "read", "write")
	cli.Complete(cmd, "transport", transportShm)
	return cmd
}

// Bounds of the flags.
const (
	minBlock   = 256
	maxBlock   = 1 << 30
	maxIters   = 1 << 20
	maxBytes   = 16 << 30 // of a transfer
	maxBlocks  = 250000   // of a transfer: both lists fit into a submission
	maxThreads = 256
)

// planned is what is to be measured.
type planned struct {
	write      bool
	blockBytes uint64
	counts     []uint64 // blocks of each size
}

func (b *flags) plan(cmd *cobra.Command) (p planned, err error) {
	switch {
	case b.op != "read" && b.op != "write":
		return p, cli.Usagef("--op %.40q: read or write", b.op)
	case b.transport != transportShm:
		return p, cli.Usagef("--transport %.40q: there is only shm, between processes of a node", b.transport)
	case b.iters < 1 || b.iters > maxIters:
		return p, cli.Usagef("-i %d is outside 1..%d", b.iters, maxIters)
	case b.threads < 0 || b.threads > maxThreads:
		return p, cli.Usagef("--threads %d is outside 0..%d", b.threads, maxThreads)
	case b.blocks < 0 || b.blocks > maxBlocks:
		return p, cli.Usagef("--blocks %d is outside 0..%d", b.blocks, maxBlocks)
	}
	if err := cli.CheckTimeout(b.timeout); err != nil {
		return p, err
	}
	p.write = b.op == "write"
	if p.blockBytes, err = ncclstyle.ParseBytes(b.blockBytes); err != nil {
		return p, cli.Usagef("--block-bytes: %w", err)
	}
	if p.blockBytes < minBlock || p.blockBytes > maxBlock || p.blockBytes&(p.blockBytes-1) != 0 {
		return p, cli.Usagef("--block-bytes %d: a power of two, %d to %d", p.blockBytes, minBlock, maxBlock)
	}
	if b.blocks > 0 {
		for _, name := range []string{"minbytes", "maxbytes", "stepfactor"} {
			if cmd.Flags().Changed(name) {
				return p, cli.Usagef("--blocks and --%s exclude each other", name)
			}
		}
		p.counts = []uint64{uint64(b.blocks)}
	} else if p.counts, err = b.sweep(p.blockBytes); err != nil {
		return p, err
	}
	for _, n := range p.counts {
		if n > maxBlocks || n*p.blockBytes > maxBytes {
			return p, cli.Usagef("a transfer of %d blocks of %d bytes: at most %d blocks and %d bytes", n, p.blockBytes, maxBlocks, uint64(maxBytes))
		}
	}
	return p, nil
}

// sweep are the counts of blocks for the sizes.
func (b *flags) sweep(blockBytes uint64) (counts []uint64, err error) {
	sweep, err := b.sizes.Parse()
	if err != nil {
		return nil, err
	}
	if sweep.StepFactor < 2 {
		return nil, cli.Usagef("-f %d: must be at least 2", sweep.StepFactor)
	}
	sizes, err := sweep.Sizes()
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	for _, s := range sizes {
		if s == 0 || s%blockBytes != 0 {
			return nil, cli.Usagef("a size of %d bytes has no whole blocks of %d: choose -b, -e and -f, or --block-bytes", s, blockBytes)
		}
		counts = append(counts, s/blockBytes)
	}
	return counts, nil
}

func (b *flags) bench(ctx context.Context, p planned, out io.Writer) (failed error) {
	report := &Report{Op: b.op, Transport: b.transport, BlockBytes: p.blockBytes, Iterations: b.iters, Threads: b.threads, Rows: []Row{}}
	d, err := private.StartWithProxyThreads(b.threads)
	if err != nil {
		return cli.Failure(err)
	}
	defer d.Stop()
	table := out
	if b.asJSON {
		table = io.Discard
	}
	failed = b.measure(ctx, d.SocketPath(), p, report, table)
	report.OK = failed == nil
	if failed != nil {
		report.Error = failed.Error()
	}
	if b.asJSON {
		failed = errors.Join(failed, json.NewEncoder(out).Encode(report))
	}
	if failed != nil {
		return cli.Failuref("bench kv: %w", failed)
	}
	return nil
}

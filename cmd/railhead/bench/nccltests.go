package bench

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"railhead/cmd/railhead/internal/cli"
)

// otherFlags are the flags of nccl-tests 2.19 that bench lacks, by both names, and what to do instead.
var otherFlags = []struct{ short, long, answer string }{
	{"t", "nthreads", "threads a process: Railhead has one rank a process: use --ranks"},
	{"g", "ngpus", "GPUs a thread: Railhead has one rank a process: use --ranks"},
	{"m", "agg_iters", "operations a group call: bench times single operations: leave it out"},
	{"N", "run_cycles", "repetitions of the run: start bench several times"},
	{"p", "parallel_init", "threads that initialize in parallel: ranks are processes and always do: leave it out"},
	{"z", "blocking", "blocking NCCL calls: on the CPU all calls block, on GPUs none: leave it out"},
	{"y", "stream_null", "CUDA's null stream: on GPUs bench has a stream of its own: leave it out"},
	{"T", "", "deadline in seconds: use --timeout, for example --timeout 30s"},
	{"C", "report_cputime", "the CPU's time instead of the GPU's: leave it out"},
	{"a", "average", "how the times of the ranks are combined: here their mean on the CPU, which is -a 1, and the slowest rank's on GPUs, -a 3: leave it out"},
	{"R", "local_register", "buffers registered with NCCL: use --window, which puts the buffers in windows"},
	{"D", "device_implementation", "NCCL's device API: use --algo to choose the algorithm"},
	{"V", "device_cta_count", "thread blocks of NCCL's device API: the daemon's plan has them: leave it out"},
	{"x", "cta_policy", "NCCL's policy for thread blocks: the daemon's plan has them: leave it out"},
	{"M", "memory", "NCCL's memory use: bench does not show memory: leave it out"},
	{"J", "output_file", "JSON file: use --json and redirect stdout"},
	{"S", "report_timestamps", "time of day of each row: there is no such column: leave it out"},
	{"u", "unalign", "unaligned buffers: bench has aligned ones only: leave it out"},
}

// explainFlag answers a flag of nccl-tests that bench lacks with what to do instead. Other errors get the answer of all commands.
func explainFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name, short := unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames() != ""
		for _, f := range otherFlags {
			switch {
			case short && name == f.short:
				return cli.Usagef("-%s: %s", name, f.answer)
			case !short && name == f.long:
				return cli.Usagef("--%s: %s", name, f.answer)
			}
		}
	}
	return cmd.Parent().FlagErrorFunc()(cmd, err)
}

package ranks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
	"railhead/internal/cuda"
	"railhead/internal/gpus"
	"railhead/internal/mps"
	"railhead/internal/wire"
)

// GPUJob is a job that can run on a GPU.
type GPUJob interface {
	Job
	OnGPU() bool
	RunOnGPU(c *client.Comm, gpu *GPU, report *json.Encoder) error
}

// GPU is the device of a rank, with a stream for its calls. The rank's goroutine is bound to the device's context.
type GPU struct {
	*cuda.Context
	Stream  *cuda.Stream
	timeout time.Duration // of one operation
}

// defaultTimeout is that of rh_comm_config, for a rank without RAILHEAD_TIMEOUT_MS.
const defaultTimeout = 30 * time.Second

// openGPU opens the device of a rank: one each, as far as there are enough.
func openGPU(rank, world int) (*GPU, error) {
	devices, err := cuda.Devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, errNoDevice
	}
	g := &GPU{timeout: defaultTimeout}
	if ms, err := strconv.Atoi(os.Getenv("RAILHEAD_TIMEOUT_MS")); err == nil && ms > 0 {
		g.timeout = time.Duration(ms) * time.Millisecond
	}
	if g.Context, err = devices[gpus.OfRank(rank, world, len(devices))].Retain(); err != nil {
		return nil, err
	}
	if err := g.Bind(); err != nil {
		return nil, err
	}
	g.Stream, err = g.NewStream()
	return g, err
}

// Wait waits until what is queued on the stream has run, and reports why the comm's group is broken if it is: results are not valid then. Among what
// is queued are so many operations, each of which has its own deadline.
func (g *GPU) Wait(c *client.Comm, operations int) error {
	limit := time.Duration(4+operations) * g.timeout
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("%d operations have had %v", operations, limit))
	defer cancel()
	waited := g.Stream.Synchronize(ctx)
	status, err := c.Status()
	if err == nil && status.Result != wire.ResultOK {
		err = &client.Error{Result: status.Result, Message: status.Message}
	}
	if err != nil {
		return err // the cause; that of the wait is a consequence
	}
	return waited
}

// OnGPUs are the GPUs of a group's ranks.
type OnGPUs struct {
	Names  string      // of the GPUs
	Env    []string    // for the ranks
	daemon *mps.Daemon // nil: no rank shares a GPU, or the machine has a daemon
}

// UseGPUs says what keeps so many ranks from running on this machine's GPUs. With share it starts an MPS daemon for them, which Stop ends.
func UseGPUs(ctx context.Context, ranks int, share bool) (*OnGPUs, error) {
	names, err := gpuNames(ranks, share)
	if err != nil {
		return nil, err
	}
	g := &OnGPUs{Names: strings.Join(names, ", ")}
	if !share {
		return g, nil
	}
	if g.daemon, err = mps.Start(ctx); err != nil {
		return nil, err
	}
	g.Env = g.daemon.Env()
	return g, nil
}

// Stop ends the daemon, if there is one.
func (g *OnGPUs) Stop() error {
	if g.daemon == nil {
		return nil
	}
	if err := g.daemon.Stop(); err != nil {
		return cli.Failure(err)
	}
	return nil
}

// CountGPUs is the number of GPUs that this process can use, at least 1.
func CountGPUs() (int, error) {
	devices, err := cuda.Devices()
	if err == nil && len(devices) == 0 {
		err = errNoDevice
	}
	return len(devices), err
}

// MembersOf describes the GPUs of so many ranks of this machine.
func MembersOf(ranks int) ([]gpus.Member, error) {
	devices, err := cuda.Devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, errNoDevice
	}
	members := make([]gpus.Member, ranks)
	for r := range members {
		d := devices[gpus.OfRank(r, ranks, len(devices))]
		members[r] = gpus.Member{UUID: d.UUID, SM: d.SM, Multiprocessors: d.Processors}
	}
	return members, nil
}

var errNoDevice = errors.New("CUDA shows no device to this process: check nvidia-smi and CUDA_VISIBLE_DEVICES")

func gpuNames(ranks int, share bool) (names []string, err error) {
	devices, err := cuda.Devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, errNoDevice
	}
	if ranks > len(devices) && !share && !mps.Active() {
		return nil, fmt.Errorf("%d ranks on %d GPUs: ranks that share a GPU need MPS: add --mps, or use --ranks %[2]d", ranks, len(devices))
	}
	for r := range ranks {
		name := devices[gpus.OfRank(r, ranks, len(devices))].Name
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return names, nil
}

// Package ranks starts the rank processes of demo, bench and tune, and runs in them: each is this binary with the hidden command
// `railhead rank`. A rank gets its job in an environment variable and prints its report on stdout.
package ranks

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"railhead/client"
	"railhead/cmd/railhead/internal/cli"
)

// jobVariable is the environment variable with the job: a JSON object whose only key is the name of the kind.
const jobVariable = "RAILHEAD_JOB"

// Job is what a rank does. Run writes the rank's report, one JSON value per line.
type Job interface {
	Run(c *client.Comm, report *json.Encoder) error
}

// Kind is a kind of job.
type Kind struct {
	Name   string
	New    func() Job // a job to decode JSON into
	Pinned bool       // each rank on the CPU is pinned to a processor of its own
}

// abortDelay is the time between SIGTERM and the abort of the group, in which an operation may still return with the cause of a
// failure.
const abortDelay = 2 * time.Second

// Command is the hidden command `railhead rank`, for jobs of these kinds.
func Command(kinds ...Kind) *cobra.Command {
	return &cobra.Command{
		Use: "rank", Hidden: true, Args: cli.NoArgs, Short: "One rank of demo, bench or tune",
		RunE: func(*cobra.Command, []string) error {
			kind, job, err := decode(os.Getenv(jobVariable), kinds)
			if err == nil {
				err = runRank(kind, job)
			}
			if err != nil {
				return cli.Failure(err)
			}
			return nil
		},
	}
}

// decode reads the job.
func decode(text string, kinds []Kind) (Kind, Job, error) {
	var named map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &named); err != nil {
		return Kind{}, nil, fmt.Errorf("%s: %w; this command is started by `railhead demo`, `bench` and `tune` only", jobVariable, err)
	}
	for _, kind := range kinds {
		raw, ok := named[kind.Name]
		if !ok {
			continue
		}
		job := kind.New()
		if err := json.Unmarshal(raw, job); err != nil {
			return Kind{}, nil, fmt.Errorf("%s: %s: %w", jobVariable, kind.Name, err)
		}
		return kind, job, nil
	}
	return Kind{}, nil, fmt.Errorf("%s: no job of a known kind", jobVariable)
}

func runRank(kind Kind, job Job) error {
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return fmt.Errorf("RANK: %w", err)
	}
	world, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return fmt.Errorf("WORLD_SIZE: %w", err)
	}
	// Caught before the group exists. SIGTERM means that another rank has failed; this rank's operation is then about to return
	// with the cause.
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)

	gpuJob, onGPU := job.(GPUJob)
	onGPU = onGPU && gpuJob.OnGPU()
	if kind.Pinned && !onGPU { // before Connect, which tells the daemon the rank's processors
		if err := pin(rank, world); err != nil {
			return err
		}
	}
	config := client.CommConfig{Rank: rank, World: world}
	run := job.Run
	if onGPU {
		gpu, err := openGPU(rank, world)
		if err != nil {
			return err
		}
		config.Device, config.DeviceName = client.DeviceCUDA, strconv.Itoa(gpu.Device.Ordinal)
		run = func(c *client.Comm, report *json.Encoder) error { return gpuJob.RunOnGPU(c, gpu, report) }
	}
	s, err := client.Connect("", 0)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	c, err := s.Init(config)
	if err != nil {
		return err
	}
	go func() { // ends with the process
		<-terminated
		time.Sleep(abortDelay)
		_ = c.Abort()
	}()
	if err := run(c, json.NewEncoder(os.Stdout)); err != nil {
		return err
	}
	return c.Finalize()
}

package main

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
)

// jobVariable carries a job from `demo` or `bench` to its ranks, as JSON.
const jobVariable = "RAILHEAD_JOB"

// job is what a rank does; one of the fields is set.
type job struct {
	DemoMoE *demoMoEJob  `json:"demo_moe,omitempty"`
	Demo    *demoJob     `json:"demo,omitempty"`
	Bench   *benchJob    `json:"bench,omitempty"`
	MoE     *moeBenchJob `json:"moe,omitempty"`
}

// abortDelay is how long a rank that was told to end still gives its operation to report why the group broke.
const abortDelay = 2 * time.Second

// rankCommand is one rank of demo or bench. It is hidden: a person starts those.
func rankCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rank", Hidden: true, Args: noArgs, Short: "One rank of demo or bench",
		RunE: func(*cobra.Command, []string) error {
			if err := runRank(); err != nil {
				return &exitError{status: exitFailed, err: err}
			}
			return nil
		},
	}
}

func runRank() error {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(jobVariable)), &j); err != nil {
		return fmt.Errorf("%s: %w; `railhead demo` and `railhead bench` start ranks", jobVariable, err)
	}
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return fmt.Errorf("RANK: %w", err)
	}
	world, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return fmt.Errorf("WORLD_SIZE: %w", err)
	}
	// Caught before there is a group: SIGTERM comes when another rank has failed, and by then this rank is about to
	// learn why from its group.
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)

	if j.Bench != nil || j.MoE != nil { // before the daemon is told where the rank may run
		if err := pin(rank, world); err != nil {
			return err
		}
	}
	s, err := client.Connect("", 0)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	c, err := s.Init(client.CommConfig{Rank: rank, World: world})
	if err != nil {
		return err
	}
	go func() { // ends with the process
		<-terminated
		time.Sleep(abortDelay)
		_ = c.Abort()
	}()
	out := json.NewEncoder(os.Stdout)
	switch {
	case j.Demo != nil:
		err = j.Demo.run(c, out)
	case j.DemoMoE != nil:
		err = j.DemoMoE.run(c, out)
	case j.Bench != nil:
		err = j.Bench.run(c, out)
	case j.MoE != nil:
		err = j.MoE.run(c, out)
	default:
		err = fmt.Errorf("%s names no job", jobVariable)
	}
	if err != nil {
		return err
	}
	return c.Finalize()
}

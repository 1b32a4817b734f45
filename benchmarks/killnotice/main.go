// Command killnotice measures how long the ranks of a group take to notice that one of them was killed.
//
// Each round starts a daemon and ranks, which map and touch a window and all-reduce in a loop. It kills one rank with SIGKILL in the
// middle of the loop, and records when the call of each other rank returns its error. For comparison it records when the pidfd of the
// dead process becomes readable, which a watcher without robust futexes would wait for. Times are CLOCK_MONOTONIC, which all processes
// share.
//
//	go run ./benchmarks/killnotice --ranks 4 --mib 1024 --busy 8 --rounds 20
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/tempdir"
	"railhead/internal/wire"
	"railhead/server"
)

const (
	roleVariable = "KILLNOTICE_ROLE"
	roundLimit   = 60 * time.Second
)

type options struct {
	ranks, mib, busy, rounds int
	noDaemon                 bool
	asJSON                   bool
}

func main() {
	var err error
	switch os.Getenv(roleVariable) {
	case "rank":
		err = rank()
	case "busy":
		//lint:ignore SA5002 burning a CPU is the purpose; it ends with its parent
		for {
		}
	default:
		err = measure()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "killnotice:", err)
		os.Exit(1)
	}
}

func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail for this clock
	return t.Nano()
}

// rank joins, touches its window, says "ready", and all-reduces until an error comes, whose time it prints.
func rank() error {
	id, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}
	world, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return err
	}
	mib, err := strconv.Atoi(os.Getenv("KILLNOTICE_MIB"))
	if err != nil {
		return err
	}
	s, err := client.Connect("", roundLimit)
	if err != nil {
		return err
	}
	c, err := s.Init(client.CommConfig{Rank: id, World: world, Timeout: roundLimit})
	if err != nil {
		return err
	}
	if mib > 0 {
		w, err := c.AllocWindow(mib << 20)
		if err != nil {
			return err
		}
		local, err := w.Local()
		if err != nil {
			return err
		}
		for i := 0; i < len(local); i += 4096 {
			local[i] = 1
		}
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	fmt.Println("ready")
	buf := make([]byte, 64<<10)
	for {
		if err := c.AllReduce(buf, buf, len(buf)/4, client.F32, client.Sum); err != nil {
			at := now()
			var e *client.Error
			if !errors.As(err, &e) || e.Result != wire.ResultRankDead {
				return err
			}
			fmt.Println(at, e.Message)
			return nil
		}
	}
}

// round has the times of one kill, in milliseconds since the kill.
type round struct {
	NoticeMS []float64 `json:"notice_ms"` // of each surviving rank
	PidfdMS  float64   `json:"pidfd_ms"`
}

func measure() error {
	var o options
	flag.IntVar(&o.ranks, "ranks", 4, "rank processes")
	flag.IntVar(&o.mib, "mib", 1024, "MiB of window that every rank maps and touches")
	flag.IntVar(&o.busy, "busy", 8, "busy loops that run meanwhile")
	flag.IntVar(&o.rounds, "rounds", 20, "kills")
	flag.BoolVar(&o.noDaemon, "no-daemon", false, "end the daemon before each kill: the ranks notice by themselves")
	flag.BoolVar(&o.asJSON, "json", false, "print JSON on stdout")
	flag.Parse()
	if o.ranks < 2 || o.rounds < 1 {
		return errors.New("at least 2 ranks and 1 round")
	}
	for range o.busy {
		stop, err := startBusy()
		if err != nil {
			return err
		}
		defer stop()
	}
	var rounds []round
	for i := range o.rounds {
		r, err := o.round(i % o.ranks)
		if err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		rounds = append(rounds, r)
	}
	return o.report(rounds)
}

func child(role string, env ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), roleVariable+"="+role), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd, nil
}

func startBusy() (stop func(), err error) {
	cmd, err := child("busy", "GOMAXPROCS=1")
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, nil
}

type runningRank struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func (o options) round(victim int) (round, error) {
	temporary, err := tempdir.Make()
	if err != nil {
		return round{}, err
	}
	defer func() { _ = temporary.Remove() }()
	dir := temporary.Path()
	s, err := server.Start(server.Config{SocketPath: filepath.Join(dir, "rh.sock")})
	if err != nil {
		return round{}, err
	}
	defer s.Close()
	ranks := make([]runningRank, o.ranks)
	for r := range ranks {
		cmd, err := child("rank", fmt.Sprintf("RANK=%d", r), fmt.Sprintf("WORLD_SIZE=%d", o.ranks),
			fmt.Sprintf("KILLNOTICE_MIB=%d", o.mib), "RAILHEAD_SOCKET="+s.SocketPath(), "RAILHEAD_GROUP=kill")
		if err != nil {
			return round{}, err
		}
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return round{}, err
		}
		if err := cmd.Start(); err != nil {
			return round{}, err
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		ranks[r] = runningRank{cmd, bufio.NewReader(pipe)}
	}
	// The limit ends the ranks, and with them every read below.
	limit := time.AfterFunc(roundLimit, func() {
		for _, r := range ranks {
			_ = r.cmd.Process.Kill()
		}
	})
	defer limit.Stop()
	for r := range ranks {
		if line, err := ranks[r].out.ReadString('\n'); err != nil || line != "ready\n" {
			return round{}, fmt.Errorf("rank %d: %q, %w", r, line, err)
		}
	}
	if o.noDaemon {
		s.Close()
	}
	time.Sleep(50 * time.Millisecond) // kill in the middle of the loop
	return kill(ranks, victim)
}

func kill(ranks []runningRank, victim int) (round, error) {
	var result round
	pidfd, err := unix.PidfdOpen(ranks[victim].cmd.Process.Pid, 0)
	if err != nil {
		return result, err
	}
	defer func() { _ = unix.Close(pidfd) }()
	start := now()
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		return result, err
	}
	readable := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(readable, int(roundLimit.Milliseconds()))
		if n == 1 {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return result, fmt.Errorf("the killed rank did not end: %w", err)
		}
	}
	result.PidfdMS = float64(now()-start) / 1e6
	for r := range ranks {
		if r == victim {
			continue
		}
		line, err := ranks[r].out.ReadString('\n')
		if err != nil {
			return result, fmt.Errorf("rank %d did not notice: %w", r, err)
		}
		at, message, _ := strings.Cut(line, " ")
		t, err := strconv.ParseInt(at, 10, 64)
		if err != nil || !strings.Contains(message, fmt.Sprintf("rank %d (pid", victim)) {
			return result, fmt.Errorf("rank %d does not name rank %d: %q", r, victim, line)
		}
		result.NoticeMS = append(result.NoticeMS, float64(t-start)/1e6)
	}
	return result, nil
}

func (o options) report(rounds []round) error {
	var notice, pidfd []float64
	for _, r := range rounds {
		notice = append(notice, r.NoticeMS...)
		pidfd = append(pidfd, r.PidfdMS)
	}
	if o.asJSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"rounds": rounds})
	}
	fmt.Printf("%d ranks, %d MiB each, %d busy loops, %d kills, %d CPUs (%s)\n", o.ranks, o.mib, o.busy, len(rounds), runtime.NumCPU(), cpuModel())
	fmt.Println("ms since the kill          min    p50    p99    max")
	for _, row := range []struct {
		name string
		ms   []float64
	}{{"survivors' calls return", notice}, {"pidfd readable", pidfd}} {
		sort.Float64s(row.ms)
		at := func(p float64) float64 { return row.ms[min(int(p*float64(len(row.ms))), len(row.ms)-1)] }
		fmt.Printf("%-23s %6.1f %6.1f %6.1f %6.1f\n", row.name, row.ms[0], at(0.5), at(0.99), row.ms[len(row.ms)-1])
	}
	fmt.Println("survivors' calls, by time:")
	writeHistogram(os.Stdout, notice)
	return nil
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for _, line := range strings.Split(string(b), "\n") {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimLeft(name, "\t :")
		}
	}
	return runtime.GOARCH
}

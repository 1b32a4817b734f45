package killrounds

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"railhead/internal/await"
	"railhead/internal/wire"
)

const (
	// bound is the time after the last strike within which every other rank must have reported it, and the time in which a rank must leave
	// a broken group. A stopped rank is found by the deadline of a wait, stopDeadline after the others have begun to wait.
	bound        = 5 * time.Second
	stopDeadline = time.Second
	// formDeadline is the deadline of a group whose victim may be killed before it has joined.
	formDeadline = 1500 * time.Millisecond
	// patience is far more than a step takes on a busy machine.
	patience = await.Patience
)

// round describes what happens to one group.
type round struct {
	order                 // of all ranks; Rank is 0
	victims []int         // ranks that are killed or stopped
	stops   bool          // by SIGSTOP, else SIGKILL
	daemon  bool          // the daemon is killed at the same time and another one is started
	when    string        // the strike follows this line of the first victim …
	after   time.Duration // … after this time
	slow    int           // deadlines and bounds are this many times as long

	waited time.Duration // how long the round's processes have waited for a processor, when it has ended
}

func newRound(seed, number uint64, slow int) *round {
	random := rand.New(rand.NewPCG(seed, number))
	r := &round{slow: slow, order: order{Group: fmt.Sprintf("round %d", number), World: 2 + random.IntN(4), Seed: random.Uint64()}}
	r.TimeoutMS = int(patience.Milliseconds())
	r.when = []string{lineStarted, lineWorking, lineWorking, lineWorking, lineSetup, lineSetup}[random.IntN(6)]
	r.after = time.Duration(random.IntN(3000)) * time.Microsecond
	switch random.IntN(3) {
	case 0:
		r.Splits, r.Windows, r.Registers = 10, 10, 10
	case 1:
		r.Splits, r.Windows, r.Registers = random.IntN(60), random.IntN(30), 0
	}
	if random.IntN(3) == 0 {
		r.Experts, r.Buffers = 30+random.IntN(40), 3
		r.Splits, r.Windows, r.Registers = r.Splits/4, r.Windows/4, r.Registers/4
	}
	if r.when == lineSetup {
		r.Windows += 10
	}
	if r.when == lineStarted {
		r.TimeoutMS = slow * int(formDeadline.Milliseconds())
	}
	r.victims = random.Perm(r.World)[:1]
	switch random.IntN(6) {
	case 0:
		r.victims = random.Perm(r.World)[:1+random.IntN(r.World-1)]
	case 1:
		r.stops = true
		r.TimeoutMS = slow * int(stopDeadline.Milliseconds())
	case 2:
		r.daemon = true
	case 3:
		r.daemon, r.victims = true, nil
	}
	return r
}

// short says whether a rank that only waits for a processor can reach a deadline.
func (r *round) short() bool { return r.TimeoutMS < int(patience.Milliseconds()) }

// byTime marks an error as one of time in a round with a short deadline.
func (r *round) byTime(err error) error {
	if err == nil || !r.short() {
		return err
	}
	return timeError{err}
}

func (r *round) kind() string {
	how := []string{"kill"}
	switch {
	case r.stops:
		how = []string{"stop"}
	case len(r.victims) == 0:
		how = nil
	case len(r.victims) > 1:
		how = []string{"kill several"}
	}
	if r.daemon {
		how = append(how, "daemon")
	}
	return strings.Join(how, "+") + " " + r.when
}

func (r *round) String() string {
	return fmt.Sprintf("%s: ranks %v of %d, %v after", r.kind(), r.victims, r.World, r.after)
}

// process is the process of a rank.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  map[string]chan struct{} // closed when the line has been read
	masked atomic.Uint64            // ranks that it goes on without
	report *report
	stderr bytes.Buffer
	ended  chan struct{} // closed when stdout has ended and the process was waited for
}

func (r *round) launch(socket string, rank int) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := r.order
	o.Socket, o.Rank = socket, rank
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self), ended: make(chan struct{})}
	p.lines = map[string]chan struct{}{lineStarted: make(chan struct{}), lineWorking: make(chan struct{}), lineSetup: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"=rank", "RAILHEAD_KILLROUNDS_ORDER="+string(text))
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	return p, nil
}

func (p *process) read(out io.Reader) {
	defer close(p.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if line, ok := p.lines[lines.Text()]; ok {
			close(line)
			continue
		}
		var masked uint64
		if n, _ := fmt.Sscanf(lines.Text(), lineMasked+" %d", &masked); n == 1 {
			p.masked.Store(masked)
			continue
		}
		var last report
		if json.Unmarshal(lines.Bytes(), &last) == nil {
			p.report = &last
		}
	}
	_ = p.cmd.Wait() // how it ended is in cmd.ProcessState
}

// launchAll returns the processes that were started, also with an error.
func (r *round) launchAll(d *daemon) (ranks []*process, err error) {
	d.waited = waitedForProcessor(d.cmd.Process.Pid)
	for rank := range r.World {
		p, err := r.launch(d.socket, rank)
		if err != nil {
			return ranks, err
		}
		ranks = append(ranks, p)
	}
	return ranks, nil
}

// end kills the processes that still run, and returns an error that says what is left of the group, or else the round's error.
func (r *round) end(d *daemon, ranks []*process, err error) error {
	for _, p := range ranks {
		waited := waitedForProcessor(p.cmd.Process.Pid)
		_ = p.cmd.Process.Kill()
		<-p.ended
		if p.report != nil {
			waited = max(waited, time.Duration(p.report.WaitedNS))
		}
		r.waited += waited
	}
	r.waited += max(0, waitedForProcessor(d.cmd.Process.Pid)-d.waited)
	if left := d.clean(); left != nil {
		return fmt.Errorf("%w; the round's error was %v", left, err) // never a timeError
	}
	return err
}

// play runs a round. Its error says what was wrong.
func (r *round) play(d *daemon) (err error) {
	ranks, err := r.launchAll(d)
	defer func() { err = r.end(d, ranks, err) }()
	if err != nil {
		return err
	}
	taken, err := r.strike(d, ranks)
	if err != nil {
		return err
	}
	if err := r.await(ranks); err != nil {
		return err
	}
	return r.judge(ranks, taken)
}

// strike kills or stops the victims and returns the time.
func (r *round) strike(d *daemon, ranks []*process) (at int64, err error) {
	watched := ranks[0]
	if len(r.victims) > 0 {
		watched = ranks[r.victims[0]]
	}
	select {
	case <-watched.lines[r.when]:
	case <-watched.ended:
		return 0, r.byTime(fmt.Errorf("a rank ended before the strike: %+v, %s", watched.report, watched.stderr.String()))
	case <-time.After(patience):
		return 0, fmt.Errorf("a rank did not print %q within %v", r.when, patience)
	}
	time.Sleep(r.after)
	if r.daemon {
		d.kill()
	}
	signal := syscall.SIGKILL
	if r.stops {
		signal = syscall.SIGSTOP
	}
	for _, rank := range r.victims {
		// A victim may have ended already, because of the death of another.
		if err := ranks[rank].cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return 0, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	at = now()
	if !r.daemon {
		return at, nil
	}
	if err := d.start(); err != nil {
		return 0, err
	}
	if len(r.victims) == 0 {
		time.Sleep(20 * time.Millisecond) // some work under the next daemon
		_ = ranks[0].stdin.Close()        // an error means that it has ended; then its report says why
	}
	return at, nil
}

func (r *round) taken(rank int) bool {
	for _, v := range r.victims {
		if v == rank {
			return true
		}
	}
	return false
}

// await waits until every survivor has ended.
func (r *round) await(ranks []*process) error {
	timeout := time.After(patience)
	for rank, p := range ranks {
		if r.taken(rank) {
			continue
		}
		select {
		case <-p.ended:
		case <-timeout:
			return fmt.Errorf("rank %d hangs", rank)
		}
	}
	return nil
}

// judge checks the reports of the survivors.
func (r *round) judge(ranks []*process, taken int64) error {
	culprits := map[int]bool{}
	for _, v := range r.victims {
		culprits[v] = true
	}
	for rank, p := range ranks {
		if r.taken(rank) {
			continue
		}
		if p.report == nil {
			return fmt.Errorf("rank %d ended without a report: %v, %s", rank, p.cmd.ProcessState, p.stderr.String())
		}
		// A rank ends when a set-up call has lost its daemon. Then the others may report this rank.
		if r.daemon && p.report.Setup && lostDaemon(p.report.Result) {
			culprits[rank] = true
		}
	}
	// A rank that finds another missing in a split's comm leaves. Then the group may report this rank instead of the other.
	leavers := map[int]bool{}
	for rank, p := range ranks {
		if !r.taken(rank) && p.report.Part {
			leavers[rank] = true
		}
	}
	for rank, p := range ranks {
		if r.taken(rank) || culprits[rank] {
			continue
		}
		if err := r.judgeOne(p.report, culprits, leavers); err != nil {
			return r.byTime(fmt.Errorf("rank %d: %w\n%s", rank, err, r.describe(ranks, taken)))
		}
		if late := time.Duration(p.report.AtNS - taken); len(r.victims) > 0 && late > r.bound() {
			return timeError{fmt.Errorf("rank %d took %v\n%s", rank, late, r.describe(ranks, taken))}
		}
		if left := time.Duration(p.report.LeftNS); left > r.bound() {
			return timeError{fmt.Errorf("rank %d took %v to leave a broken group", rank, left)}
		}
	}
	return nil
}

func (r *round) bound() time.Duration { return time.Duration(r.slow) * bound }

// describe lists the reports of all ranks, with times.
func (r *round) describe(ranks []*process, taken int64) string {
	var text strings.Builder
	for rank, p := range ranks {
		if p.report == nil {
			fmt.Fprintf(&text, "rank %d: killed or stopped\n", rank)
			continue
		}
		fmt.Fprintf(&text, "rank %d: after %v: %+v\n", rank, time.Duration(p.report.AtNS-taken), *p.report)
	}
	return text.String()
}

func lostDaemon(result wire.Result) bool {
	return result == wire.ResultDaemonLost || result == wire.ResultNoDaemon
}

func (r *round) judgeOne(p *report, culprits, leavers map[int]bool) error {
	if leavers[p.Culprit] {
		return nil // for this group it was late, or missing
	}
	if len(culprits) == 0 {
		if !p.Stopped {
			return errors.New("it ended with an error although no rank was killed or stopped")
		}
		return nil
	}
	want := map[wire.Result]bool{wire.ResultRankDead: true}
	if r.when == lineStarted {
		want[wire.ResultRankMissing] = true
	}
	if r.stops {
		want = map[wire.Result]bool{wire.ResultTimeout: true, wire.ResultRankMissing: true}
	}
	if !want[p.Result] {
		return errors.New("the error is not the expected one")
	}
	// While the group forms there is no comm to query, and the daemon's text names the rank.
	if p.Culprit >= 0 && !culprits[p.Culprit] {
		return fmt.Errorf("it reports rank %d; want one of %v", p.Culprit, culprits)
	}
	if p.Part && culprits[p.Culprit] {
		return nil // the message is about the split's comm, in which a rank may be missing that has left because of the death
	}
	for c := range culprits {
		if names(p.Message, c) || p.Part && names(p.Message, c/parts) {
			return nil
		}
	}
	return fmt.Errorf("its message names no rank of %v", culprits)
}

// names says whether a message names a rank: "rank 3", or "ranks 1 and 3".
func names(message string, rank int) bool {
	return regexp.MustCompile(fmt.Sprintf(`ranks? [^(]*\b%d\b`, rank)).MatchString(message)
}

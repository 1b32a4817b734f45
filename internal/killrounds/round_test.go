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

	"railhead/internal/wire"
)

const (
	// bound is how long after the last rank was taken away every other one must have said so. A stopped rank is found by the
	// deadline of a wait, stopDeadline after the others came to it.
	bound        = 5 * time.Second
	stopDeadline = time.Second
	// formDeadline is that of a group whose victim may be gone before the daemon knows of it.
	formDeadline = 1500 * time.Millisecond
	// patience is far beyond what a step takes on a busy machine.
	patience = 60 * time.Second
)

// round is what happens to one group.
type round struct {
	order                 // of all ranks; Rank is 0
	victims []int         // ranks that are taken away
	stops   bool          // by SIGSTOP, else SIGKILL
	daemon  bool          // the daemon is killed in the same moment, and another one started
	when    string        // the line of the first victim after which it happens
	after   time.Duration // that line
}

func newRound(seed, number uint64) *round {
	random := rand.New(rand.NewPCG(seed, number))
	r := &round{order: order{Group: fmt.Sprintf("round %d", number), World: 2 + random.IntN(4), Seed: random.Uint64()}}
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
		r.TimeoutMS = int(formDeadline.Milliseconds())
	}
	r.victims = random.Perm(r.World)[:1]
	switch random.IntN(6) {
	case 0:
		r.victims = random.Perm(r.World)[:1+random.IntN(r.World-1)]
	case 1:
		r.stops = true
		r.TimeoutMS = int(stopDeadline.Milliseconds())
	case 2:
		r.daemon = true
	case 3:
		r.daemon, r.victims = true, nil
	}
	return r
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

// process is a rank's.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  map[string]chan struct{} // closed when the line comes
	masked atomic.Uint64            // ranks that it goes on without
	report *report
	stderr bytes.Buffer
	ended  chan struct{} // its stdout has ended, and it has been waited for
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

// launchAll returns those that were launched, also with an error.
func (r *round) launchAll(d *daemon) (ranks []*process, err error) {
	for rank := range r.World {
		p, err := r.launch(d.socket, rank)
		if err != nil {
			return ranks, err
		}
		ranks = append(ranks, p)
	}
	return ranks, nil
}

// end kills what still runs, and says what is left of the group.
func (r *round) end(d *daemon, ranks []*process) error {
	for _, p := range ranks {
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return d.clean()
}

// play returns what was wrong, nil if nothing was.
func (r *round) play(d *daemon) (err error) {
	ranks, err := r.launchAll(d)
	defer func() { err = errors.Join(err, r.end(d, ranks)) }()
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

// strike takes the victims away, and says when.
func (r *round) strike(d *daemon, ranks []*process) (at int64, err error) {
	watched := ranks[0]
	if len(r.victims) > 0 {
		watched = ranks[r.victims[0]]
	}
	select {
	case <-watched.lines[r.when]:
	case <-watched.ended:
		return 0, fmt.Errorf("a rank ended before anything was done to it: %+v, %s", watched.report, watched.stderr.String())
	case <-time.After(patience):
		return 0, fmt.Errorf("a rank has not come to %q in %v", r.when, patience)
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
		// Of several, one may have learnt of another's death and ended.
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
		_ = ranks[0].stdin.Close()        // it may have ended: its report is to say why
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

// await waits until every rank that was left has ended.
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

// judge looks at what the ranks that were left have said.
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
		// A set-up call that lost its daemon ends its rank, which then is one that the others miss.
		if r.daemon && p.report.Setup && lostDaemon(p.report.Result) {
			culprits[rank] = true
		}
	}
	// A rank that misses another in a part leaves, and the group may then see it gone before it sees the other.
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
			return fmt.Errorf("rank %d: %w\n%s", rank, err, r.describe(ranks, taken))
		}
		if late := time.Duration(p.report.AtNS - taken); len(r.victims) > 0 && late > bound {
			return fmt.Errorf("rank %d took %v\n%s", rank, late, r.describe(ranks, taken))
		}
	}
	return nil
}

// describe lists what every rank has said, and when.
func (r *round) describe(ranks []*process, taken int64) string {
	var text strings.Builder
	for rank, p := range ranks {
		if p.report == nil {
			fmt.Fprintf(&text, "rank %d: taken away\n", rank)
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
		return nil // it is late, or gone, for this group
	}
	if len(culprits) == 0 {
		if !p.Stopped {
			return errors.New("nobody was taken away, and it ended with an error")
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
		return errors.New("not the error that was to be expected")
	}
	// While the group formed there was no comm to ask, and the daemon's text names the rank.
	if p.Culprit >= 0 && !culprits[p.Culprit] {
		return fmt.Errorf("it accuses rank %d, of %v", p.Culprit, culprits)
	}
	if p.Part && culprits[p.Culprit] {
		return nil // the message is about the part: there it may miss a rank that has learnt of the death before
	}
	for c := range culprits {
		if names(p.Message, c) || p.Part && names(p.Message, c/parts) {
			return nil
		}
	}
	return fmt.Errorf("no rank of %v in its message", culprits)
}

// names says whether a message names a rank: "rank 3", or "ranks 1 and 3".
func names(message string, rank int) bool {
	return regexp.MustCompile(fmt.Sprintf(`ranks? [^(]*\b%d\b`, rank)).MatchString(message)
}

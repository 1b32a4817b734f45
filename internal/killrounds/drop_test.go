package killrounds

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"railhead/internal/deep"
)

// dropRound is a group whose survivors go on with rounds of MoE while ranks are killed or stopped one after another.
type dropRound struct {
	round
	apart  bool // the second victim is struck after all survivors have masked the first
	resume bool // stopped ranks are continued after they have been masked

	slowest time.Duration // until a victim was masked
}

func newDropRound(seed, number uint64, slow int) *dropRound {
	random := rand.New(rand.NewPCG(seed, number|1<<63))
	r := &dropRound{round: round{slow: slow}}
	r.order = order{Group: fmt.Sprintf("drop %d", number), World: 3 + random.IntN(3), Seed: random.Uint64(), Drop: true}
	r.Renormalize = random.IntN(2) == 0
	r.when, r.after = lineWorking, time.Duration(random.IntN(20000))*time.Microsecond
	r.victims = random.Perm(r.World)[:1+random.IntN(2)]
	r.apart, r.stops = random.IntN(2) == 0, number%4 == 1 // stops are rare, since they take seconds
	r.TimeoutMS = int(patience.Milliseconds())
	if r.stops {
		r.TimeoutMS = slow * int(stopDeadline.Milliseconds())
		r.resume = random.IntN(2) == 0
	}
	r.Dies = !r.stops
	return r
}

func (r *dropRound) String() string {
	return fmt.Sprintf("%s, apart %v, resumed %v, renormalize %v", &r.round, r.apart, r.resume, r.Renormalize)
}

func (r *dropRound) play(d *daemon) (err error) {
	ranks, err := r.launchAll(d)
	defer func() { err = r.end(d, ranks, err) }()
	if err != nil {
		return err
	}
	taken := map[int]int64{}
	var gone uint64
	for i, v := range r.victims {
		if i == 0 || r.apart {
			if err := r.hear(ranks, gone); err != nil {
				return err
			}
			time.Sleep(r.after)
		}
		signal := syscall.SIGKILL
		if r.stops {
			signal = syscall.SIGSTOP
		}
		if err := ranks[v].cmd.Process.Signal(signal); err != nil {
			return r.byTime(fmt.Errorf("rank %d: %w: %+v, %s", v, err, ranks[v].report, ranks[v].stderr.String()))
		}
		taken[v] = now()
		gone |= 1 << v
	}
	if err := r.hear(ranks, gone); err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // some rounds without the victims
	for rank, p := range ranks {
		if r.resume && r.taken(rank) {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
		}
	}
	if r.resume {
		time.Sleep(20 * time.Millisecond) // some rounds beside the continued ranks, which stay masked
	}
	for _, p := range ranks {
		_ = p.stdin.Close()
	}
	return r.judgeDrop(ranks, gone, taken)
}

// hear waits until every survivor runs rounds and has masked exactly the ranks of a mask.
func (r *dropRound) hear(ranks []*process, gone uint64) error {
	for rank, p := range ranks {
		if gone>>rank&1 != 0 {
			continue
		}
		for deadline := time.Now().Add(patience); !p.plays(gone); time.Sleep(time.Millisecond) {
			select {
			case <-p.ended:
				return r.byTime(fmt.Errorf("rank %d ended early: %+v, %s", rank, p.report, p.stderr.String()))
			default:
			}
			// What is masked stays masked.
			if masked := p.masked.Load(); masked&^gone != 0 || time.Now().After(deadline) {
				return r.byTime(fmt.Errorf("rank %d has masked %#b, want %#b", rank, masked, gone))
			}
		}
	}
	return nil
}

// plays says whether a rank runs rounds and has masked these ranks.
func (p *process) plays(gone uint64) bool {
	select {
	case <-p.lines[lineWorking]:
		return p.masked.Load() == gone
	default:
		return false
	}
}

func (r *dropRound) judgeDrop(ranks []*process, gone uint64, taken map[int]int64) error {
	for rank, p := range ranks {
		if r.taken(rank) && !r.resume {
			continue
		}
		select {
		case <-p.ended:
		case <-time.After(patience):
			return fmt.Errorf("rank %d hangs", rank)
		}
		if p.report == nil || !p.report.Stopped {
			return r.byTime(fmt.Errorf("rank %d did not end well: %+v, %s", rank, p.report, p.stderr.String()))
		}
		if r.taken(rank) {
			continue // its results were right; the ranks that a victim has masked are not checked
		}
		if p.report.Drop.Lost != gone {
			return r.byTime(fmt.Errorf("rank %d has lost %#b, want %#b", rank, p.report.Drop.Lost, gone))
		}
		if left := time.Duration(p.report.Drop.LeftNS); left > r.bound() {
			return timeError{fmt.Errorf("rank %d took %v to leave", rank, left)}
		}
		for v, at := range taken {
			took := time.Duration(p.report.Drop.Noticed[v] - at)
			r.slowest = max(r.slowest, took)
			limit := r.bound()
			if r.stops { // each buffer waits for it once, and for the ranks that wait for it
				limit += 4 * time.Duration(r.slow) * stopDeadline
			}
			if took > limit {
				return timeError{fmt.Errorf("rank %d took %v to go on without rank %d", rank, took, v)}
			}
		}
	}
	return nil
}

func TestSurvivorsOfADispatchGoOnWithoutKilledAndStoppedRanks(t *testing.T) {
	seed := number(t, seedVariable, uint64(time.Now().UnixNano()))
	first := number(t, firstVariable, 0)
	rounds := uint64(deep.Rounds(t, 3, 6))
	t.Logf("%s=%d", seedVariable, seed)
	d := newDaemon(t)
	slowest := map[bool]time.Duration{}
	for i := first; i < first+rounds; i++ {
		var r *dropRound
		err := playPatiently(t, func(slow int) (time.Duration, error) {
			r = newDropRound(seed, i, slow)
			err := r.play(d)
			return r.waited, err
		})
		if err != nil {
			t.Fatalf("round %d, %s: %v\nsee it again with %s=%d %s=%d", i, r, err, seedVariable, seed, firstVariable, i)
		}
		slowest[r.stops] = max(slowest[r.stops], r.slowest)
	}
	t.Logf("noticed after at most %v of deaths, %v of ranks that were stopped (deadline %v)", slowest[false], slowest[true], stopDeadline)
}

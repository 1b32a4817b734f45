package group

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/membership"
	"railhead/server/session"
	"railhead/symm"
)

// Core is what the groups need of the daemon's core.
type Core interface {
	Post(f func())                          // any goroutine: f runs on the core's, unless the daemon ends before
	Session(id session.ID) *session.Session // nil = it has ended
	Overrun(s *session.Session)             // its queue is full: the session ends when this event has been dealt with
}

// Observer counts what happens.
type Observer interface {
	GroupFormed(took time.Duration)
	GroupEnded(result wire.Result)
	GroupAdopted()
	RankReannounced()
	LeaseDied()
	ErrorSent(code wire.Result)
}

// Config of Groups.
type Config struct {
	Core     Core
	Observer Observer
	Log      *slog.Logger
	TuneDir  string // of tuning tables; "" = tuner.TableDir()
	Started  time.Time
	// BeforePunch is called before a group's pages are given back, on the goroutine that does it. For tests; nil = nothing to do.
	BeforePunch func(id membership.GroupID)
}

// Groups are all groups of this node.
type Groups struct {
	core     Core
	observer Observer
	log      *slog.Logger
	machine  *membership.Machine
	memory   map[membership.GroupID]*memory
	segments map[symm.FileID]membership.GroupID // whose control segment a file is
	adopting *memory                            // of a group that the machine may take over
	traces   []flight.Trace                     // of groups that have ended, the latest last
	planner  *planner
	files    clientFiles
	wg       sync.WaitGroup // of goroutines that let memory go, or give pages back

	life        context.Context // ends with Close
	endLife     context.CancelFunc
	punching    chan struct{}               // has an element for each punch that runs
	beforePunch func(id membership.GroupID) // tests hold punches up; nil = nothing to do
}

// New returns no groups yet. The caller does not use it before Core works.
func New(c Config) (*Groups, error) {
	g := &Groups{
		core: c.Core, observer: c.Observer, log: c.Log, planner: newPlanner(c.TuneDir, c.Log),
		memory: map[membership.GroupID]*memory{}, segments: map[symm.FileID]membership.GroupID{},
		punching: make(chan struct{}, punchers), beforePunch: c.BeforePunch,
	}
	g.life, g.endLife = context.WithCancel(context.Background())
	config := machineConfig(c.Started)
	config.RootOfWaitChain = g.rootOfWaitChain
	var err error
	g.machine, err = membership.New(config)
	return g, err
}

// NextDeadline is when Tick has something to do; ok is false when nothing waits.
func (g *Groups) NextDeadline() (at time.Time, ok bool) { return g.machine.NextDeadline() }

// Tick fails what has passed its deadline.
func (g *Groups) Tick(now time.Time) { g.do(g.machine.Tick(now)) }

// Drain refuses new groups from now on.
func (g *Groups) Drain() { g.machine.Drain() }

// Count is the number of groups that somebody holds, and of ranks that have not come back to this daemon.
func (g *Groups) Count() (held, away int) { return g.machine.Groups(), g.machine.Away() }

// Close lets go of everything. Groups are not broken by it: their ranks go on without the daemon.
func (g *Groups) Close() {
	g.endLife()
	for id, m := range g.memory {
		m.release()
		delete(g.memory, id)
	}
}

// Wait waits for the groups' goroutines. It comes after Close, when no other goroutine uses the groups any more.
func (g *Groups) Wait() {
	g.wg.Wait()
	g.files.closeAll()
}

// Asker runs f on the core's goroutine and waits for it. After an error f may still run, later.
type Asker interface {
	Ask(ctx context.Context, f func(*Groups)) error
}

// AskFor asks about the groups, for as long as an answer may take. It fills a fresh value and hands it over, so that an answer
// that comes too late touches nothing of the caller's.
func AskFor[T any](a Asker, what func(*Groups) T) (T, error) {
	wait, cancel := context.WithTimeout(context.Background(), AnswerTimeout)
	defer cancel()
	answer := make(chan T, 1)
	if err := a.Ask(wait, func(g *Groups) { answer <- what(g) }); err != nil {
		var none T
		return none, err
	}
	return <-answer, nil
}

// AnswerTimeout is how long the core may take to answer a report.
const AnswerTimeout = 2 * time.Second

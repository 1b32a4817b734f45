package group

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/membership"
	"railhead/server/session"
	"railhead/symm"
)

// Core is the part of the daemon's core that the groups use.
type Core interface {
	Post(f func())                          // any goroutine: f runs on the core's, unless the daemon ends before
	Session(id session.ID) *session.Session // nil = it has ended
	Overrun(s *session.Session)             // the session's queue is full: the session ends after this event
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
	// BeforePunch is called before a group's pages are given back, on the goroutine that does it. If it returns an error, they are not. For
	// tests; nil = nothing to do.
	BeforePunch func(id membership.GroupID) error
}

// Groups are all groups of this node.
type Groups struct {
	core       Core
	observer   Observer
	log        *slog.Logger
	machine    *membership.Machine
	memory     map[membership.GroupID]*memory
	segments   map[symm.FileID]membership.GroupID // whose control segment a file is
	adopting   *memory                            // memory of a group that the machine may take over
	traces     []flight.Trace                     // of groups that have ended, the latest last
	operations flight.Tally                       // of all groups
	planner    *planner
	files      clientFiles
	wg         sync.WaitGroup // goroutines that release memory or pages

	life        context.Context // ends with Close
	endLife     context.CancelFunc
	punching    chan struct{}                     // has an element for each punch that runs
	beforePunch func(id membership.GroupID) error // for tests that delay or fail punches; nil = nothing to do
	storeMade   storeMade                         // for tests; nil = nothing to do
}

// New returns an empty Groups. The caller must not use it before Core runs.
func New(c Config) (*Groups, error) {
	g := &Groups{
		core: c.Core, observer: c.Observer, log: c.Log, planner: newPlanner(c.TuneDir, c.Log),
		memory: map[membership.GroupID]*memory{}, segments: map[symm.FileID]membership.GroupID{},
		punching: make(chan struct{}, punchers), beforePunch: c.BeforePunch,
	}
	g.life, g.endLife = context.WithCancel(context.Background())
	config := machineConfig(c.Started)
	config.RootOfWaitChain = g.rootOfWaitChain
	config.Operation = g.operationOf
	var err error
	g.machine, err = membership.New(config)
	return g, err
}

// NextDeadline is the time of the next Tick that is needed; ok is false if there is none.
func (g *Groups) NextDeadline() (at time.Time, ok bool) { return g.machine.NextDeadline() }

// Tick fails every group and call whose deadline has passed.
func (g *Groups) Tick(now time.Time) {
	g.readAborts(slices.Collect(maps.Keys(g.memory)))
	g.do(g.machine.Tick(now))
}

// Drain refuses new groups from now on.
func (g *Groups) Drain() { g.machine.Drain() }

// Count is the number of groups that a rank holds, and the number of ranks that have not come back to this daemon.
func (g *Groups) Count() (held, away int) { return g.machine.Groups(), g.machine.Away() }

// Close releases all memory and descriptors. It does not break groups: their ranks go on without the daemon.
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

// Asker runs f on the core's goroutine and waits for it. After an error, f may still run later.
type Asker interface {
	Ask(ctx context.Context, f func(*Groups)) error
}

// AskFor asks the core about the groups and waits at most AnswerTimeout. The answer is a fresh value, so that a late answer does not
// write to the caller's memory.
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

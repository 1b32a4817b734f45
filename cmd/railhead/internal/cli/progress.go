package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How often progress is shown: on a terminal a line that is rewritten, else a line each time, as in a log.
const (
	terminalInterval = time.Second
	logInterval      = 10 * time.Second
	quietTime        = 3 * time.Second // a command that takes less shows none
)

// Progress shows how far a long command is, and estimates how long it will still take. Its methods may be called at any time from
// any goroutine.
type Progress struct {
	what     string
	to       io.Writer
	terminal bool

	mu          sync.Mutex
	began       time.Time
	done, total float64 // units of work
	shown       bool    // the line is on the terminal

	stop    chan struct{}
	stopped sync.WaitGroup
}

// StartProgress shows progress on stderr until Stop. total is the work in any unit in which the time is about proportional to it.
func StartProgress(what string, total float64) *Progress {
	_, err := unix.IoctlGetTermios(int(os.Stderr.Fd()), unix.TCGETS)
	p := &Progress{what: what, to: os.Stderr, terminal: err == nil, began: time.Now(), total: total, stop: make(chan struct{})}
	interval := logInterval
	if p.terminal {
		interval = terminalInterval
	}
	p.stopped.Go(func() { p.run(interval) })
	return p
}

func (p *Progress) run(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case now := <-tick.C:
			p.show(now)
		}
	}
}

// Add adds work that is done.
func (p *Progress) Add(work float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = min(p.done+work, p.total)
}

// Stop ends the display. It must be called once.
func (p *Progress) Stop() {
	close(p.stop)
	p.stopped.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// Above returns a writer to out, for lines that stay: the line of progress, which may be on the same terminal, is erased before.
func (p *Progress) Above(out io.Writer) io.Writer { return above{p, out} }

type above struct {
	p   *Progress
	out io.Writer
}

func (a above) Write(b []byte) (int, error) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.p.erase()
	return a.out.Write(b)
}

func (p *Progress) show(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.began) < quietTime {
		return
	}
	p.erase()
	line, end := p.line(now.Sub(p.began)), "\n"
	if p.terminal {
		end = ""
	}
	_, _ = fmt.Fprint(p.to, line+end)
	p.shown = p.terminal
}

// erase removes the line: back to its first column, then erase to its end (ECMA-48).
func (p *Progress) erase() {
	if p.shown {
		_, _ = fmt.Fprint(p.to, "\r\x1b[K")
		p.shown = false
	}
}

// line assumes that the rest of the work takes as long for each unit as the work that is done.
func (p *Progress) line(elapsed time.Duration) string {
	if p.done <= 0 {
		return fmt.Sprintf("%s: running for %v", p.what, elapsed.Round(time.Second))
	}
	left := time.Duration(float64(elapsed) * (p.total - p.done) / p.done)
	return fmt.Sprintf("%s: %.0f %%, about %v left", p.what, 100*p.done/p.total, left.Round(time.Second))
}

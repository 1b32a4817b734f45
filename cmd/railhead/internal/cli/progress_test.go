package cli

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

func TestProgressEstimatesTheTimeLeft(t *testing.T) {
	for want, c := range map[string]struct{ done, total, seconds float64 }{
		"bench: running for 5s":              {0, 10, 5},
		"bench: 25 %, about 30s left":        {1, 4, 10},
		"bench: 50 %, about 1h0m0s left":     {7, 14, 3600},
		"bench: 100 %, about 0s left":        {4, 4, 10},
		"bench: 100 %, about 0s left (more)": {5, 4, 10},
	} {
		p := &Progress{what: "bench", total: c.total}
		p.Add(c.done)
		got := p.line(time.Duration(c.seconds * float64(time.Second)))
		if c.done > c.total {
			got += " (more)"
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestProgressOnATerminalIsOneLineThatOutputErases(t *testing.T) {
	for terminal, want := range map[bool]string{
		true:  "x: running for 4s\r\x1b[Kx: 50 %, about 6s left\r\x1b[Krow\nx: 50 %, about 8s left\r\x1b[K",
		false: "x: running for 4s\nx: 50 %, about 6s left\nrow\nx: 50 %, about 8s left\n",
	} {
		var screen bytes.Buffer
		began := time.Now()
		p := &Progress{what: "x", to: &screen, terminal: terminal, began: began, total: 2, stop: make(chan struct{})}
		p.show(began.Add(2 * time.Second)) // a short command shows nothing
		p.show(began.Add(4 * time.Second))
		p.Add(1)
		p.show(began.Add(6 * time.Second))
		_, _ = fmt.Fprintln(p.Above(&screen), "row")
		p.show(began.Add(8 * time.Second))
		p.Stop()
		if screen.String() != want {
			t.Errorf("terminal %v: got %q, want %q", terminal, screen.String(), want)
		}
	}
}

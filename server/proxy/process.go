package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"railhead/internal/proxycontrol"
)

// process is one proxy process. Its goroutine reads what it says, and waits for its end.
type process struct {
	command *exec.Cmd
	conn    *proxycontrol.Conn
	began   time.Time
	ended   chan struct{}
	how     error // after ended

	asking  sync.Mutex // one question at a time
	sending sync.Mutex
	answers chan json.RawMessage
}

func start(c Config) (*process, error) {
	conn, theirs, err := proxycontrol.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p := &process{conn: conn, began: time.Now(), ended: make(chan struct{}), answers: make(chan json.RawMessage, 1)}
	p.command = exec.Command(c.Command[0], c.Command[1:]...)
	p.command.Env = append(os.Environ(), c.Env...)
	p.command.Stderr = os.Stderr
	p.command.ExtraFiles = []*os.File{theirs} // ControlFD
	if err := p.command.Start(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("start %s: %w", c.Command[0], err)
	}
	go p.read()
	return p, nil
}

// read ends with the process.
func (p *process) read() {
	for {
		kind, body, _, err := p.conn.Recv()
		if err != nil {
			break
		}
		if kind == proxycontrol.Status {
			select {
			case p.answers <- body:
			default: // nobody waits for it any more
			}
		}
	}
	p.kill() // it has closed its socket: it ends, or is broken
	p.how = p.command.Wait()
	_ = p.conn.Close()
	close(p.ended)
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) kill() { _ = p.command.Process.Kill() }

func (p *process) send(kind proxycontrol.Kind, v any, fd int) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	if err := p.conn.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return err
	}
	return p.conn.Send(kind, v, fd)
}

func (p *process) status(ctx context.Context) (json.RawMessage, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	select {
	case <-p.answers: // a late one
	default:
	}
	if err := p.send(proxycontrol.Ask, nil, -1); err != nil {
		return nil, err
	}
	select {
	case answer := <-p.answers:
		return answer, nil
	case <-p.ended:
		return nil, fmt.Errorf("the proxy has ended: %w", p.how)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"railhead/internal/proxycontrol"
)

// Serve is a proxy process: it does what the daemon says over a connection, until the daemon goes. Then it ends all agents, and returns nil.
func Serve(control *proxycontrol.Conn, c Config) error {
	n := NewNode(c)
	defer n.Close()
	for {
		kind, body, fd, err := control.Recv()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("proxy: the daemon's socket: %w", err)
		}
		if err := n.obey(control, kind, body, fd); err != nil {
			return fmt.Errorf("proxy: the daemon's message: %w", err)
		}
	}
}

func (n *Node) obey(control *proxycontrol.Conn, kind proxycontrol.Kind, body []byte, fd int) error {
	if kind == proxycontrol.Ask {
		return control.Send(proxycontrol.Status, n.Status(), -1)
	}
	var named proxycontrol.Named
	if err := json.Unmarshal(body, &named); err != nil {
		return err
	}
	switch kind {
	case proxycontrol.Agent:
		conn, err := socketOf(fd)
		if err != nil {
			return err
		}
		if _, err := n.NewAgent(named.ID, named.Name, conn); err != nil {
			n.config.Log.Warn("an agent is not taken", "err", err) // its client has been told
		}
		return nil
	case proxycontrol.End:
		n.End(named.ID)
		return nil
	}
	return fmt.Errorf("kind %q", kind)
}

// socketOf takes a descriptor over.
func socketOf(fd int) (*net.UnixConn, error) {
	if fd < 0 {
		return nil, errors.New("an agent without a socket")
	}
	_ = unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), "agent")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("an agent's descriptor is no unix socket")
	}
	return u, nil
}

// Command daemonload measures how many handshakes a second a daemon answers, and how long it takes to form many groups of many ranks.
// Its clients speak the wire protocol and map nothing, so it measures the daemon alone.
//
//	go run ./benchmarks/daemonload --connects 5000 --groups 64 --ranks 64
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/tempdir"
	"railhead/internal/wire"
	"railhead/server"
)

const (
	daemonVariable = "DAEMONLOAD_SOCKET"
	limit          = 60 * time.Second // of every wait
	atATime        = 64               // handshakes at the same time
)

func main() {
	err := measure
	if socket := os.Getenv(daemonVariable); socket != "" {
		err = func() error { return serve(socket) }
	}
	if err := err(); err != nil {
		fmt.Fprintln(os.Stderr, "daemonload:", err)
		os.Exit(1)
	}
}

// serve is the daemon, in a process of its own: both sides hold a descriptor for each session. It ends with its parent.
func serve(socket string) error {
	if _, err := server.Start(server.Config{SocketPath: socket}); err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

func measure() error {
	connects := flag.Int("connects", 5000, "connections that make a handshake and close")
	groups := flag.Int("groups", 64, "groups")
	ranks := flag.Int("ranks", 64, "ranks of each")
	flag.Parse()
	temporary, err := tempdir.Make()
	if err != nil {
		return err
	}
	defer func() { _ = temporary.Remove() }()
	dir := temporary.Path()
	socket := filepath.Join(dir, "rh.sock")
	stop, err := startDaemon(socket)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Printf("%d CPUs, %s\n", runtime.NumCPU(), runtime.GOARCH)
	began := time.Now()
	if err := inParallel(*connects, atATime, func(int) error { return connectAndClose(socket) }); err != nil {
		return fmt.Errorf("connections: %w", err)
	}
	took := time.Since(began)
	fmt.Printf("%d handshakes in %.2f s: %.0f a second\n", *connects, took.Seconds(), float64(*connects)/took.Seconds())
	return form(socket, *groups, *ranks)
}

func startDaemon(socket string) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), daemonVariable+"="+socket)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	if _, err := out.Read(make([]byte, 16)); err != nil {
		stop()
		return nil, fmt.Errorf("the daemon did not start: %w", err)
	}
	return stop, nil
}

// inParallel calls f(0) to f(n-1), width at a time, and returns the errors.
func inParallel(n, width int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	slots := make(chan struct{}, width)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func connectAndClose(socket string) error {
	c, err := handshake(socket)
	if err != nil {
		return err
	}
	return c.Close()
}

// handshake connects, sends Hello and receives Welcome.
func handshake(socket string) (*wire.Conn, error) {
	u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	c := wire.NewConn(u)
	_ = c.SetDeadline(time.Now().Add(limit)) // fails for a closed connection, as the next call does
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	defer func() { _ = unix.Close(pidfd) }()
	hello := &wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, PID: uint32(os.Getpid())}
	if err := c.Send(hello, wire.VersionMax, 0, pidfd); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if _, err := expect[*wire.Welcome](c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func expect[M wire.Message](c *wire.Conn) (M, error) {
	m, fd, err := c.Recv()
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	got, ok := m.(M)
	if err == nil && !ok {
		err = fmt.Errorf("got %T: %+v", m, m)
	}
	return got, err
}

// form makes all groups at the same time, each rank on a connection of its own.
func form(socket string, groups, ranks int) error {
	conns := make([]*wire.Conn, groups*ranks)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	if err := inParallel(len(conns), atATime, func(i int) (err error) {
		conns[i], err = handshake(socket)
		return err
	}); err != nil {
		return fmt.Errorf("ranks: %w", err)
	}
	began := time.Now()
	if err := inParallel(len(conns), len(conns), func(i int) error { return join(conns[i], i/ranks, i%ranks, ranks) }); err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	took := time.Since(began)
	fmt.Printf("%d groups of %d ranks formed in %.2f s, %.2f ms a group, each rank with the descriptors of all heaps\n", groups, ranks,
		took.Seconds(), took.Seconds()*1e3/float64(groups))
	return nil
}

// join becomes a rank and returns when the group works.
func join(c *wire.Conn, group, rank, world int) error {
	name, err := wire.MakeName(fmt.Sprintf("group %d", group))
	if err != nil {
		return err
	}
	const request = 1
	if err := c.Send(&wire.Join{
		Group: name, Common: wire.Common{World: uint32(world), Nodes: 1, HeapBytes: 1 << 20, Reproducible: 1},
		Own: wire.Own{Place: wire.OneNode(rank, world), TimeoutMS: uint32(limit.Milliseconds())},
	}, wire.VersionMax, request, -1); err != nil {
		return err
	}
	joined, err := expect[*wire.Joined](c)
	if err != nil {
		return err
	}
	for range world {
		if _, err := expect[*wire.Heap](c); err != nil {
			return err
		}
	}
	if err := c.Send(&wire.Attached{Group: joined.Group}, wire.VersionMax, request, -1); err != nil {
		return err
	}
	_, err = expect[*wire.GroupReady](c)
	return err
}

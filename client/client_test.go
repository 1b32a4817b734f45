package client_test

import (
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"

	"railhead/client"
	"railhead/server"
)

func startDaemon(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.Start(server.Config{SocketPath: t.TempDir() + "/rh.sock"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// eachRank runs f on world ranks, each with a session and a comm of its own.
func eachRank(t testing.TB, s *server.Server, config client.CommConfig, f func(c *client.Comm) error) {
	t.Helper()
	if config.Group == "" {
		config.Group = t.Name()
	}
	if config.Timeout == 0 {
		config.Timeout = 60 * time.Second
	}
	var wg sync.WaitGroup
	for r := range config.World {
		wg.Add(1)
		go func() {
			defer wg.Done()
			sess, err := client.Connect(s.SocketPath(), config.Timeout)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = sess.Close() }()
			mine := config
			mine.Rank = r
			c, err := sess.Init(mine)
			if err != nil {
				t.Error(err)
				return
			}
			if err := f(c); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			if err := c.Finalize(); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
}

func bytesOf(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*4)
}

func TestSmoke(t *testing.T) {
	s := startDaemon(t)
	eachRank(t, s, client.CommConfig{World: 4}, func(c *client.Comm) error {
		for n := range 1000 {
			in := make([]float32, 100000)
			for i := range in {
				in[i] = float32(c.Rank()*i + n)
			}
			if err := c.AllReduce(bytesOf(in), bytesOf(in), len(in), client.F32); err != nil {
				return err
			}
			for i := range in {
				if want := float32(6*i + 4*n); math.Abs(float64(in[i]-want)) > 0.5*math.Ceil(float64(want)/1e6) {
					t.Fatalf("n %d i %d: %v want %v", n, i, in[i], want)
				}
			}
		}
		w, err := c.AllocWindow(1 << 20)
		if err != nil {
			return err
		}
		b, err := w.Peer((c.Rank() + 1) % 4)
		if err != nil {
			return err
		}
		b[5] = byte(c.Rank())
		if err := c.Barrier(); err != nil {
			return err
		}
		l, err := w.Local()
		if err != nil {
			return err
		}
		if l[5] != byte((c.Rank()+3)%4) {
			t.Error("window", l[5])
		}
		return w.Free()
	})
}

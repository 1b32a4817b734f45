package tests

import (
	"errors"
	"fmt"
	"testing"

	"railhead/client"
	"railhead/client/device/threads"
	"railhead/internal/wire"
)

// The ranks capture into two graphs in different orders, but each graph has the same calls on both ranks.
func TestTwoConcurrentCapturesOfOneComm(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{World: 2, HeapBytes: 8 << 20})
	execs := make([][2]*threads.Exec, 2)
	for i, r := range ranks {
		streams := [2]onStreams{r, {r.member, newStream(t)}}
		buf := threads.Alloc(400)
		for _, s := range streams {
			if err := s.stream.BeginCapture(); err != nil {
				t.Fatal(err)
			}
		}
		for _, at := range [][]int{{0, 1, 0}, {0, 0, 1}}[i] {
			if err := streams[at].allReduce(buf); err != nil {
				t.Fatal(err)
			}
		}
		for n := range streams { // the capture of stream 0 ends last
			at := 1 - n
			g, err := streams[at].stream.EndCapture()
			if err != nil {
				t.Fatal(err)
			}
			if execs[i][at], err = g.Instantiate(); err != nil {
				t.Fatal(err)
			}
			if err := g.Destroy(); err != nil {
				t.Fatal(err)
			}
			if at == 0 {
				continue
			}
			_, err = r.AllocWindow(4096)
			wantError(t, err, wire.ResultBusy, "window_alloc", "being captured")
		}
	}
	eachRank(t, ranks, func(r onStreams) error {
		for n := range 4 {
			if err := execs[r.Rank()][n%2].Launch(r.stream); err != nil {
				return err
			}
		}
		if err := r.wait(); err != nil {
			return fmt.Errorf("replays: %w", err)
		}
		return errors.Join(execs[r.Rank()][0].Destroy(), execs[r.Rank()][1].Destroy())
	})
}

func TestBuffersAreNeitherCreatedNorDestroyedDuringACapture(t *testing.T) {
	ranks := formOnStreams(t, client.CommConfig{World: 2, HeapBytes: 8 << 20})
	config := client.EPConfig{Mode: client.EPLowLatency, MaxTokensPerRank: 4, Hidden: 16, NumExperts: 4, TopK: 2, Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32}
	eachRank(t, ranks, func(r onStreams) error {
		ep, err := r.NewEP(config)
		if err != nil {
			return err
		}
		buf := threads.Alloc(400)
		r.capture(t, func() error {
			if err := r.allReduce(buf); err != nil {
				return err
			}
			_, err := r.NewEP(config)
			wantError(t, err, wire.ResultBusy, "ep_create", "being captured")
			wantError(t, ep.Destroy(), wire.ResultBusy, "ep_destroy", "being captured")
			return nil
		})
		return ep.Destroy()
	})
}

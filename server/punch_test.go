package server

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"railhead/client"
	"railhead/internal/await"
	"railhead/server/group"
	"railhead/server/membership"
)

// heldPunches makes a daemon release no pages of one group until let is closed.
type heldPunches struct {
	group   atomic.Uint64 // membership.GroupID
	reached chan struct{} // has an element when a punch of the group is held
	let     chan struct{}
	once    sync.Once
}

func holdPunches() *heldPunches {
	return &heldPunches{reached: make(chan struct{}, 8), let: make(chan struct{})}
}

func (h *heldPunches) letGo() { h.once.Do(func() { close(h.let) }) }

func (h *heldPunches) before(id membership.GroupID) error {
	if uint64(id) == h.group.Load() {
		h.reached <- struct{}{}
		<-h.let
	}
	return nil
}

// useAndFree writes to a window on every rank and frees it.
func useAndFree(r *rank) error { return useWindow(r.comm, mebibyte) }

// A group whose pages take long to release delays no other group, and gets the range again only when it is zero.
func TestReleasingPagesDelaysOnlyTheirOwnGroup(t *testing.T) {
	t.Parallel()
	h := holdPunches()
	s := startConfig(t, Config{beforePunch: h.before})
	t.Cleanup(h.letGo)                                                             // Close waits for it
	slow := formed(t, s, client.CommConfig{Group: "slow", HeapBytes: mebibyte}, 2) // room for one window
	h.group.Store(uint64(groupOf(t, s, "slow").ID))
	var returned atomic.Int64
	wait := background(slow, func(r *rank) error {
		err := useAndFree(r)
		returned.Add(1)
		return err
	})
	await.Next(t, "the pages of the slow group", h.reached)

	other := formed(t, s, client.CommConfig{Group: "other", HeapBytes: mebibyte}, 2)
	for range 3 {
		mustEach(t, other, "a window of the other group", useAndFree)
	}
	end(t, other)
	if n := returned.Load(); n != 0 {
		t.Errorf("%d ranks were told that their window was freed before its pages were released", n)
	}
	if g := groupOf(t, s, "slow"); g.State != membership.Ready || g.ReleasingIn != "window_free" || g.WaitingIn != "" || len(g.WaitingFor) != 0 {
		t.Errorf("no rank of the slow group is late, and it is %+v", g)
	}
	h.letGo()
	for r, err := range wait() {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	mustEach(t, slow, "the same range again", useAndFree) // fails unless it is zero
	end(t, slow)
}

// A daemon that ends before it has released pages leaves them to the next one. The call has ended anyway.
func TestTheNextDaemonReleasesThePagesThatTheLastOneDidNot(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "rh.sock")
	h := holdPunches()
	first := startConfig(t, Config{SocketPath: socket, beforePunch: h.before})
	t.Cleanup(h.letGo) // Close waits for it
	ranks := formed(t, first, client.CommConfig{Group: "g", HeapBytes: mebibyte}, 2)
	h.group.Store(uint64(groupOf(t, first, "g").ID))
	wait := background(ranks, useAndFree)
	await.Next(t, "the pages", h.reached)
	closed := make(chan struct{})
	go func() { first.Close(); close(closed) }()
	await.Next(t, "the end of the first daemon's life", first.core.life.Done())
	h.letGo()
	await.Next(t, "Close", closed)

	second := startConfig(t, Config{SocketPath: socket})
	for r, err := range wait() {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	scratch := float64(2 * group.ScratchBytes())
	await.Until(t, func() string {
		if v := metric(t, second, "railhead_heap_committed_bytes"); v != scratch {
			return fmt.Sprintf("the heaps hold %v bytes, the scratch is %v", v, scratch)
		}
		return ""
	})
	mustEach(t, ranks, "the same range again", useAndFree)
	end(t, ranks)
}

// A window begins as zeros, so a range whose pages could not be released is not used again.
func TestARangeWhosePagesCannotBeReleasedIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	failing.Store(true)
	var said logBook
	s := startConfig(t, Config{
		Log: said.logger(),
		beforePunch: func(membership.GroupID) error {
			if failing.Load() {
				return errors.New("the hole was not punched")
			}
			return nil
		},
	})
	ranks := formed(t, s, client.CommConfig{Group: "g", HeapBytes: 2 * mebibyte}, 2) // room for two windows
	mustEach(t, ranks, "a window whose pages stay", useAndFree)
	id := groupOf(t, s, "g").ID
	want := fmt.Sprintf("group=%d offset=%d bytes=%d error=\"the hole was not punched\"", id, group.ScratchBytes(), mebibyte)
	if !said.has(want) || !said.has("form a new one") {
		t.Errorf("the log lacks %q: %s", want, said.text.String())
	}
	failing.Store(false)
	for range 2 {
		mustEach(t, ranks, "the other range", useAndFree) // fails unless it is zero
	}
	if g := groupOf(t, s, "g"); g.WindowBytes != 0 || len(g.Windows) != 0 {
		t.Errorf("the group has no window, and it is %+v", g)
	}
	for r, err := range background(ranks, func(r *rank) error { return useWindow(r.comm, 2*mebibyte) })() {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the largest has %d bytes", mebibyte)) {
			t.Errorf("rank %d got a window of the whole heap: %v", r, err)
		}
	}
	end(t, ranks)
}

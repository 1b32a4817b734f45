package kv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
	"railhead/server"
)

// proxyPID finds the proxy process of this test's only daemon: it is a child of this process, whose first argument is that of no other child.
func proxyPID(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		children, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			continue
		}
		for _, child := range strings.Fields(string(children)) {
			environment, err := os.ReadFile("/proc/" + child + "/environ")
			if err == nil && bytes.Contains(environment, []byte(proxyEnv)) {
				pid, _ := strconv.Atoi(child)
				return pid
			}
		}
	}
	t.Fatal("no proxy runs")
	return 0
}

// stop stops a process, and waits until all of its threads have stopped: some may go on for a moment.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("no threads of process %d: %v", pid, err)
		}
		running := slices.ContainsFunc(tasks, func(task string) bool {
			stat, err := os.ReadFile(task)
			_, state, _ := bytes.Cut(stat, []byte(") "))
			return err != nil || !bytes.HasPrefix(state, []byte("T"))
		})
		if !running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the process does not stop")
		}
	}
}

func result(err error) wire.Result {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Result
	}
	return wire.ResultOK
}

// TestWhenTheProxyDies: operations under way end, the agent's calls say so, what was granted before is stale, and the next agents get another
// proxy.
func TestWhenTheProxyDies(t *testing.T) {
	s := startDaemon(t)
	prefill, decode := join(t, connect(t, s), "prefill", 4), join(t, connect(t, s), "decode", 4)
	ref := prefill.grant(nil, client.KVRead, "decode")
	pid := proxyPID(t)
	stop(t, pid)
	x := client.KVTransfer{Op: client.KVRead, Cache: decode.pool, Peer: "prefill", Reference: ref, Blocks: []uint32{1}}
	var ids []uint64
	for range 3 {
		id, err := decode.Submit(x)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if events, err := decode.Poll(50 * time.Millisecond); len(events) > 0 || err != nil {
		t.Errorf("%v, %v from a proxy that is stopped", events, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if e := decode.end(id); e.Result != wire.ResultDaemonLost || !strings.Contains(e.Text, "the proxy has ended") {
			t.Errorf("%+v", e)
		}
	}
	_, pollErr := decode.Poll(time.Second)
	_, submitErr := decode.Submit(x)
	_, grantErr := prefill.Grant(prefill.pool, nil, client.KVRead, time.Minute, "decode")
	_, receiveErr := prefill.Receive()
	for name, err := range map[string]error{"poll": pollErr, "submit": submitErr, "grant": grantErr, "receive": receiveErr} {
		if result(err) != wire.ResultDaemonLost || !strings.Contains(err.Error(), "make another one") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := decode.Destroy(); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if err := prefill.Destroy(); err != nil {
		t.Errorf("destroy: %v", err)
	}
	prefill, decode = join(t, connect(t, s), "prefill", 4), join(t, connect(t, s), "decode", 4)
	x.Cache = decode.pool
	if e := decode.do(x); e.Result != wire.ResultStale {
		t.Errorf("an earlier agent's reference: %v", e.Err())
	}
	x.Reference = prefill.grant(nil, client.KVRead, "decode")
	if e := decode.do(x); e.Err() != nil {
		t.Error(e.Err())
	}
}

func TestWhenTheDaemonEndsItsAgentsDo(t *testing.T) {
	s := startDaemon(t)
	a := join(t, connect(t, s), "a", 4)
	pid := proxyPID(t)
	s.Close()
	if _, err := a.Poll(limit); result(err) != wire.ResultDaemonLost {
		t.Errorf("%v", err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the proxy is there: %v", err)
	}
}

// TestAProxyThatHangsIsKilled takes 12 s, in which it sleeps.
func TestAProxyThatHangsIsKilled(t *testing.T) {
	s := startDaemon(t)
	a := join(t, connect(t, s), "a", 4)
	stop(t, proxyPID(t))
	begin := time.Now()
	_, err := a.Poll(40 * time.Second)
	if result(err) != wire.ResultDaemonLost {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	t.Logf("noticed after %v", time.Since(begin))
}

// TestTheEndOfASessionEndsItsAgents: the name is free, and peers are told.
func TestTheEndOfASessionEndsItsAgents(t *testing.T) {
	s := startDaemon(t)
	session, err := client.Connect(s.SocketPath(), limit)
	if err != nil {
		t.Fatal(err)
	}
	a, b := join(t, session, "a", 4), join(t, connect(t, s), "b", 4)
	ref := b.grant(nil, client.KVRead, "a")
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Poll(limit); result(err) != wire.ResultDaemonLost {
		t.Errorf("%v", err)
	}
	events, err := b.Poll(limit)
	if err != nil || len(events) != 1 || events[0].Kind != client.KVGrantEnded || events[0].Reason != 3 {
		t.Errorf("%+v, %v", events, err)
	}
	join(t, connect(t, s), "a", 4)
	_ = ref
}

func TestAWaitingPollIsWokenByAnEventAndByANotification(t *testing.T) {
	s := startDaemon(t)
	a, b := join(t, connect(t, s), "a", 4), join(t, connect(t, s), "b", 4)
	for range 20 {
		done := make(chan error, 1)
		go func() {
			_, err := b.Poll(limit)
			done <- err
		}()
		time.Sleep(2 * time.Millisecond) // b sleeps, and the proxy too
		id, err := a.Notify("b", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if e := a.end(id); e.Err() != nil { // a sleeps in end
			t.Fatal(e.Err())
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(limit / 2):
			t.Fatal("b was not woken")
		}
		if n, err := b.Receive(); err != nil || n == nil {
			t.Fatalf("%v, %v", n, err)
		}
	}
}

// TestNotificationsArriveOnceAndInOrder: 70,000 of them, more than wait at once; the sender is told when the receiver takes none.
func TestNotificationsArriveOnceAndInOrder(t *testing.T) {
	s := startDaemon(t)
	a, b := join(t, connect(t, s), "a", 1), join(t, connect(t, s), "b", 1)
	const all = 70000
	sent, received, under, refused := 0, 0, map[uint64]bool{}, 0
	payload := func(i int) []byte { return bytes.Repeat([]byte(strconv.Itoa(i)+","), 1+i%40) }
	for deadline := time.Now().Add(2 * limit); received < all; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d", received, all)
		}
		for sent < all && len(under) < 512 {
			id, err := a.Notify("b", payload(sent))
			if err != nil {
				t.Fatal(err)
			}
			under[id] = true
			sent++
		}
		events, err := a.Poll(0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Err() != nil {
				t.Fatal(e.Err())
			}
			delete(under, e.ID)
		}
		for range 600 {
			n, err := b.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if n == nil {
				break
			}
			if n.Sequence != uint64(received)+1 || !bytes.Equal(n.Payload, payload(received)) {
				t.Fatalf("number %d: %d of %d bytes", received, n.Sequence, len(n.Payload))
			}
			received++
		}
	}
	big := make([]byte, 60000)
	for range 8000 { // more than may wait
		id, err := a.Notify("b", big[:1000])
		if err != nil {
			t.Fatal(err)
		}
		if e := a.end(id); e.Result == wire.ResultLimit {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no notification was refused, though the receiver takes none")
	}
}

func TestBadArgumentsOfAnAgent(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	a := join(t, session, "a", 4)
	ref := a.grant(nil, client.KVRead, "a")
	second := func(name string) error { _, err := session.KVAgent(name, limit); return err }
	submit := func(f func(*client.KVTransfer)) error {
		x := client.KVTransfer{Op: client.KVRead, Cache: a.pool, Peer: "a", Reference: ref, Blocks: []uint32{1}}
		f(&x)
		_, err := a.Submit(x)
		return err
	}
	cache := func(f func(*client.KVCacheConfig)) error {
		c := client.KVCacheConfig{Layers: 1, Parts: 1, Blocks: 1, BlockTokens: 1, Heads: 1, HeadDim: 1, Tensors: []client.KVPlace{{Region: a.region}}}
		f(&c)
		_, err := a.Cache(c)
		return err
	}
	pool := func(blockBytes, granule int) error { _, err := a.Pool(a.region, 0, 1, blockBytes, granule); return err }
	for _, c := range []struct {
		err  error
		want wire.Result
		text string
	}{
		{second("a"), wire.ResultNameTaken, "another agent"},
		{second(""), wire.ResultInvalidArgument, "name has 0 bytes"},
		{second("two words"), wire.ResultInvalidArgument, "are allowed"},
		{submit(func(x *client.KVTransfer) { x.Op = 3 }), wire.ResultInvalidArgument, "op 3"},
		{submit(func(x *client.KVTransfer) { x.Blocks = nil }), wire.ResultInvalidArgument, "at least one"},
		{submit(func(x *client.KVTransfer) { x.Peer = "" }), wire.ResultInvalidArgument, "peer has 0 bytes"},
		{submit(func(x *client.KVTransfer) { x.Cache = 77 }), wire.ResultInvalidArgument, "cache 77"},
		{submit(func(x *client.KVTransfer) { x.Token = 16 }), wire.ResultInvalidArgument, "from token 16"},
		{submit(func(x *client.KVTransfer) { x.Notification = make([]byte, 65537) }), wire.ResultLimit, "65537 bytes"},
		{submit(func(x *client.KVTransfer) { x.Blocks = make([]uint32, 1000001) }), wire.ResultLimit, "together at most"},
		{cache(func(c *client.KVCacheConfig) { c.Dtype = client.I64 }), wire.ResultInvalidArgument, "dtype"},
		{cache(func(c *client.KVCacheConfig) { c.Layers = 0 }), wire.ResultInvalidArgument, "0 layers"},
		{cache(func(c *client.KVCacheConfig) { c.Tensors = nil }), wire.ResultInvalidArgument, "tensors"},
		{cache(func(c *client.KVCacheConfig) { c.Tensors[0].Offset = 1 << 40 }), wire.ResultInvalidArgument, "region"},
		{cache(func(c *client.KVCacheConfig) { c.Form = 9 }), wire.ResultInvalidArgument, "form 9"},
		{cache(func(c *client.KVCacheConfig) { c.Order = 9 }), wire.ResultInvalidArgument, "order 9"},
		{cache(func(c *client.KVCacheConfig) { c.HeadStride = 4 }), wire.ResultInvalidArgument, "strides"},
		{pool(100, 3), wire.ResultInvalidArgument, "whole granules"},
		{pool(1<<20, 8), wire.ResultInvalidArgument, "whole granules"},
		{a.Deregister(9), wire.ResultInvalidArgument, "region 9"},
		{a.Revoke(client.KVReference{1}), wire.ResultStale, "kv_revoke"},
	} {
		if result(c.err) != c.want || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("%v, want %v with %q", c.err, c.want, c.text)
		}
	}
	if _, err := a.Register(make([]byte, 4096)); result(err) != wire.ResultUnsupported {
		t.Errorf("memory of Go: %v", err)
	}
	if e := a.do(client.KVTransfer{Op: client.KVRead, Cache: a.pool, Peer: "a", Reference: ref, Blocks: []uint32{1}, Places: []uint32{0}}); e.Err() != nil {
		t.Errorf("after all that: %v", e.Err())
	}
	gone := join(t, session, "gone", 1)
	if err := gone.Destroy(); err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Poll(0); result(err) != wire.ResultInvalidHandle {
		t.Errorf("%v", err)
	}
}

// TestAWindowOfACommIsRegistered: an engine's own memory, without a copy.
func TestAWindowOfACommIsRegistered(t *testing.T) {
	s := startDaemon(t)
	session := connect(t, s)
	comm, err := session.Init(client.CommConfig{Group: "g", Rank: 0, World: 1, Timeout: limit, HeapBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = comm.Finalize() }()
	window, err := comm.AllocWindow(8 * blockBytes)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := window.Local()
	if err != nil {
		t.Fatal(err)
	}
	a, b := join(t, session, "a", 1), join(t, session, "b", 8)
	region, err := a.Register(memory)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := a.Pool(region, blockBytes, 7, blockBytes, granule)
	if err != nil {
		t.Fatal(err)
	}
	fill(memory, 5)
	ref, err := a.Grant(pool, []uint32{6}, client.KVRead, time.Minute, "b")
	if err != nil {
		t.Fatal(err)
	}
	if e := b.do(client.KVTransfer{Op: client.KVRead, Cache: b.pool, Peer: "a", Reference: ref, Blocks: []uint32{2}}); e.Err() != nil {
		t.Fatal(e.Err())
	}
	if !bytes.Equal(b.block(2), memory[7*blockBytes:]) {
		t.Error("wrong bytes")
	}
	if err := a.Deregister(region); err != nil {
		t.Error(err)
	}
	if e := b.do(client.KVTransfer{Op: client.KVRead, Cache: b.pool, Peer: "a", Reference: ref, Blocks: []uint32{2}}); e.Result != wire.ResultStale {
		t.Errorf("freed memory: %v", e.Err())
	}
}

func TestTheAdminEndpointShowsAgentsAndCounts(t *testing.T) {
	s := startDaemon(t)
	if got := v1kv(t, s); got != nil {
		t.Errorf("%v without a proxy", got)
	}
	a, b := join(t, connect(t, s), "a", 4), join(t, connect(t, s), "b", 4)
	ref := a.grant(nil, client.KVRead, "b")
	b.do(client.KVTransfer{Op: client.KVRead, Cache: b.pool, Peer: "a", Reference: ref, Blocks: []uint32{1, 2}})
	b.do(client.KVTransfer{Op: client.KVRead, Cache: b.pool, Peer: "a", Reference: ref, Blocks: []uint32{1, 2}, Timeout: 0, Places: []uint32{0, 3}})
	got, err := json.Marshal(v1kv(t, s))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"name":"a"`, `"name":"b"`, `"caches":1`, `"bytes":16384`, `"reads":{"ok":2}`, `"transfers":0`} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("%s has no %s", got, want)
		}
	}
}

// v1kv asks the daemon for /v1/kv.
func v1kv(t *testing.T, s *server.Server) (v any) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.AdminSocket())
	}}
	defer transport.CloseIdleConnections()
	reply, err := (&http.Client{Transport: transport, Timeout: limit}).Get("http://railhead/v1/kv")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		t.Fatal(reply.Status)
	}
	if err := json.NewDecoder(reply.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

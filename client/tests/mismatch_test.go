package tests

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/wire"
)

// one is a rank's call, with buffers that are large enough for every kind.
type one struct {
	name string
	call func(m member) error
}

// memory returns a rank's send and recv, of n bytes each.
type memory func(m member, n int) (send, recv []byte)

func ownMemory(_ member, n int) (send, recv []byte) { return make([]byte, n), make([]byte, n) }

// callsWith returns a call of every kind with these arguments.
func callsWith(in memory, count int, d client.Dtype, op client.Op, root int) []one {
	call := func(f func(m member, send, recv []byte) error) func(m member) error {
		return func(m member) error {
			send, recv := in(m, m.WorldSize()*count*d.Size())
			return f(m, send, recv)
		}
	}
	return []one{
		{"all_reduce", call(func(m member, send, recv []byte) error { return m.AllReduce(send, recv, count, d, op) })},
		{"reduce_scatter", call(func(m member, send, recv []byte) error { return m.ReduceScatter(send, recv, count, d, op) })},
		{"reduce", call(func(m member, send, recv []byte) error { return m.Reduce(send, recv, count, d, op, root) })},
		{"all_gather", call(func(m member, send, recv []byte) error { return m.AllGather(send, recv, count, d) })},
		{"all_to_all", call(func(m member, send, recv []byte) error { return m.AllToAll(send, recv, count, d) })},
		{"broadcast", call(func(m member, send, recv []byte) error { return m.Broadcast(send, recv, count, d, root) })},
		{"gather", call(func(m member, send, recv []byte) error { return m.Gather(send, recv, count, d, root) })},
		{"scatter", call(func(m member, send, recv []byte) error { return m.Scatter(send, recv, count, d, root) })},
	}
}

func named(calls []one, name string) one {
	for _, c := range calls {
		if c.name == name {
			return c
		}
	}
	panic("no call " + name)
}

// checkMismatch makes rank odd call other and the other ranks usual. All must fail: in this call, or in the barrier after it if the call
// needs no data from the odd rank.
func checkMismatch(t *testing.T, ranks []member, odd int, usual, other one, words ...string) {
	t.Helper()
	began := time.Now()
	errs := together(ranks, func(m member) error {
		c := usual
		if m.Rank() == odd {
			c = other
		}
		if err := c.call(m); err != nil {
			return err
		}
		return m.Barrier()
	})
	for _, err := range errs {
		wantError(t, err, wire.ResultMismatch, words...)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("the ranks failed after %v, close to the deadline", took)
	}
	if t.Failed() {
		t.Fatalf("rank %d of %d called %s, the others %s: %v", odd, len(ranks), other.name, usual.name, errs)
	}
	for r, err := range together(ranks, finalize) {
		if err != nil {
			t.Errorf("finalize of rank %d after a mismatch: %v", r, err)
		}
	}
	all(t, ranks, closeSession)
}

func TestDifferentKindsOfOperationAreRefusedOnAllRanks(t *testing.T) {
	t.Parallel()
	s := startDaemon(t)
	calls := append(callsWith(ownMemory, 100, client.F32, client.Sum, 0), one{"barrier", barrier})
	for i, usual := range calls {
		for j, other := range calls {
			if i == j {
				continue
			}
			for _, world := range deep.First(t, 1, []int{3, 2}) {
				for odd := range world {
					ranks := formGroup(t, s, client.CommConfig{Group: usual.name + other.name, World: world})
					checkMismatch(t, ranks, odd, usual, other, bothWords(usual, other, usual.name, other.name)...)
				}
			}
		}
	}
}

func TestDifferentArgumentsOfTheSameOperationAreRefusedOnAllRanks(t *testing.T) {
	s := startDaemon(t)
	for _, algo := range append([]string{""}, allReduceAlgorithms(func(wire.Algo) bool { return true })...) {
		if algo != "" {
			t.Setenv("RAILHEAD_ALGO", algo)
		}
		var windows [][]byte // of the current group
		in := ownMemory
		if algo == "pull" {
			in = func(m member, n int) (send, recv []byte) {
				w := windows[m.Rank()]
				return w[:n:n], w[len(w)/2 : len(w)/2+n]
			}
		}
		calls := func(count int, d client.Dtype, op client.Op, root int) []one {
			return callsWith(in, count, d, op, root)
		}
		usual := calls(100, client.F32, client.Sum, 0)
		reducing := []string{"all_reduce", "reduce_scatter", "reduce"}
		for what, c := range map[string]struct {
			other []one
			kinds []string
			words []string
		}{
			"count":          {calls(101, client.F32, client.Sum, 0), names(usual), []string{"100", "101"}},
			"count of 0":     {calls(0, client.F32, client.Sum, 0), names(usual), []string{"100"}},
			"large count":    {calls(100_000, client.F32, client.Sum, 0), names(usual), []string{"100", "100000"}},
			"dtype":          {calls(100, client.I32, client.Sum, 0), names(usual), []string{"f32", "i32"}},
			"size of dtype":  {calls(100, client.F16, client.Sum, 0), names(usual), []string{"f32", "f16"}},
			"dtype of bytes": {calls(200, client.BF16, client.Sum, 0), names(usual), []string{"f32", "bf16"}},
			"op":             {calls(100, client.F32, client.Max, 0), reducing, []string{"sum", "max"}},
			"avg":            {calls(100, client.F32, client.Avg, 0), reducing, []string{"sum", "avg"}},
			"root":           {calls(100, client.F32, client.Sum, 1), []string{"broadcast", "reduce", "gather", "scatter"}, nil},
		} {
			if algo != "" && !deep.On(t) && what != "large count" && what != "op" {
				continue
			}
			for i, name := range c.kinds {
				world := 2 + i%3
				ranks := formGroup(t, s, client.CommConfig{Group: what + name, World: world, HeapBytes: 8 << 20})
				if algo == "pull" {
					windows = windowsOf(t, ranks, 4<<20)
				}
				usual, other := named(usual, name), named(c.other, name)
				checkMismatch(t, ranks, i%world, usual, other, bothWords(usual, other, append(c.words, name)...)...)
			}
		}
	}
}

// bothWords returns the words if the message must name both calls. It need not if a rank may end one of the calls without the others and
// see the mismatch in its next operation.
func bothWords(a, b one, words ...string) []string {
	for _, c := range []one{a, b} {
		switch c.name {
		case "broadcast", "reduce", "gather", "scatter":
			return nil
		}
	}
	return words
}

func names(calls []one) (out []string) {
	for _, c := range calls {
		out = append(out, c.name)
	}
	return out
}

func TestAnotherOrderOfTheSameOperationsIsRefusedOnAllRanks(t *testing.T) {
	s := startDaemon(t)
	calls := callsWith(ownMemory, 100, client.F32, client.Sum, 0)
	inOrder := func(first, second one) one {
		return one{first.name + ", " + second.name, func(m member) error {
			if err := first.call(m); err != nil {
				return err
			}
			return second.call(m)
		}}
	}
	for i, first := range calls {
		second := calls[(i+1)%len(calls)]
		ranks := formGroup(t, s, client.CommConfig{Group: "order " + first.name, World: 3})
		checkMismatch(t, ranks, i%3, inOrder(first, second), inOrder(second, first))
	}
}

// The scalars of ranks may differ, but a pre-mul sum and a sum are a mismatch.
// A sleeping rank compares the calls again and again. No rank wakes it that has called something else and waits for none, and its own
// deadline is far away.
func TestASleepingRankSoonFindsADifferentCallThatWaitsForNoRank(t *testing.T) {
	const timeout = 40 * time.Second
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2, Timeout: timeout})
	done := make(chan error, 1)
	go func() { done <- ranks[0].Barrier() }()
	eventually(t, "rank 0 sleeps", func() bool {
		status, err := ranks[0].Status()
		return err == nil && slices.Equal(status.WaitingFor, []int{1})
	})
	began := time.Now()
	if err := ranks[1].Gather(make([]byte, 16), nil, 4, client.F32, 0); err != nil {
		t.Fatalf("the gather of a rank that only sends: %v", err)
	}
	wantError(t, <-done, wire.ResultMismatch, "gather of 4 f32 with root 0", "barrier")
	if took := time.Since(began); took > timeout/2 {
		t.Errorf("rank 0 found the difference after %v", took)
	}
}

func TestAPreMulSumAndASumAreDifferentOperations(t *testing.T) {
	s := startDaemon(t)
	sum := callsWith(ownMemory, 100, client.I32, client.Sum, 0)
	for i := range 3 { // the kinds that reduce come first
		ranks := formGroup(t, s, client.CommConfig{Group: "scalar " + sum[i].name, World: 3})
		scaled := one{"pre_mul_sum", func(m member) error {
			op, err := m.CreatePreMulSum(client.I32, []byte{2, 0, 0, 0})
			if err != nil {
				return err
			}
			return callsWith(ownMemory, 100, client.I32, op, 0)[i].call(m)
		}}
		checkMismatch(t, ranks, i, sum[i], scaled)
	}
}

// In rooted operations a rank may be many calls ahead when another one makes a wrong call.
func TestAMismatchAfterManyOperationsIsRefusedOnAllRanks(t *testing.T) {
	s := startDaemon(t)
	for _, name := range []string{"broadcast", "reduce", "gather", "scatter", "all_reduce"} {
		ranks := formGroup(t, s, client.CommConfig{Group: "later " + name, World: 3})
		usual := named(callsWith(ownMemory, 10, client.F32, client.Sum, 0), name)
		wrong := named(callsWith(ownMemory, 11, client.F32, client.Sum, 0), name)
		many := func(last one) one {
			return one{name, func(m member) error {
				for range 50 {
					if err := usual.call(m); err != nil {
						return fmt.Errorf("before the wrong call: %w", err)
					}
				}
				return last.call(m)
			}}
		}
		checkMismatch(t, ranks, 1, many(usual), many(wrong), bothWords(usual, wrong, name, "10 f32", "11 f32")...)
	}
}

func TestSendsAndReceivesThatDoNotMatchAreRefusedOnBothSides(t *testing.T) {
	s := startDaemon(t)
	buf := make([]byte, 1<<20)
	for what, c := range map[string]struct {
		count int
		dtype client.Dtype
	}{
		"count":        {99, client.F32},
		"zero":         {0, client.F32},
		"dtype":        {100, client.I32},
		"same bytes":   {50, client.F64},
		"larger count": {200_000, client.F32},
	} {
		for _, grouped := range []bool{false, true} {
			ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint(what, grouped), World: 3})
			inGroup := func(f func() error) error {
				if grouped {
					return client.Group(f)
				}
				return f()
			}
			send := func(m member) error { // from rank 0 to rank 1; rank 2 does nothing
				if m.Rank() != 0 {
					return nil
				}
				return inGroup(func() error { return m.Send(buf, 100, client.F32, 1) })
			}
			recv := func(m member) error {
				return inGroup(func() error { return m.Recv(make([]byte, 1<<20), c.count, c.dtype, 0) })
			}
			checkMismatch(t, ranks, 1, one{"send", send}, one{"recv", recv},
				fmt.Sprintf("rank 1 receives %d %s from rank 0, which sends 100 f32", c.count, c.dtype))
		}
	}
}

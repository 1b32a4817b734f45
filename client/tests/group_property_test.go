package tests

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// message goes from one rank to another. Messages from one rank to the same other rank arrive in order.
type message struct{ from, to, bytes int }

func (m message) content(number int) []byte {
	out := make([]byte, m.bytes)
	oracle.Fill(out, oracle.U8, oracle.Sum, oracle.Seed(uint64(number), m.from, m.to))
	return out
}

// exchange sends all messages in one group on each rank. Each rank makes its calls in a random order.
func exchange(t rapid.TB, ranks []member, messages []message, seed uint64) {
	t.Helper()
	errs := together(ranks, func(m member) error {
		received := make([]buffer, len(messages))
		err := client.Group(func() error {
			for _, post := range postsOf(m.Rank(), messages, seed) {
				msg := messages[post.number]
				if post.send {
					if err := m.Send(msg.content(post.number), msg.bytes, client.U8, msg.to); err != nil {
						return err
					}
					continue
				}
				received[post.number] = newBuffer(msg.bytes, post.number%16)
				if err := m.Recv(received[post.number].data, msg.bytes, client.U8, msg.from); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i, msg := range messages {
			if msg.to != m.Rank() {
				continue
			}
			if !bytes.Equal(received[i].data, msg.content(i)) {
				return fmt.Errorf("message %d %+v is wrong", i, msg)
			}
			if err := received[i].checkGuards(); err != nil {
				return err
			}
		}
		return nil
	})
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

type post struct {
	number int
	send   bool
}

// postsOf shuffles a rank's calls. The sends to a peer keep their order, and so do the receives from a peer.
func postsOf(rank int, messages []message, seed uint64) (posts []post) {
	queues := map[message][]post{} // by direction and peer
	var order []message
	add := func(key message, p post) {
		queues[key] = append(queues[key], p)
		order = append(order, key)
	}
	for i, msg := range messages {
		if msg.from == rank {
			add(message{from: rank, to: msg.to, bytes: 0}, post{i, true})
		}
		if msg.to == rank {
			add(message{from: msg.from, to: rank, bytes: 1}, post{i, false})
		}
	}
	rand.New(rand.NewPCG(seed, uint64(rank))).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, key := range order {
		posts = append(posts, queues[key][0])
		queues[key] = queues[key][1:]
	}
	return posts
}

func TestAnyMessagesOfAGroupArriveWithoutDeadlock(t *testing.T) {
	s := startDaemon(t)
	deep.Checks(t, 30)
	rapid.Check(t, func(rt *rapid.T) {
		world := rapid.IntRange(1, 5).Draw(rt, "world")
		messages := make([]message, rapid.IntRange(0, 40).Draw(rt, "messages"))
		for i := range messages {
			messages[i] = message{
				from:  rapid.IntRange(0, world-1).Draw(rt, "from"),
				to:    rapid.IntRange(0, world-1).Draw(rt, "to"),
				bytes: max(0, rapid.SampledFrom([]int{0, 1, 700, 2 << 10, 32 << 10, blockBytes, 3 * blockBytes}).Draw(rt, "size")+rapid.IntRange(-1, 1).Draw(rt, "beside")),
			}
		}
		ranks := drawGroup(t, rt, s, client.CommConfig{World: world})
		exchange(rt, ranks, messages, rapid.Uint64().Draw(rt, "seed"))
		all(t, ranks, finalize)
		all(t, ranks, closeSession)
	})
}

// All ranks send to all, including themselves, more than a pipe's capacity.
func TestGroupsOfMessagesLargerThanThePipes(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 3})
	var messages []message
	for from := range 3 {
		for to := range 3 {
			for i := range 40 {
				messages = append(messages, message{from, to, 1 << (i % 19)})
			}
			messages = append(messages, message{from, to, 3<<20 + 5})
		}
	}
	for seed := range uint64(3) {
		exchange(t, ranks, messages, seed)
	}
}

// A small send may return before its receive is called, as long as the pipe has room.
func TestMessagesOutsideAGroupKeepTheirOrder(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	sizes := []int{0, 1, 5, 100, 4096, 100_000, 1 << 20, 3, 3, 3}
	all(t, ranks, func(m member) error {
		for round := range 50 {
			for i, n := range sizes {
				msg := message{round % 2, 1 - round%2, n}
				number := round*len(sizes) + i
				if m.Rank() == msg.from {
					if err := m.Send(msg.content(number), n, client.U8, msg.to); err != nil {
						return err
					}
					continue
				}
				got := newBuffer(n, i)
				if err := m.Recv(got.data, n, client.U8, msg.from); err != nil {
					return err
				}
				if !bytes.Equal(got.data, msg.content(number)) {
					return fmt.Errorf("message %d of %d bytes is wrong", number, n)
				}
				if err := got.checkGuards(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestOneThreadCallsForAllRanksInAGroup(t *testing.T) {
	s := startDaemon(t)
	for _, world := range []int{1, 2, 3, 8} {
		ranks := formGroup(t, s, client.CommConfig{Group: fmt.Sprint("one thread ", world), World: world, ReduceGroup: min(2, world)})
		random := rand.New(rand.NewPCG(uint64(world), 0))
		for range 10 {
			var operations []operation
			for _, k := range append(append([]kind{}, reducing...), moving...) {
				operations = append(operations, operation{
					kind: k, dtype: oracle.Dtypes()[random.IntN(11)], op: oracle.Ops()[random.IntN(5)], count: random.IntN(20_000),
					root: random.IntN(world), seed: random.Uint64(),
				})
			}
			random.Shuffle(len(operations), func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
			driveAll(t, ranks, operations, min(2, world))
		}
	}
}

// driveAll calls all operations of all ranks on this goroutine, in one group.
func driveAll(t *testing.T, ranks []member, operations []operation, reduceGroup int) {
	t.Helper()
	world := len(ranks)
	inputs, laid := make([][][]byte, len(operations)), make([][]buffers, len(operations))
	err := client.Group(func() error {
		for i, o := range operations {
			inputs[i], laid[i] = o.inputs(world), make([]buffers, world)
			sendTimes, recvTimes := o.times(world)
			room := roomFor(sendTimes*o.count*o.dtype.Size()) + roomFor(recvTimes*o.count*o.dtype.Size())
			for r, m := range ranks {
				laid[i][r] = o.lay(o.place(r), r, world, make([]byte, room), inputs[i][r])
				if err := o.call(m.Comm, laid[i][r].send, laid[i][r].recv, clientOps[o.op]); err != nil {
					return fmt.Errorf("rank %d: %v: %w", r, o, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range operations {
		outputs := make([][]byte, world)
		for r := range ranks {
			if o.receives(r, world) {
				outputs[r] = laid[i][r].recv
			}
			for _, b := range laid[i][r].all {
				if err := b.checkGuards(); err != nil {
					t.Fatalf("rank %d: %v: %v", r, o, err)
				}
			}
		}
		if err := o.check(inputs[i], outputs, reduceGroup); err != nil {
			t.Fatalf("%d ranks, operation %d, %v: %v", world, i, o, err)
		}
	}
}

func TestAGroupThatFailsRunsNothing(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	all(t, ranks, func(m member) error {
		send, recv := bytes.Repeat([]byte{1}, 64), bytes.Repeat([]byte{poison}, 64)
		mine := errors.New("returned by the caller")
		for _, wrong := range []struct {
			call func() error
			want error
		}{
			{func() error { return mine }, mine},
			{func() error { return m.Broadcast(send, recv, 16, client.F32, 2) }, nil},
			{func() error { return m.Send(send, 16, client.F32, 2) }, nil},
			{func() error { return m.AllReduce(send, recv[:63], 16, client.F32, client.Sum) }, nil},
		} {
			err := client.Group(func() error {
				if err := m.AllReduce(send, recv, 16, client.F32, client.Sum); err != nil {
					return err
				}
				return wrong.call()
			})
			if wrong.want != nil && !errors.Is(err, wrong.want) {
				return fmt.Errorf("got %v, want %w", err, wrong.want)
			}
			var e *client.Error
			if wrong.want == nil && (!errors.As(err, &e) || e.Result != wire.ResultInvalidArgument) {
				return fmt.Errorf("got %v, want an invalid argument", err)
			}
		}
		// Of several failures the first is told.
		err := client.Group(func() error {
			_ = m.Broadcast(send, recv, 16, client.F32, 2)
			_ = m.Send(send, 16, client.F32, 3)
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "broadcast: rank") || strings.Contains(err.Error(), "send: rank") {
			return fmt.Errorf("after a broadcast and a send that failed: %w", err)
		}
		if !bytes.Equal(recv, bytes.Repeat([]byte{poison}, 64)) {
			return errors.New("a call of a failed group ran")
		}
		// The failed groups have no effect on later calls.
		if err := m.AllReduce(send[:4], recv[:4], 4, client.U8, client.Sum); err != nil {
			return err
		}
		if !bytes.Equal(recv[:4], []byte{2, 2, 2, 2}) {
			return fmt.Errorf("the next sum is %v", recv[:4])
		}
		return nil
	})
}

// One thread calls for a rank of each of two groups. The other rank of one group comes later than that of the other.
func TestAGroupOfCallsEndsWhenAllOfItsCommsHaveEnded(t *testing.T) {
	s := startDaemon(t)
	for late := range 2 {
		var groups [2][]member
		for i := range groups {
			groups[i] = formGroup(t, s, client.CommConfig{Group: fmt.Sprint("late ", late, i), World: 2})
		}
		one := []byte{1, 0, 0, 0}
		others := make(chan error)
		for i, ranks := range groups {
			go func() {
				if i == late {
					time.Sleep(50 * time.Millisecond)
				}
				others <- ranks[1].AllReduce(one, make([]byte, 4), 1, client.I32, client.Sum)
			}()
		}
		sums := [2][]byte{make([]byte, 4), make([]byte, 4)}
		err := client.Group(func() error {
			return errors.Join(groups[0][0].AllReduce(one, sums[0], 1, client.I32, client.Sum), groups[1][0].AllReduce(one, sums[1], 1, client.I32, client.Sum))
		})
		if err != nil || sums[0][0] != 2 || sums[1][0] != 2 {
			t.Errorf("group %d is late: sums %d and %d, %v", late, sums[0][0], sums[1][0], err)
		}
		if err := errors.Join(<-others, <-others); err != nil {
			t.Error(err)
		}
		for _, ranks := range groups {
			all(t, ranks, finalize)
		}
	}
}

func TestTheOutermostGroupRunsTheCallsOfNestedOnes(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	all(t, ranks, func(m member) error {
		peer := 1 - m.Rank()
		out, in := bytes.Repeat([]byte{byte(m.Rank() + 1)}, 1<<20), make([]byte, 1<<20)
		err := client.Group(func() error {
			if err := client.Group(func() error { return m.Send(out, len(out), client.U8, peer) }); err != nil {
				return err
			}
			if in[0] != 0 {
				return errors.New("the end of a nested group ran its calls")
			}
			return client.Group(func() error { return m.Recv(in, len(in), client.U8, peer) })
		})
		if err != nil {
			return err
		}
		if !bytes.Equal(in, bytes.Repeat([]byte{byte(peer + 1)}, 1<<20)) {
			return errors.New("the message is wrong")
		}
		return nil
	})
}

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/internal/deep"
	"railhead/internal/oracle"
)

var (
	clientDtypes = map[oracle.Dtype]client.Dtype{
		oracle.F32: client.F32, oracle.BF16: client.BF16, oracle.F64: client.F64, oracle.F16: client.F16, oracle.FP8E4M3: client.FP8E4M3,
		oracle.FP8E5M2: client.FP8E5M2, oracle.I8: client.I8, oracle.U8: client.U8, oracle.I32: client.I32, oracle.I64: client.I64, oracle.U64: client.U64,
	}
	clientOps = map[oracle.Op]client.Op{oracle.Sum: client.Sum, oracle.Prod: client.Prod, oracle.Min: client.Min, oracle.Max: client.Max, oracle.Avg: client.Avg}
)

// kind is an operation. shift is a group: a send to the rank that is root ranks further on and a receive from the one as far back; pair a send
// from root to the next rank; exchange a group of two sends to each other rank and two receives from each.
type kind string

var kinds = []kind{"all_reduce", "reduce_scatter", "reduce", "all_gather", "all_to_all", "broadcast", "gather", "scatter", "shift", "pair", "exchange"}

func (k kind) reduces() bool { return k == "all_reduce" || k == "reduce_scatter" || k == "reduce" }

// operation is a call of all ranks. window: the buffers are in windows. offset: how far they are from the start of the memory.
type operation struct {
	kind            kind
	dtype           oracle.Dtype
	op              oracle.Op
	count, root     int
	window, inPlace bool
	offset          int
	seed            uint64
}

func (o operation) String() string {
	return fmt.Sprintf("%s of %d %s, %s, root %d, window %v, in place %v, offset %d, seed %#x", o.kind, o.count, o.dtype, o.op, o.root, o.window, o.inPlace, o.offset, o.seed)
}

// times returns the sizes of send and recv in parts.
func (o operation) times(world int) (send, recv int) {
	switch o.kind {
	case "all_gather", "gather":
		return 1, world
	case "reduce_scatter", "scatter":
		return world, 1
	case "all_to_all", "exchange":
		return world, world
	}
	return 1, 1
}

func (o operation) expected(inputs [][]byte) [][]byte {
	world := len(inputs)
	switch o.kind {
	case "all_reduce":
		return oracle.AllReduce(o.dtype, o.op, inputs, 0, nil)
	case "reduce_scatter":
		return oracle.ReduceScatter(o.dtype, o.op, inputs, 0, nil)
	case "reduce":
		return oracle.ReduceToRoot(o.dtype, o.op, inputs, o.root, 0, nil)
	case "all_gather":
		return oracle.AllGather(inputs)
	case "all_to_all", "exchange":
		return oracle.AllToAll(inputs)
	case "broadcast":
		return oracle.Broadcast(inputs, o.root)
	case "gather":
		return oracle.Gather(inputs, o.root)
	case "scatter":
		return oracle.Scatter(inputs, o.root)
	}
	outputs := make([][]byte, world)
	for r := range outputs {
		if o.kind == "shift" {
			outputs[r] = inputs[(r+world-o.root)%world]
		} else if r == (o.root+1)%world && world > 1 {
			outputs[r] = inputs[o.root]
		}
	}
	return outputs
}

// call is one rank's.
func (o operation) call(c *client.Comm, send, recv []byte) error {
	d, op, world, rank := clientDtypes[o.dtype], clientOps[o.op], c.WorldSize(), c.Rank()
	switch o.kind {
	case "all_reduce":
		return c.AllReduce(send, recv, o.count, d, op)
	case "reduce_scatter":
		return c.ReduceScatter(send, recv, o.count, d, op)
	case "reduce":
		return c.Reduce(send, recv, o.count, d, op, o.root)
	case "all_gather":
		return c.AllGather(send, recv, o.count, d)
	case "all_to_all":
		return c.AllToAll(send, recv, o.count, d)
	case "broadcast":
		return c.Broadcast(send, recv, o.count, d, o.root)
	case "gather":
		return c.Gather(send, recv, o.count, d, o.root)
	case "scatter":
		return c.Scatter(send, recv, o.count, d, o.root)
	case "shift":
		return client.Group(func() error {
			return errors.Join(c.Send(send, o.count, d, (rank+o.root)%world), c.Recv(recv, o.count, d, (rank+world-o.root)%world))
		})
	case "exchange":
		return client.Group(func() (err error) {
			first, part := o.count/2, o.count*o.dtype.Size()
			for r := range world {
				from, to := send[r*part:(r+1)*part], recv[r*part:(r+1)*part]
				at := first * o.dtype.Size()
				err = errors.Join(err, c.Send(from[:at], first, d, r), c.Recv(to[:at], first, d, r), c.Send(from[at:], o.count-first, d, r), c.Recv(to[at:], o.count-first, d, r))
			}
			return err
		})
	}
	switch {
	case world > 1 && rank == o.root:
		return c.Send(send, o.count, d, (rank+1)%world)
	case world > 1 && rank == (o.root+1)%world:
		return c.Recv(recv, o.count, d, o.root)
	}
	return nil
}

// places are where send and recv of a rank begin in its memory.
func (o operation) places(rank, world, bytes int) (send, recv int) {
	part := o.count * o.dtype.Size()
	sendTimes, recvTimes := o.times(world)
	switch {
	case !o.inPlace:
		return o.offset, bytes/2 + o.offset
	case sendTimes < recvTimes:
		return o.offset + rank*part, o.offset
	case sendTimes > recvTimes:
		return o.offset, o.offset + rank*part
	}
	return o.offset, o.offset
}

// inputs are what the ranks send.
func (o operation) inputs(world int) [][]byte {
	inputs := make([][]byte, world)
	sendTimes, _ := o.times(world)
	for r := range inputs {
		inputs[r] = make([]byte, sendTimes*o.count*o.dtype.Size())
		oracle.FillSpecial(inputs[r], o.dtype, o.op, oracle.Seed(o.seed, r, 0))
	}
	return inputs
}

// run runs an operation on all ranks, in memory[rank], and checks every byte of it.
func (o operation) run(t testing.TB, ranks []rank, memory [][]byte) {
	t.Helper()
	world := len(ranks)
	inputs, images := o.inputs(world), make([][]byte, world)
	sends, recvs := make([][]byte, world), make([][]byte, world)
	recvAt := make([]int, world)
	_, recvTimes := o.times(world)
	for r := range ranks {
		for i := range memory[r] {
			memory[r][i] = 0xa5
		}
		var sendAt int
		sendAt, recvAt[r] = o.places(r, world, len(memory[r]))
		sends[r], recvs[r] = memory[r][sendAt:sendAt+len(inputs[r])], memory[r][recvAt[r]:recvAt[r]+recvTimes*o.count*o.dtype.Size()]
		copy(sends[r], inputs[r])
		images[r] = bytes.Clone(memory[r])
	}
	each(t, ranks, func(r rank) error { return errors.Join(o.call(r.on(), sends[r.Rank()], recvs[r.Rank()]), r.wait()) })
	for r, want := range o.expected(inputs) {
		switch {
		case want == nil:
		case o.kind.reduces() && oracle.Differences(recvs[r], want, o.dtype) != 0:
			t.Fatalf("%v: rank %d of %d: %d results are wrong", o, r, world, oracle.Differences(recvs[r], want, o.dtype))
		case !o.kind.reduces() && !bytes.Equal(recvs[r], want):
			t.Fatalf("%v: rank %d of %d: wrong bytes", o, r, world)
		default:
			copy(images[r][recvAt[r]:], recvs[r])
		}
		if !bytes.Equal(memory[r], images[r]) {
			t.Fatalf("%v: rank %d of %d: bytes beside the result were written", o, r, world)
		}
	}
}

const memoryBytes = 4 << 20 // of a rank, for each place

// Every operation of every type, any count and address, in place and not, in windows and elsewhere.
func TestEveryOperationOfEveryType(t *testing.T) {
	for _, world := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(world), 9))
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			windows, others := window(t, ranks, memoryBytes), make([][]byte, world)
			for i, r := range ranks {
				others[i] = r.alloc(t, memoryBytes)
			}
			var operations []operation
			for _, k := range kinds {
				for _, d := range oracle.Dtypes() {
					o := operation{kind: k, dtype: d, op: oracle.Sum, root: random.IntN(world), seed: random.Uint64()}
					if k.reduces() && random.IntN(2) == 0 {
						o.op = []oracle.Op{oracle.Prod, oracle.Min, oracle.Max, oracle.Avg}[random.IntN(4)]
					}
					o.count = random.IntN(1 + random.IntN(3000))
					o.window, o.offset = random.IntN(2) == 0, random.IntN(2)*random.IntN(40)
					o.inPlace = random.IntN(3) == 0 && k != "shift" && k != "pair" && k != "exchange"
					operations = append(operations, o)
				}
			}
			random.Shuffle(len(operations), func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
			for _, o := range deep.First(t, 24, operations) {
				memory := others
				if o.window {
					memory = windows
				}
				o.run(t, ranks, memory)
			}
			each(t, ranks, func(r rank) error { return errors.Join(r.on().Barrier(), r.wait()) })
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

// Sizes at which copies go over lanes, and zero-copy between windows.
func TestLargeOperations(t *testing.T) {
	for _, world := range []int{2, 3} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			if world == 2 {
				deep.Only(t)
			}
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			windows, others := window(t, ranks, 4*memoryBytes), make([][]byte, world)
			for i, r := range ranks {
				others[i] = r.alloc(t, 4*memoryBytes)
			}
			for i, k := range kinds {
				for _, inWindow := range deep.First(t, 1, []bool{i%2 == 0, i%2 != 0}) {
					o := operation{kind: k, dtype: oracle.BF16, op: oracle.Sum, count: 1<<20 - 13, root: world - 1, seed: uint64(i), window: inWindow, offset: 16 * i}
					o.inPlace = k == "all_to_all" && !inWindow
					memory := others
					if inWindow {
						memory = windows
					}
					o.run(t, ranks, memory)
				}
			}
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

// Rank 0 ends its part of a scatter, of a gather to another rank, and a send, before the others have called.
func TestARankWaitsForNobodyFromWhomItReceivesNothing(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	const n = 1000
	memory := make([][]byte, 3)
	for i, r := range ranks {
		memory[i] = r.alloc(t, 7*n)
		for k := range memory[i] {
			memory[i][k] = byte(i*50 + k/n)
		}
	}
	calls := func(r rank) error {
		m := memory[r.Rank()]
		err := errors.Join(r.on().Scatter(m[:3*n], m[3*n:4*n], n, client.U8, 0), r.on().Gather(m[:n], m[4*n:], n, client.U8, 1))
		switch r.Rank() {
		case 0:
			err = errors.Join(err, r.on().Send(m[n:2*n], n, client.U8, 1))
		case 1:
			err = errors.Join(err, r.on().Recv(m[:n], n, client.U8, 0))
		}
		return errors.Join(err, r.wait())
	}
	if err := calls(ranks[0]); err != nil {
		t.Fatal(err)
	}
	each(t, ranks[1:], calls)
	for name, c := range map[string]struct{ got, want byte }{
		"scatter to rank 0": {memory[0][3*n], 0}, "scatter to rank 1": {memory[1][3*n], 1}, "scatter to rank 2": {memory[2][4*n-1], 2},
		"gather from rank 0": {memory[1][4*n], 0}, "gather from rank 1": {memory[1][5*n], 50}, "gather from rank 2": {memory[1][7*n-1], 100},
		"send": {memory[1][n-1], 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", name, c.got, c.want)
		}
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

package tests

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"

	"railhead/client"
	"railhead/internal/oracle"
)

// kind is an operation, by its name in railhead.h.
type kind string

const (
	allReduce     kind = "all_reduce"
	allGather     kind = "all_gather"
	reduceScatter kind = "reduce_scatter"
	allToAll      kind = "all_to_all"
	broadcast     kind = "broadcast"
	reduce        kind = "reduce"
	gather        kind = "gather"
	scatter       kind = "scatter"
	shift         kind = "shift" // in a group: a send to rank + root and a receive from rank - root, modulo the world size
	pair          kind = "pair"  // without a group: a send from root to the next rank
)

func (k kind) reduces() bool { return k == allReduce || k == reduceScatter || k == reduce }

var (
	reducing = []kind{allReduce, reduceScatter, reduce}
	moving   = []kind{allGather, allToAll, broadcast, gather, scatter, shift, pair}
)

// operation is an operation of all ranks of a group. Each rank draws the place of its buffers from the seed.
type operation struct {
	kind    kind
	dtype   oracle.Dtype
	op      oracle.Op // of reductions
	count   int
	root    int
	special bool   // inputs with NaNs and extremes
	windows bool   // buffers of most ranks are in windows
	all     bool   // with windows: those of all ranks
	delays  bool   // some ranks call late
	seed    uint64 // of inputs and places
}

func (o operation) String() string {
	return fmt.Sprintf("%s of %d %s (%s, root %d, special %v, windows %v, seed %#x)", o.kind, o.count, o.dtype, o.op, o.root,
		o.special, o.windows, o.seed)
}

// times returns the sizes of send and recv as multiples of count.
func (o operation) times(world int) (send, recv int) {
	switch o.kind {
	case allGather, gather:
		return 1, world
	case reduceScatter, scatter:
		return world, 1
	case allToAll:
		return world, world
	}
	return 1, 1
}

// sends and receives report whether the rank's send and recv are used.
func (o operation) sends(rank int) bool {
	return rank == o.root || o.kind != broadcast && o.kind != scatter && o.kind != pair
}

func (o operation) receives(rank, world int) bool {
	switch o.kind {
	case reduce, gather:
		return rank == o.root
	case pair:
		return rank == (o.root+1)%world
	}
	return true
}

// inputs returns all ranks' sends.
func (o operation) inputs(world int) [][]byte {
	sendTimes, _ := o.times(world)
	inputs := make([][]byte, world)
	for r := range inputs {
		inputs[r] = make([]byte, sendTimes*o.count*o.dtype.Size())
		fill := oracle.Fill
		if o.special {
			fill = oracle.FillSpecial
		}
		fill(inputs[r], o.dtype, o.op, oracle.Seed(o.seed, r, 0))
	}
	return inputs
}

// scalar is a rank's scalar of a pre-mul sum.
func (o operation) scalar(rank int) []byte {
	return oracle.Scalar(o.dtype, oracle.Seed(o.seed, rank, 1))
}

// expected returns all ranks' outputs.
func (o operation) expected(inputs [][]byte, reduceGroup int) [][]byte {
	world := len(inputs)
	var scalars [][]byte
	for r := range inputs {
		scalars = append(scalars, o.scalar(r))
	}
	switch o.kind {
	case allReduce:
		return oracle.AllReduce(o.dtype, o.op, inputs, reduceGroup, scalars)
	case reduceScatter:
		return oracle.ReduceScatter(o.dtype, o.op, inputs, reduceGroup, scalars)
	case reduce:
		return oracle.ReduceToRoot(o.dtype, o.op, inputs, o.root, reduceGroup, scalars)
	case allGather:
		return oracle.AllGather(inputs)
	case allToAll:
		return oracle.AllToAll(inputs)
	case broadcast:
		return oracle.Broadcast(inputs, o.root)
	case gather:
		return oracle.Gather(inputs, o.root)
	case scatter:
		return oracle.Scatter(inputs, o.root)
	}
	outputs := make([][]byte, world)
	for r := range outputs {
		if from := (r + world - o.root) % world; o.kind == shift {
			outputs[r] = inputs[from]
		} else if o.receives(r, world) {
			outputs[r] = inputs[o.root]
		}
	}
	return outputs
}

// call runs one rank's call.
func (o operation) call(c *client.Comm, send, recv []byte, op client.Op) error {
	d := clientDtypes[o.dtype]
	if o.kind == pair && c.WorldSize() == 1 {
		o.kind = shift // a rank can send to itself only in a group
	}
	switch o.kind {
	case allReduce:
		return c.AllReduce(send, recv, o.count, d, op)
	case reduceScatter:
		return c.ReduceScatter(send, recv, o.count, d, op)
	case reduce:
		return c.Reduce(send, recv, o.count, d, op, o.root)
	case allGather:
		return c.AllGather(send, recv, o.count, d)
	case allToAll:
		return c.AllToAll(send, recv, o.count, d)
	case broadcast:
		return c.Broadcast(send, recv, o.count, d, o.root)
	case gather:
		return c.Gather(send, recv, o.count, d, o.root)
	case scatter:
		return c.Scatter(send, recv, o.count, d, o.root)
	case shift:
		return client.Group(func() error {
			if err := c.Send(send, o.count, d, (c.Rank()+o.root)%c.WorldSize()); err != nil {
				return err
			}
			return c.Recv(recv, o.count, d, (c.Rank()+c.WorldSize()-o.root)%c.WorldSize())
		})
	}
	switch {
	case o.sends(c.Rank()):
		return c.Send(send, o.count, d, (o.root+1)%c.WorldSize())
	case o.receives(c.Rank(), c.WorldSize()):
		return c.Recv(recv, o.count, d, o.root)
	}
	return nil
}

// clientOp returns the reduction. done destroys it if it was created.
func (o operation) clientOp(c *client.Comm) (op client.Op, done func() error, err error) {
	if !o.kind.reduces() || o.op != oracle.PreMulSum {
		return clientOps[o.op], func() error { return nil }, nil
	}
	op, err = c.CreatePreMulSum(clientDtypes[o.dtype], o.scalar(c.Rank()))
	return op, func() error { return c.DestroyOp(op) }, err
}

var clientDtypes = map[oracle.Dtype]client.Dtype{
	oracle.F32: client.F32, oracle.BF16: client.BF16, oracle.F64: client.F64, oracle.F16: client.F16,
	oracle.FP8E4M3: client.FP8E4M3, oracle.FP8E5M2: client.FP8E5M2, oracle.I8: client.I8, oracle.U8: client.U8,
	oracle.I32: client.I32, oracle.I64: client.I64, oracle.U64: client.U64,
}

var clientOps = map[oracle.Op]client.Op{
	oracle.Sum: client.Sum, oracle.Prod: client.Prod, oracle.Min: client.Min, oracle.Max: client.Max, oracle.Avg: client.Avg,
}

// place says where a rank's buffers are.
type place struct {
	sendAt, recvAt int // address modulo 16
	inPlace        bool
	inWindow       bool
	leaveOut       bool // an unused buffer is nil
	delay          time.Duration
}

func (o operation) place(rank int) place {
	random := rand.New(rand.NewPCG(o.seed, uint64(rank)))
	p := place{
		sendAt: random.IntN(16), recvAt: random.IntN(16), inPlace: random.IntN(2) == 0, leaveOut: random.IntN(2) == 0,
		inWindow: o.windows && (random.IntN(4) != 0 || o.all),
	}
	if random.IntN(2) == 0 { // aligned, as in most programs
		p.sendAt, p.recvAt = 0, 0
	}
	if o.kind == shift || o.kind == pair {
		p.inPlace = false
	}
	if o.delays && random.IntN(4) == 0 {
		p.delay = time.Duration(random.IntN(300)) * time.Microsecond
	}
	return p
}

// buffers are those of a rank for one operation.
type buffers struct {
	all        []buffer
	send, recv []byte
}

// lay carves the operation's buffers out of memory and copies the input to send.
func (o operation) lay(p place, rank, world int, memory, input []byte) (b buffers) {
	n := o.count * o.dtype.Size()
	sendTimes, recvTimes := o.times(world)
	if p.inPlace {
		whole, _ := carve(memory, max(sendTimes, recvTimes)*n, p.sendAt)
		b = buffers{all: []buffer{whole}, send: whole.data, recv: whole.data}
		if sendTimes < recvTimes {
			b.send = whole.data[rank*n : (rank+1)*n]
		} else if recvTimes < sendTimes {
			b.recv = whole.data[rank*n : (rank+1)*n]
		}
	} else {
		send, rest := carve(memory, sendTimes*n, p.sendAt)
		recv, _ := carve(rest, recvTimes*n, p.recvAt)
		b = buffers{all: []buffer{send, recv}, send: send.data, recv: recv.data}
	}
	if o.sends(rank) {
		copy(b.send, input)
	} else if p.leaveOut {
		b.send = nil
	}
	if !o.receives(rank, world) && p.leaveOut {
		b.recv = nil
	}
	return b
}

// run runs one rank's call, with buffers in its window or in ordinary memory, and returns a copy of its output.
func (o operation) run(m member, window, input []byte) ([]byte, error) {
	rank, world := m.Rank(), m.WorldSize()
	p := o.place(rank)
	op, done, err := o.clientOp(m.Comm)
	if err != nil {
		return nil, err
	}
	sendTimes, recvTimes := o.times(world)
	need := roomFor(sendTimes*o.count*o.dtype.Size()) + roomFor(recvTimes*o.count*o.dtype.Size())
	memory := window
	if !p.inWindow || len(window) < need {
		memory = make([]byte, need)
	}
	b := o.lay(p, rank, world, memory, input)
	before := b.snapshot()
	time.Sleep(p.delay)
	if o.windows {
		// Peers may write to a recv in a window, so all must be laid out before the call.
		if err := m.Barrier(); err != nil {
			return nil, err
		}
	}
	if err := o.call(m.Comm, b.send, b.recv, op); err != nil {
		return nil, err
	}
	var output []byte
	if o.receives(rank, world) {
		output = bytes.Clone(b.recv)
		copy(b.recv, before.recv) // restored, so that unchanged finds changes outside of recv
	}
	if err := b.unchanged(before); err != nil {
		return nil, err
	}
	return output, done()
}

// snapshot copies the contents of the buffers.
func (b buffers) snapshot() (s buffers) {
	for _, one := range b.all {
		s.all = append(s.all, buffer{data: bytes.Clone(one.data)})
	}
	s.recv = bytes.Clone(b.recv)
	return s
}

func (b buffers) unchanged(before buffers) error {
	for i, one := range b.all {
		if err := one.checkGuards(); err != nil {
			return err
		}
		if !bytes.Equal(one.data, before.all[i].data) {
			return fmt.Errorf("buffer %d of %d was changed outside of recv", i, len(b.all))
		}
	}
	return nil
}

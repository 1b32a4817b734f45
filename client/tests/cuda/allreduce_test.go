package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"railhead/client"
	"railhead/internal/oracle"
)

func TestEagerAllReduces(t *testing.T) {
	for _, world := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			parts := window(t, ranks, 2<<20)
			for i, count := range []int{1, 17, 4096, 200_000} {
				for _, where := range [][][]byte{nil, parts} {
					s := newSum(t, ranks, count, where)
					s.fill(uint64(i))
					each(t, ranks, func(r rank) error { return errors.Join(s.put(r), r.wait()) })
					s.check(t)
				}
			}
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

// Every type and reduction, eager and of a replay, with the bits of the oracle.
func TestAllReducesOfEveryTypeAndReduction(t *testing.T) {
	const world, count = 3, 1500
	ranks := form(t, startDaemon(t), client.CommConfig{World: world, ReduceGroup: 2})
	for i, d := range oracle.Dtypes() {
		for k, op := range oracle.Ops() {
			bufs, inputs, scalars, ops := make([][]byte, world), make([][]byte, world), make([][]byte, world), make([]client.Op, world)
			seed, dtype := oracle.Seed(uint64(i), k, 0), client.Dtype(i) // both lists are by number
			each(t, ranks, func(r rank) (err error) {
				n := r.Rank()
				bufs[n], inputs[n], scalars[n] = r.alloc(t, count*d.Size()), make([]byte, count*d.Size()), oracle.Scalar(d, oracle.Seed(seed, n, 1))
				oracle.FillSpecial(inputs[n], d, op, oracle.Seed(seed, n, 0))
				ops[n] = client.Op(k)
				if op == oracle.PreMulSum {
					if ops[n], err = r.CreatePreMulSum(dtype, scalars[n]); err != nil {
						return err
					}
				}
				put := func() error { return r.on().AllReduce(bufs[n], bufs[n], count, dtype, ops[n]) }
				g := r.capture(t, put)
				for _, run := range []func() error{put, func() error { return g.exec.Launch(r.stream) }} {
					copy(bufs[n], inputs[n])
					if err := errors.Join(run(), r.wait()); err != nil {
						return err
					}
				}
				g.end()
				if op == oracle.PreMulSum {
					return r.DestroyOp(ops[n])
				}
				return nil
			})
			want := oracle.Reduce(d, op, inputs, 2, scalars)
			for n := range ranks {
				if wrong := oracle.Differences(bufs[n], want, d); wrong != 0 {
					t.Errorf("rank %d: %d of %d elements of %s %s are wrong", n, wrong, count, d, op)
				}
			}
		}
	}
}

// Two graphs of one comm and eager calls, in random order, in windows and elsewhere.
func TestReplaysAndEagerCallsInAnyOrder(t *testing.T) {
	for _, world := range []int{2, 3} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(world), 3))
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			sets := make([][]*sum, 3) // captured in two graphs; eager
			for i, n := range []int{3, 4, 1} {
				for k := range n {
					count := 1 + random.IntN(1+random.IntN(100_000))
					var parts [][]byte
					if k%2 == 0 {
						parts = window(t, ranks, 8*count)
					}
					sets[i] = append(sets[i], newSum(t, ranks, count, parts))
					sets[i][k].fill(0)
				}
			}
			put := func(r rank, set []*sum) error {
				for _, s := range set {
					if err := s.put(r); err != nil {
						return err
					}
				}
				return nil
			}
			graphs := make([][2]*graph, world)
			for i, r := range ranks {
				for g := range 2 {
					graphs[i][g] = r.capture(t, func() error { return put(r, sets[g]) })
				}
			}
			for range 30 {
				set := random.IntN(3)
				for _, s := range sets[set] {
					s.fill(random.Uint64())
				}
				each(t, ranks, func(r rank) error {
					if set < 2 {
						return errors.Join(graphs[r.Rank()][set].exec.Launch(r.stream), r.wait())
					}
					return errors.Join(put(r, sets[set]), r.wait())
				})
				for _, s := range sets[set] {
					s.check(t)
				}
			}
		})
	}
}

func TestTwoCommsOnTwoStreamsRunConcurrently(t *testing.T) {
	const world = 2
	s := startDaemon(t)
	var comms [2][]rank
	var sums [2]*sum
	var graphs [2][world]*graph
	for c := range comms {
		comms[c] = form(t, s, client.CommConfig{Group: fmt.Sprintf("comm %d", c), World: world})
		sums[c] = newSum(t, comms[c], 5000*(c+1), nil)
		sums[c].fill(0)
		for i, r := range comms[c] {
			graphs[c][i] = r.capture(t, func() error { return sums[c].put(r) })
		}
	}
	for round := range uint64(20) {
		for c := range comms {
			sums[c].fill(round)
		}
		errs := inParallel(world, func(i int) error {
			for n := range comms { // the ranks launch the two in different orders
				c := (n + i) % len(comms)
				if err := graphs[c][i].exec.Launch(comms[c][i].stream); err != nil {
					return err
				}
			}
			return errors.Join(comms[0][i].wait(), comms[1][i].wait())
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for c := range comms {
			sums[c].check(t)
		}
	}
}

func TestACommThatWasSplitOffReduces(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 4})
	halves := make([]rank, 4)
	each(t, ranks, func(r rank) (err error) {
		half := r
		half.Comm, err = r.Split(r.Rank()%2, 0)
		halves[r.Rank()] = half
		return err
	})
	for color := range 2 {
		part := []rank{halves[color], halves[color+2]}
		s := newSum(t, part, 1000, window(t, part, 8000))
		s.fill(uint64(color))
		each(t, part, func(r rank) error { return errors.Join(s.put(r), r.wait()) })
		s.check(t)
	}
	each(t, halves, func(r rank) error { return r.Finalize() })
	each(t, ranks, func(r rank) error { return errors.Join(r.allReduce(r.alloc(t, 400)), r.wait(), r.Finalize()) })
}

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/oracle"
	"railhead/internal/wire"
)

// Captured groups, broadcasts over lanes and reductions are replayed in a mix with eager ones, with other data each time.
func TestReplaysOfOperationsOverLanes(t *testing.T) {
	for _, world := range []int{2, 5} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			ranks := form(t, startDaemon(t), client.CommConfig{World: world})
			const count = 5000
			operations := make([]operation, 0, len(kinds))
			for i, k := range kinds {
				if k != "pair" {
					operations = append(operations, operation{kind: k, dtype: oracle.I32, op: oracle.Sum, count: count + i, root: i % world})
				}
			}
			sends, recvs := make([][][]byte, world), make([][][]byte, world)
			for r := range ranks {
				for _, o := range operations {
					s, d := o.times(world)
					sends[r], recvs[r] = append(sends[r], ranks[r].alloc(t, s*o.count*4)), append(recvs[r], ranks[r].alloc(t, d*o.count*4))
				}
			}
			put := func(r rank) (err error) {
				for i, o := range operations {
					err = errors.Join(err, o.call(r.on(), sends[r.Rank()][i], recvs[r.Rank()][i]))
				}
				return err
			}
			graphs := make([]*graph, world)
			for i, r := range ranks {
				graphs[i] = r.capture(t, func() error { return put(r) })
			}
			for round := range 6 {
				inputs := make([][][]byte, len(operations))
				for i := range operations {
					for r := range ranks {
						oracle.Fill(sends[r][i], oracle.I32, oracle.Sum, oracle.Seed(uint64(round*100+i), r, 0))
						clear(recvs[r][i])
						inputs[i] = append(inputs[i], bytes.Clone(sends[r][i]))
					}
				}
				each(t, ranks, func(r rank) error {
					if round%3 == 2 {
						return errors.Join(put(r), r.wait())
					}
					return errors.Join(graphs[r.Rank()].exec.Launch(r.stream), r.wait())
				})
				for i, o := range operations {
					for r, want := range o.expected(inputs[i]) {
						if want != nil && !bytes.Equal(recvs[r][i], want) {
							t.Fatalf("round %d, %v: rank %d: wrong bytes", round, o, r)
						}
					}
				}
			}
			for _, g := range graphs {
				g.end()
			}
			each(t, ranks, func(r rank) error { return r.Finalize() })
		})
	}
}

// A group with more transfers than a kernel takes runs as several, which both ranks divide alike: first all sends, on the other rank first all receives.
func TestAGroupOfMoreTransfersThanAKernelTakes(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 2})
	const transfers, part = 300, 7000
	send, recv := make([][]byte, 2), make([][]byte, 2)
	for i, r := range ranks {
		send[i], recv[i] = r.alloc(t, transfers*part), r.alloc(t, transfers*part)
		oracle.Fill(send[i], oracle.U8, oracle.Sum, uint64(i))
	}
	each(t, ranks, func(r rank) error {
		i := r.Rank()
		all := func(call func(k int) error) (err error) {
			for k := range transfers {
				err = errors.Join(err, call(k))
			}
			return err
		}
		sends := func() error {
			return all(func(k int) error { return r.on().Send(send[i][k*part:(k+1)*part], part-k, client.U8, 1-i) })
		}
		receives := func() error {
			return all(func(k int) error { return r.on().Recv(recv[i][k*part:(k+1)*part], part-k, client.U8, 1-i) })
		}
		err := client.Group(func() error {
			if i == 0 {
				return errors.Join(sends(), receives())
			}
			return errors.Join(receives(), sends())
		})
		return errors.Join(err, r.wait())
	})
	for i := range ranks {
		for k := range transfers {
			if n := part - k; !bytes.Equal(recv[i][k*part:k*part+n], send[1-i][k*part:k*part+n]) {
				t.Fatalf("rank %d: transfer %d is wrong", i, k)
			}
		}
	}
	each(t, ranks, func(r rank) error { return r.Finalize() })
}

func TestATransferThatDiffersNamesBothCalls(t *testing.T) {
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3})
	buf := [][]byte{ranks[0].alloc(t, 400), ranks[1].alloc(t, 400)}
	if err := ranks[0].on().Send(buf[0], 100, client.F32, 1); err != nil {
		t.Fatal(err)
	}
	if err := ranks[1].on().Recv(buf[1], 90, client.F32, 0); err != nil {
		t.Fatal(err)
	}
	wantError(t, ranks[1].wait(), wire.ResultMismatch, "rank 0", "100", "90")
}

func TestAReceiveWithoutASendNamesItsPeerAtTheDeadline(t *testing.T) {
	t.Parallel() // it waits
	ranks := form(t, startDaemon(t), client.CommConfig{World: 3, Timeout: 3 * time.Second})
	if err := ranks[1].on().Recv(ranks[1].alloc(t, 400), 100, client.F32, 2); err != nil {
		t.Fatal(err)
	}
	wantError(t, ranks[1].wait(), wire.ResultTimeout, "rank 2", "recv")
}

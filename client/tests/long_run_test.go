package tests

import (
	"encoding/binary"
	"fmt"
	"testing"

	"railhead/client"
)

// The numbers in signatures have 16 bits. They must wrap around without an effect.
func TestMoreThan2To16OperationsInARow(t *testing.T) {
	s := startDaemon(t)
	ranks := formGroup(t, s, client.CommConfig{World: 2})
	all(t, ranks, func(m member) error {
		send, recv := make([]byte, 8), make([]byte, 16)
		for i := range uint64(1<<16 + 1000) {
			binary.LittleEndian.PutUint64(send, 10*i+uint64(m.Rank()))
			var err error
			want := 20*i + 1 // the sum
			switch i % 4 {
			case 0:
				err = m.AllReduce(send, recv, 1, client.U64, client.Sum)
			case 1:
				err = m.Reduce(send, recv, 1, client.U64, client.Sum, 0)
				if m.Rank() != 0 {
					want = binary.LittleEndian.Uint64(recv)
				}
			case 2:
				want = 10*i + 1
				err = m.Broadcast(send, recv, 1, client.U64, 1)
			case 3:
				want = 10 * i
				err = m.AllGather(send, recv, 1, client.U64)
			}
			if err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
			if got := binary.LittleEndian.Uint64(recv); got != want {
				return fmt.Errorf("operation %d: rank %d has %d, want %d", i, m.Rank(), got, want)
			}
		}
		return nil
	})
}

package tests

import (
	"fmt"
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// Rank 0 frees its registered window while rank 1 frees another one. Both calls are refused, but rank 0 may unmap its memory from then on. Other
// memory at the same address is not the window's, which rank 1 still maps.
func TestMemoryAtTheAddressOfARefusedFreeIsNotTheWindows(t *testing.T) {
	t.Setenv("RAILHEAD_ALGO", "pull")
	const n, last = page / 4, page - 4 // rank 1 sums the last element, of what it maps
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2, HeapBytes: 8 << 20})
	memory := []owned{ownMemfd(t, page), ownMemfd(t, page)}
	defer memory[0].Release()
	defer memory[1].Release()
	windows := registerAll(t, ranks, func(r int) client.RegisterConfig { return memory[r].Config() })
	wantSharing(t, windows, -1)
	sum := func(value byte, want string) {
		t.Helper()
		copy(memory[0].Memory, make([]byte, page))
		copy(memory[1].Memory, make([]byte, page))
		memory[0].Memory[last], memory[1].Memory[last] = value, 1
		all(t, ranks, func(m member) error {
			own := memory[m.Rank()].Memory
			if err := m.AllReduce(own, own, n, client.I32, client.Sum); err != nil {
				return err
			}
			status, err := m.Status()
			if got := fmt.Sprint(own[last], " by ", status.Algorithm); err == nil && got != fmt.Sprint(value+1, " by ", want) {
				err = fmt.Errorf("rank %d: the sum is %s, want %d by %s", m.Rank(), got, value+1, want)
			}
			return err
		})
	}
	sum(2, "pull")
	other := make([]*client.Window, len(ranks))
	all(t, ranks, func(m member) (err error) { other[m.Rank()], err = m.AllocWindow(1); return err })
	for _, err := range together(ranks, func(m member) error {
		if m.Rank() == 0 {
			return windows[0].Free()
		}
		return other[1].Free()
	}) {
		wantError(t, err, wire.ResultMismatch, "window_free(")
	}
	overlayPrivate(t, memory[0].Memory)
	sum(5, "oneshot")
}

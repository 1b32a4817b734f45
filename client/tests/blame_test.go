package tests

import (
	"testing"
	"time"

	"railhead/client"
	"railhead/internal/wire"
)

// Rank 2 waits for rank 0, which waits for rank 1. Rank 1 does not call, so it is the culprit.
func TestADeadlineNamesTheRootOfTheWaitForChain(t *testing.T) {
	t.Parallel() // it waits
	s := startDaemon(t)
	const timeout = 4 * time.Second
	ranks := formGroup(t, s, client.CommConfig{World: 3, Timeout: timeout})
	const count = 1 << 20 // more than a pipe's capacity
	reduce := func(m member) error {
		return m.Reduce(make([]byte, 4*count), make([]byte, 4*count), count, client.F32, client.Sum, 0)
	}
	errs := together(ranks, func(m member) error {
		switch m.Rank() {
		case 0:
			time.Sleep(timeout / 3) // so that rank 2's deadline comes first
		case 1:
			return nil
		}
		return reduce(m)
	})
	for _, r := range []int{0, 2} {
		wantError(t, errs[r], wire.ResultTimeout, "rank 1 (pid", "reduce")
		if st, err := ranks[r].Status(); err != nil || st.Culprit != 1 {
			t.Errorf("rank %d: culprit %d, %v", r, st.Culprit, err)
		}
	}
}

func TestAnOpOfAnotherCommOrADestroyedOpIsRefused(t *testing.T) {
	s := startDaemon(t)
	a := formGroup(t, s, client.CommConfig{Group: "a", World: 1})[0]
	b := formGroup(t, s, client.CommConfig{Group: "b", World: 1})[0]
	buf := make([]byte, 4)
	scalar := []byte{0, 0, 0, 0x40} // 2.0
	ofA, err := a.CreatePreMulSum(client.F32, scalar)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.CreatePreMulSum(client.F32, scalar); err != nil {
		t.Fatal(err)
	}
	wantError(t, b.AllReduce(buf, buf, 1, client.F32, ofA), wire.ResultInvalidArgument, "not an op of this comm")
	if err := a.DestroyOp(ofA); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CreatePreMulSum(client.F32, scalar); err != nil {
		t.Fatal(err)
	}
	wantError(t, a.AllReduce(buf, buf, 1, client.F32, ofA), wire.ResultInvalidArgument, "not an op of this comm")
	wantError(t, a.DestroyOp(ofA), wire.ResultInvalidArgument, "not an op of this comm")
}

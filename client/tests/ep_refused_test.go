package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"railhead/client"
)

// The refused dispatch began to write its plan into the slot of a dispatch that had ended. The dispatch in flight must still complete.
func TestARefusedDispatchDoesNotBlockTheOneInFlight(t *testing.T) {
	s := startDaemon(t)
	const tokens, hidden = 300, 7168 // more than the capacity of the pipe to the other rank
	config := client.EPConfig{Mode: client.EPHighThroughput, MaxTokensPerRank: tokens, Hidden: hidden, NumExperts: 2, TopK: 1,
		Dtype: client.F32, WireDtype: client.FP8E4M3, CombineDtype: client.F32}
	ranks := formGroup(t, s, client.CommConfig{World: 2, Group: "refused", Timeout: soon})
	all(t, ranks, func(m member) error {
		ep, err := m.NewEP(config)
		if err != nil {
			return err
		}
		in := client.EPTokensIn{Tokens: tokens, X: bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, tokens*hidden),
			Idx: slices.Repeat([]int32{int32(1 - m.Rank())}, tokens)}
		routing, err := ep.NewRouting(in)
		if err != nil {
			return err
		}
		rows := client.EPRows{Layout: client.EPTokens, Capacity: tokens, X: make([]byte, tokens*hidden)}
		first, err := ep.Dispatch(client.EPTokensIn{Tokens: 1, X: in.X[:4*hidden], Idx: in.Idx[:1]}, &rows)
		if err != nil {
			return err
		}
		if err := first.Release(); err != nil {
			return err
		}
		second, err := ep.DispatchSend(in)
		if err != nil {
			return err
		}
		bad := client.EPTokensIn{Tokens: tokens, X: slices.Clone(in.X), Routing: routing}
		binary.LittleEndian.PutUint32(bad.X, math.Float32bits(float32(math.NaN())))
		_, err = ep.DispatchSend(bad)
		if err := refused("a NaN in fp8", err, invalid, "element 0 is NaN", "nothing was sent"); err != nil {
			return err
		}
		if err := second.Recv(&rows); err != nil {
			return err
		}
		if rows.Tokens != tokens {
			return fmt.Errorf("%d tokens received, want %d", rows.Tokens, tokens)
		}
		return errors.Join(second.Release(), routing.Destroy(), ep.Destroy())
	})
}

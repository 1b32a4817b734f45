package tests

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"railhead/client"
)

// A row fills a chunk, and there are more of them than slots: rank 0 reads the first dispatch while rank 1 sends the second.
func TestTheSecondOfTwoDispatchesInFlightDoesNotOvertakeTheFirst(t *testing.T) {
	const tokens = 8
	config := client.EPConfig{Mode: client.EPHighThroughput, MaxTokensPerRank: tokens, Hidden: 65536, NumExperts: 2, TopK: 1,
		Dtype: client.F32, WireDtype: client.F32, CombineDtype: client.F32}
	input := func(dispatch, to int) client.EPTokensIn {
		in := client.EPTokensIn{Tokens: tokens, X: make([]byte, tokens*config.Hidden*4)}
		for token := range tokens {
			in.Idx = append(in.Idx, int32(to))
			binary.LittleEndian.PutUint32(in.X[token*config.Hidden*4:], math.Float32bits(float32(100*dispatch+token)))
		}
		return in
	}
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 2, Group: "ep"})
	all(t, ranks, func(m member) error {
		ep, err := m.NewEP(config)
		if err != nil {
			return err
		}
		var sent [2]*client.EPDispatch
		for i := range sent {
			if i == 1 && m.Rank() == 1 {
				time.Sleep(50 * time.Millisecond) // rank 0 comes to its first receive
			}
			if sent[i], err = ep.DispatchSend(input(i, 1-m.Rank())); err != nil {
				return err
			}
		}
		rows := client.EPRows{Layout: client.EPFlat, Capacity: tokens, X: make([]byte, tokens*config.Hidden*4)}
		for i, d := range sent {
			if err := d.Recv(&rows); err != nil {
				return err
			}
			for token := range tokens {
				got := math.Float32frombits(binary.LittleEndian.Uint32(rows.X[token*config.Hidden*4:]))
				if want := float32(100*i + token); got != want {
					return fmt.Errorf("dispatch %d: row %d is token %g, want %g", i, token, got, want)
				}
			}
			if err := d.Release(); err != nil {
				return err
			}
		}
		return ep.Destroy()
	})
}

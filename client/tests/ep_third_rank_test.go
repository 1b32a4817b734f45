package tests

import (
	"testing"

	"railhead/client"
	"railhead/internal/wire"
)

// Only the last of three ranks has another config.
func TestABufferWhoseLastRankDiffersIsAMismatchOnAllRanks(t *testing.T) {
	ranks := formGroup(t, startDaemon(t), client.CommConfig{World: 3})
	errs := together(ranks, func(m member) error {
		c := faultConfig(client.EPLowLatency)
		if m.Rank() == 2 {
			c.Hidden++
		}
		_, err := m.NewEP(c)
		return err
	})
	for _, err := range errs {
		wantError(t, err, wire.ResultMismatch, "hidden", "rank 2")
	}
}

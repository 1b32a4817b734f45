package ranks

import (
	"strings"
	"testing"
)

func TestARankStartsNoRanks(t *testing.T) {
	t.Setenv(jobVariable, "{}")
	// Without its check, Run would have no daemon here and panic, before it starts a process.
	if err := (&Group{Ranks: 2}).Run(t.Context(), Kind{}, nil); err == nil || !strings.Contains(err.Error(), jobVariable) {
		t.Errorf("Run in a rank: %v", err)
	}
}

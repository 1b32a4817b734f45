package tuner

import "fmt"

// Bounds within which measurements are trusted. Beyond them ranks did not run when they could have, because the machine was busy.
const (
	// MaxSpread is the largest Entry.Spread. On an idle machine rounds differ by less than a tenth.
	MaxSpread = 0.25
	// MaxGain is the largest Entry.Gain. The thresholds without a table are never this far off, so a default that takes so
	// much longer was interrupted.
	MaxGain = 50
)

// Doubt says why the entry's measurements are not to be trusted. It is empty if they are.
func (e *Entry) Doubt() string {
	switch {
	case !(e.Spread <= MaxSpread):
		return fmt.Sprintf("half of its times vary by %.0f %% or more between rounds, at most %.0f %% are trusted", 100*e.Spread, 100*MaxSpread)
	case !(e.Gain <= MaxGain):
		return fmt.Sprintf("at one size the default takes %.0f times as long, at most %d times are trusted", e.Gain, MaxGain)
	}
	return ""
}

// Noisy counts the entries that are used although their measurements are not to be trusted.
func (t *Table) Noisy() int {
	n := 0
	for _, e := range t.Entries {
		if e.Noisy {
			n++
		}
	}
	return n
}

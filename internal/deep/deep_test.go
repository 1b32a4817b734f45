package deep

import (
	"testing"

	"pgregory.net/rapid"
)

func TestTheVariableMultipliesTheRoundsOfTheDeepRun(t *testing.T) {
	for text, want := range map[string]int{"": 5, "0": 5, "1": 70, "50": 3500} {
		t.Setenv(Variable, text)
		if got := Rounds(t, 5, 70); got != want {
			t.Errorf("%s=%q: %d rounds, want %d", Variable, text, got, want)
		}
	}
}

func TestOnlyTheDeepRunRunsWhatTakesLong(t *testing.T) {
	for text, want := range map[string]bool{"": false, "1": true} {
		t.Setenv(Variable, text)
		ran := false
		t.Run("deep", func(t *testing.T) {
			Only(t)
			ran = true
		})
		if ran != want {
			t.Errorf("%s=%q: ran %t, want %t", Variable, text, ran, want)
		}
	}
}

func TestChecksSetsTheCasesOfAProperty(t *testing.T) {
	for text, want := range map[string]int{"": 7, "2": 200} {
		t.Run("RAILHEAD_DEEP="+text, func(t *testing.T) {
			t.Setenv(Variable, text)
			Checks(t, 7)
			drawn := 0
			rapid.Check(t, func(*rapid.T) { drawn++ })
			if drawn != want {
				t.Errorf("%d cases, want %d", drawn, want)
			}
		})
	}
}

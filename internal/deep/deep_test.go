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

func TestFirstIsAllInTheDeepRun(t *testing.T) {
	all := []string{"a", "b", "c"}
	for text, want := range map[string]int{"": 2, "1": 3, "50": 3} {
		t.Setenv(Variable, text)
		if got := First(t, 2, all); len(got) != want {
			t.Errorf("%s=%q: %q, want %d", Variable, text, got, want)
		}
	}
	t.Setenv(Variable, "")
	if got := First(t, 9, all); len(got) != 3 {
		t.Errorf("%q, want all three", got)
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

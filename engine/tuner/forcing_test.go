package tuner

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var someAlgorithms = Algorithms{
	"allreduce": {"oneshot", "twoshot", "pull", "ring", "tree"},
	"allgather": {"oneshot", "pull", "ring"},
	"broadcast": {"pipe"},
	"barrier":   {},
}

func TestOnlyForcedAlgorithmsMayBeChosen(t *testing.T) {
	every := map[string]string{
		"allreduce": "oneshot twoshot pull ring tree", "allgather": "oneshot pull ring", "broadcast": "pipe", "barrier": "", "gather": "",
	}
	for _, c := range []struct {
		text    string
		changed map[string]string
		canon   string
	}{
		{"", nil, "auto"},
		{" auto ", nil, "auto"},
		{"allreduce:ring", map[string]string{"allreduce": "ring"}, ""},
		{"allreduce:ring;^tree", map[string]string{"allreduce": "ring"}, ""},
		{"^tree", map[string]string{"allreduce": "oneshot twoshot pull ring"}, ""},
		{"^tree,ring", map[string]string{"allreduce": "oneshot twoshot pull", "allgather": "oneshot pull"}, "^ring,tree"},
		{"ring", map[string]string{"allreduce": "ring", "allgather": "ring"}, ""},
		{"twoshot", map[string]string{"allreduce": "twoshot"}, ""}, // the others have none, and keep theirs
		{"ring,pipe", map[string]string{"allreduce": "ring", "allgather": "ring"}, "pipe,ring"},
		{"tree,oneshot;allgather:pull", map[string]string{"allreduce": "oneshot tree", "allgather": "pull"}, "allgather:pull;oneshot,tree"},
		{"^pull;allgather:pull", map[string]string{"allreduce": "oneshot twoshot ring tree", "allgather": "pull"}, "allgather:pull;^pull"},
		{"allreduce:^oneshot,twoshot", map[string]string{"allreduce": "pull ring tree"}, ""},
		{" allreduce : ^ oneshot , twoshot ; ring ", map[string]string{"allreduce": "pull ring tree", "allgather": "ring"}, "allreduce:^oneshot,twoshot;ring"},
	} {
		f, err := ParseForcing(c.text, someAlgorithms)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		for collective, all := range every {
			want, changed := c.changed[collective]
			if !changed {
				want = all
			}
			if got := strings.Join(f.Allowed(collective), " "); got != want {
				t.Errorf("%q: %s may take %q, want %q", c.text, collective, got, want)
			}
		}
		if c.canon == "" {
			c.canon = c.text
		}
		if got := f.String(); got != c.canon {
			t.Errorf("%q: prints as %q, want %q", c.text, got, c.canon)
		}
	}
}

func TestWrongForcingSaysWhatExists(t *testing.T) {
	for text, want := range map[string]string{
		"allreduced:ring":               `collective "allreduced" is not known; there are allgather, allreduce, barrier, broadcast`,
		"all_reduce:ring":               `collective "all_reduce" is not known`,
		":ring":                         `collective "" is not known`,
		"rings":                         `algorithm "rings" is not known for all collectives; there are oneshot, pipe, pull, ring, tree, twoshot`,
		"allgather:tree":                `algorithm "tree" is not known for allgather; there are oneshot, pull, ring`,
		"allreduce:^tree,rong":          `algorithm "rong"`,
		"allreduce:":                    `algorithm "" is not known`,
		"allreduce:ring;":               `algorithm "" is not known`,
		"^":                             `algorithm "" is not known`,
		"ring,,tree":                    `algorithm "" is not known`,
		"Ring":                          `algorithm "Ring" is not known`,
		"ring;auto":                     `algorithm "auto" is not known`,
		"^ring,^tree":                   `"^tree": put one ^`,
		"allreduce:ring,ring":           "ring is named twice for allreduce",
		"ring;^tree":                    "two clauses for all collectives",
		"allreduce:ring;allreduce:pull": "two clauses for allreduce",
		"^pipe":                         "none is left for broadcast; its algorithms are pipe",
		"allgather:^oneshot,pull,ring":  "none is left for allgather",
		strings.Repeat("ring;", 205):    "1025 bytes; at most 1024",
		"allreduce:ring:tree":           `algorithm "ring:tree"`,
	} {
		if _, err := ParseForcing(text, someAlgorithms); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestTheZeroForcingForcesNothing(t *testing.T) {
	var f Forcing
	if f.String() != "auto" || f.Allowed("allreduce") != nil {
		t.Errorf("%q, %v", f.String(), f.Allowed("allreduce"))
	}
}

func TestTheCallerMayChangeTheListOfAllowedAlgorithms(t *testing.T) {
	f, err := ParseForcing("", someAlgorithms)
	if err != nil {
		t.Fatal(err)
	}
	f.Allowed("broadcast")[0] = "other"
	if someAlgorithms["broadcast"][0] != "pipe" {
		t.Error("the caller's change shows")
	}
}

// drawForcing makes texts that are valid or nearly so.
func drawForcing(t *rapid.T) string {
	var clauses []string
	for range rapid.IntRange(0, 4).Draw(t, "clauses") {
		names := rapid.SliceOfN(rapid.SampledFrom(someAlgorithms.all()), 1, 3).Draw(t, "algorithms")
		clauses = append(clauses, rapid.SampledFrom([]string{"", "allreduce:", "allgather:", "broadcast:"}).Draw(t, "collective")+
			rapid.SampledFrom([]string{"", "^"}).Draw(t, "exclude")+strings.Join(names, ","))
	}
	return strings.Join(clauses, ";")
}

func TestAcceptedForcingRoundTripsAndLeavesAnAlgorithm(t *testing.T) {
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		if checkForcing(t, drawForcing(t)) {
			accepted++
		}
	})
	if accepted < 10 {
		t.Errorf("only %d texts were accepted", accepted)
	}
}

func FuzzForcing(f *testing.F) {
	for _, text := range []string{"", "auto", "allreduce:ring;^tree", "^pull;allgather:pull", " allreduce : ^ oneshot , twoshot ; ring "} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { checkForcing(t, text) })
}

// checkForcing: an accepted text parses to the same again, and leaves every collective an algorithm.
func checkForcing(t interface{ Fatalf(string, ...any) }, text string) bool {
	f, err := ParseForcing(text, someAlgorithms)
	if err != nil {
		return false
	}
	again, err := ParseForcing(f.String(), someAlgorithms)
	if err != nil || !reflect.DeepEqual(f, again) {
		t.Fatalf("%q prints as %q, which reads as %+v, %v", text, f.String(), again, err)
	}
	for collective, all := range someAlgorithms {
		allowed := f.Allowed(collective)
		if len(all) > 0 && len(allowed) == 0 {
			t.Fatalf("%q leaves nothing for %s", text, collective)
		}
		for _, a := range allowed {
			if !slices.Contains(all, a) {
				t.Fatalf("%q allows %s for %s", text, a, collective)
			}
		}
		if c, own := f.clause(collective); own {
			for _, a := range all {
				if slices.Contains(allowed, a) == (c.exclude == slices.Contains(c.algorithms, a)) {
					t.Fatalf("%q: %s for %s: allowed %v", text, a, collective, allowed)
				}
			}
		}
	}
	return true
}

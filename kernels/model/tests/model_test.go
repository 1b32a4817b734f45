package modeltests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"railhead/internal/await"
	"railhead/internal/cxxprogram"
	"railhead/internal/deep"
	"railhead/internal/librarybuild"
)

// programs compiles the sources of kernels.
var programs *cxxprogram.Builder

func TestMain(m *testing.M) {
	os.Exit(cxxprogram.Main(m, "../..", func(b *cxxprogram.Builder) { programs = b }))
}

// modelSeeds is the range of seeds of each random scenario.
func modelSeeds(t *testing.T) string {
	t.Helper()
	return fmt.Sprint("0:", deep.Rounds(t, 120, 300))
}

// modelObject writes the object that the go command has compiled of model/main.cc, once.
var modelObject = sync.OnceValues(func() (string, error) {
	objects, err := librarybuild.Objects("../../..", programs.Folder(), "kernels/model")
	if err != nil || len(objects) != 1 {
		return "", fmt.Errorf("%d objects of kernels/model: %w", len(objects), err)
	}
	return objects[0], nil
})

// buildModel links the protocols of include/ for the memory model.
func buildModel(t *testing.T) string {
	t.Helper()
	object, err := modelObject()
	if err != nil {
		t.Fatal(err)
	}
	return programs.Compile(t, []string{"-Wl,--defsym=main=_Z9modelMainiPPc"}, object) // the name of doc.go
}

// runModel returns whether the scenario passed, and the model's output.
func runModel(t *testing.T, binary string, arguments ...string) (passed bool, said string) {
	t.Helper()
	ctx, cancel := await.Child(t)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, arguments...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("%v: %v\n%s", arguments, err, out)
	}
	return err == nil, strings.TrimSpace(string(out))
}

// modelList returns the lines that --list prints, by their first column.
func modelList(t *testing.T, binary string) (scenarios, mutants [][]string) {
	t.Helper()
	for _, line := range strings.Split(cxxprogram.Run(t, binary, "--list"), "\n") {
		switch f := strings.Split(line, "\t"); f[0] {
		case "scenario":
			scenarios = append(scenarios, f[1:])
		case "mutant":
			mutants = append(mutants, f[1:])
		}
	}
	return scenarios, mutants
}

func TestTheProtocolsPassTheMemoryModel(t *testing.T) {
	binary := buildModel(t)
	scenarios, _ := modelList(t, binary)
	kinds := map[string]int{}
	for _, s := range scenarios {
		name, kind, says := s[0], s[1], s[2]
		kinds[kind]++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if kind == "large" {
				deep.Only(t)
			}
			arguments := []string{"--scenario", name, "--trace"}
			if kind == "seeds" {
				arguments = append(arguments, "--seeds", modelSeeds(t))
			}
			if passed, said := runModel(t, binary, arguments...); !passed {
				t.Errorf("%s: %s", says, said)
			}
		})
	}
	if kinds["seeds"] < 10 || kinds["all"] < 8 {
		t.Errorf("only %v scenarios", kinds)
	}
}

// Time passes in ep-late, so that ranks do give each other up.
func TestInManySeedsALateRankIsGivenUp(t *testing.T) {
	passed, said := runModel(t, buildModel(t), "--scenario", "ep-late", "--seeds", "0:200")
	counts := regexp.MustCompile(`in (\d+) seeds a rank gave another up`).FindStringSubmatch(said)
	if !passed || counts == nil {
		t.Fatal(said)
	}
	if n, err := strconv.Atoi(counts[1]); err != nil || n < 50 {
		t.Errorf("only in %s of 200 seeds a rank gave another up", counts[1])
	}
}

// seedsFrom is the range of seeds to search for one that fails. Where few seeds fail, the search begins at one that has failed: what the model
// plays may have changed since, and then the search takes seconds longer.
func seedsFrom(first int) string { return fmt.Sprintf("%d:%d", first, first+20_000) }

// rareMutants fail in few seeds: each with a seed that fails.
var rareMutants = map[string]int{"134": 76, "166": 79, "168": 115, "176": 2095, "177": 1129, "178": 2846}

// The scenario named for each mistake of the committed list (model/mutants.h) detects it.
func TestEveryMutantFailsInTheModel(t *testing.T) {
	binary := buildModel(t)
	_, mutants := modelList(t, binary)
	if len(mutants) < 30 {
		t.Errorf("only %d mutants", len(mutants))
	}
	for _, m := range mutants {
		number, scenario, says := m[0], m[1], m[2]
		t.Run(fmt.Sprintf("%s: %s", number, says), func(t *testing.T) {
			t.Parallel()
			passed, said := runModel(t, binary, "--scenario", scenario, "--mutant", number, "--seeds", seedsFrom(rareMutants[number]))
			if passed {
				t.Errorf("mutant %s (%s) passes %s: %s", number, says, scenario, said)
			}
		})
	}
}

// orderChanges are the lines of model/orders.txt: scenario ("-" = none detects it), change, and "seed N" or why none does.
func orderChanges(t *testing.T) [][3]string {
	t.Helper()
	text, err := os.ReadFile("../orders.txt")
	if err != nil {
		t.Fatal(err)
	}
	var changes [][3]string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		changes = append(changes, [3]string(append(f, "", "")[:3]))
	}
	return changes
}

// Every release, acquire and fence of the protocols is needed: if it is weakened, the scenario that the list names fails.
func TestEveryChangeOfAnOrderIsDetected(t *testing.T) {
	binary := buildModel(t)
	for _, c := range orderChanges(t) {
		scenario, change, note := c[0], c[1], c[2]
		if scenario == "-" {
			if note == "" {
				t.Errorf("%s: no reason why no scenario detects it", change)
			}
			continue
		}
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			arguments := []string{"--scenario", scenario, "--change", change}
			first := 0
			if text, is := strings.CutPrefix(note, "seed "); is {
				var err error
				if first, err = strconv.Atoi(text); err != nil {
					t.Fatal(err)
				}
			}
			if !strings.Contains(scenario, "-all") {
				arguments = append(arguments, "--seeds", seedsFrom(first))
			}
			if passed, said := runModel(t, binary, arguments...); passed {
				t.Errorf("%q passes %s: %s", change, scenario, said)
			}
		})
	}
}

// An order that is added to the protocols must be added to the list too.
func TestTheListOfOrdersHasEveryOrderThatIsExecuted(t *testing.T) {
	binary := buildModel(t)
	listed, executed := map[string]bool{}, map[string]bool{}
	for _, c := range orderChanges(t) {
		listed[c[1]] = true
	}
	scenarios, _ := modelList(t, binary)
	for _, s := range scenarios {
		if s[1] != "seeds" {
			continue
		}
		seeds := fmt.Sprint("0:", deep.Rounds(t, 10, 100))
		for line := range strings.Lines(cxxprogram.Run(t, binary, "--scenario", s[0], "--seeds", seeds, "--changes")) {
			change, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "change\t")
			if is && !listed[change] {
				t.Errorf("%s: %q is not in model/orders.txt", s[0], change)
			}
			executed[change] = executed[change] || is
		}
	}
	for change := range listed {
		if !executed[change] && deep.On(t) {
			t.Errorf("%q is in model/orders.txt, and no scenario executes it", change)
		}
	}
}

func TestARaceNamesBothAccessesTheirRanksAndTheWord(t *testing.T) {
	_, said := runModel(t, buildModel(t), "--scenario", "flags-rooted", "--change", "publish: store.release of head from: relaxed", "--seeds", "0:2000", "--trace")
	want := regexp.MustCompile(`rank \d\.0: race: store \(stores\) of slot \d to \d .* of rank \d is not ordered after load \(loads\) of rank \d\.0, step \d+`)
	if !want.MatchString(said) || strings.Count(said, "\n") < 10 {
		t.Errorf("%.2000q", said)
	}
}

func TestAFailingSeedCanBeReplayedAndPrintsItsInterleaving(t *testing.T) {
	binary := buildModel(t)
	_, said := runModel(t, binary, "--scenario", "flags-oneshot", "--mutant", "20", "--seeds", "0:20000")
	again := regexp.MustCompile(`replay with: (.*)`).FindStringSubmatch(said)
	if again == nil {
		t.Fatalf("no arguments for a replay in %q", said)
	}
	passed, trace := runModel(t, binary, strings.Fields(again[1])...)
	if passed || strings.Count(trace, "\n") < 10 || !strings.Contains(trace, "FAIL") {
		t.Errorf("the replay passed (%v) or printed no interleaving: %q", passed, trace)
	}
}

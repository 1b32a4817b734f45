package demo

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"railhead/cmd/railhead/internal/ranks"
	"railhead/internal/models"
)

func TestACallThatIsWrongOnOneRankCountsOnce(t *testing.T) {
	results := make([]ranks.Lines[rankReport], 2)
	for r, wrong := range []string{"[]", "[1,2]"} {
		_, _ = fmt.Fprintf(&results[r], `{"ops":[{"op":"dispatch","bytes":8,"transfer_ns":[%d000,2000,3000],"wait_ns":[0,4000,0],`+
			`"checked":%d,"wrong":%s,"algo":"ll"}]}`+"\n", 7+r, 3-r, wrong)
	}
	ops, err := merge(results, 3)
	if err != nil || len(ops) != 1 {
		t.Fatalf("%v, %v", ops, err)
	}
	want := Op{Op: "dispatch", Bytes: 8, Algo: "ll", Calls: 3, P50us: 3, P99us: 8, Wait50: 0, Wait99: 4, Checked: 2, Wrong: 2}
	if ops[0] != want {
		t.Errorf("got %+v, want %+v", ops[0], want)
	}
}

func TestTheDemoTakesAsManyRanksAsProcessors(t *testing.T) {
	for processors, want := range map[int]int{1: 2, 2: 2, 3: 3, 8: 8, 9: 8, 192: 8} {
		if got := ranksFor(processors); got != want {
			t.Errorf("%d processors: %d ranks, want %d", processors, got, want)
		}
	}
}

func TestTheDemoProposesOnlyWhatWasNotRun(t *testing.T) {
	for _, name := range models.Names() {
		shape, err := models.Named(name)
		if err != nil {
			t.Fatal(err)
		}
		p := play{shape: shape, ranks: 3}
		var commands []string
		for _, s := range p.suggestions() {
			commands = append(commands, s.command)
		}
		if slices.Contains(commands, "demo --model "+name) || !strings.HasPrefix(commands[0], "demo --model ") {
			t.Errorf("after %s: %q", name, commands)
		}
		if !slices.Contains(commands, "bench allreduce --ranks 3 -b 1K -e 8M -f 2") {
			t.Errorf("bench is to have the ranks of the demo: %q", commands)
		}
	}
}

func TestTheDemoSaysWhyTimesAreLong(t *testing.T) {
	for name, c := range map[string]struct {
		ranks int
		op    Op
		want  string
	}{
		"quiet":       {2, Op{P50us: 20, P99us: 60, Wait50: 1, Wait99: 500}, ""},
		"late ranks":  {2, Op{P50us: 20, P99us: 60, Wait50: 21}, "on an idle machine"},
		"interrupted": {2, Op{P50us: 20, P99us: 4000}, "on an idle machine"},
		"more ranks":  {4, Op{P50us: 800, P99us: 900}, "4 ranks share 2 processors"},
	} {
		r := Report{Ranks: c.ranks, Ops: []Op{c.op}}
		if got := r.disturbance(2); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

package demo

import (
	"fmt"
	"testing"

	"railhead/cmd/railhead/internal/ranks"
)

func TestACallThatIsWrongOnOneRankCountsOnce(t *testing.T) {
	results := make([]ranks.Lines[rankReport], 2)
	for r, wrong := range []string{"[]", "[1,2]"} {
		_, _ = fmt.Fprintf(&results[r], `{"ops":[{"op":"dispatch","bytes":8,"times_ns":[%d000,2000,3000],"checked":%d,"wrong":%s,"algo":"ll"}]}`,
			7+r, 3-r, wrong)
		_, _ = fmt.Fprintln(&results[r])
	}
	ops, err := merge(results, 3)
	if err != nil || len(ops) != 1 {
		t.Fatalf("%v, %v", ops, err)
	}
	if want := (Op{Op: "dispatch", Bytes: 8, Algo: "ll", Calls: 3, P50us: 3, P99us: 8, Checked: 2, Wrong: 2}); ops[0] != want {
		t.Errorf("got %+v, want %+v", ops[0], want)
	}
}

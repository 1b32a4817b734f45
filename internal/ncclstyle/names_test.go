package ncclstyle

import (
	"strings"
	"testing"
)

func TestDatatypesAreKnownByNcclTestsNamesAndShortOnes(t *testing.T) {
	for in, want := range map[string]Dtype{
		"f32": Float, "float": Float, "float32": Float, "bf16": BFloat16, "bfloat16": BFloat16,
	} {
		if got, err := ParseDtype(in); err != nil || got != want {
			t.Errorf("ParseDtype(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	if Float != "float" || BFloat16 != "bfloat16" || Float.Size() != 4 || BFloat16.Size() != 2 {
		t.Error("names or sizes are not those of nccl-tests")
	}
}

func TestUnsupportedNamesListWhatWorks(t *testing.T) {
	for _, in := range []string{"", "half", "f16", "double", "Float", "all"} {
		_, err := ParseDtype(in)
		if err == nil || !strings.Contains(err.Error(), "float (f32, float32) or bfloat16 (bf16)") {
			t.Errorf("ParseDtype(%q): %v", in, err)
		}
	}
	for _, in := range []string{"", "prod", "min", "max", "avg", "all", "Sum"} {
		_, err := ParseOp(in)
		if err == nil || !strings.Contains(err.Error(), "use sum") {
			t.Errorf("ParseOp(%q): %v", in, err)
		}
	}
	if op, err := ParseOp("sum"); err != nil || op != Sum || Sum != "sum" {
		t.Errorf("ParseOp(sum) = %q, %v", op, err)
	}
}

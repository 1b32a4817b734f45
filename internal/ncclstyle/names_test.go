package ncclstyle

import (
	"slices"
	"strings"
	"testing"
)

func TestDatatypesAreKnownByNcclTestsNamesAndShortOnes(t *testing.T) {
	for _, c := range []struct {
		want  Dtype
		size  uint64
		names string
	}{
		{"int8", 1, "int8 i8"}, {"uint8", 1, "uint8 u8"}, {"int32", 4, "int32 i32"}, {"int64", 8, "int64 i64"},
		{"uint64", 8, "uint64 u64"}, {"half", 2, "half f16 float16"}, {"float", 4, "float f32 float32"},
		{"double", 8, "double f64 float64"}, {"bfloat16", 2, "bfloat16 bf16"}, {"f8e4m3", 1, "f8e4m3 fp8_e4m3"},
		{"f8e5m2", 1, "f8e5m2 fp8_e5m2"},
	} {
		for _, in := range strings.Fields(c.names) {
			got, err := ParseDtypes(in)
			if err != nil || !slices.Equal(got, []Dtype{c.want}) || got[0].Size() != c.size {
				t.Errorf("ParseDtypes(%q) = %q, %v; want %q of %d bytes", in, got, err, c.want, c.size)
			}
		}
	}
}

func TestReductionsAreKnownByNcclTestsNames(t *testing.T) {
	for in, want := range map[string]Redop{
		"sum": "sum", "prod": "prod", "max": "max", "min": "min", "avg": "avg", "mulsum": "mulsum", "premulsum": "mulsum",
	} {
		if got, err := ParseOps(in); err != nil || !slices.Equal(got, []Redop{want}) {
			t.Errorf("ParseOps(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestAllIsEverythingInTheOrderOfNcclTests(t *testing.T) {
	types, err := ParseDtypes("all")
	want := []Dtype{"int8", "uint8", "int32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"}
	if err != nil || !slices.Equal(types, want) {
		t.Errorf("types %q, %v", types, err)
	}
	ops, err := ParseOps("all")
	if err != nil || !slices.Equal(ops, []Redop{"sum", "prod", "max", "min", "avg", "mulsum"}) {
		t.Errorf("reductions %q, %v", ops, err)
	}
}

func TestUnsupportedNamesListWhatWorks(t *testing.T) {
	for _, in := range []string{"", "uint32", "f8", "Float", "All", "float,half"} {
		got, err := ParseDtypes(in)
		if got != nil || err == nil || !strings.Contains(err.Error(), "float (f32), double (f64), bfloat16 (bf16)") {
			t.Errorf("ParseDtypes(%q): %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "median", "none", "Sum", "sum,max"} {
		got, err := ParseOps(in)
		if got != nil || err == nil || !strings.Contains(err.Error(), "use sum, prod") {
			t.Errorf("ParseOps(%q): %q, %v", in, got, err)
		}
	}
}

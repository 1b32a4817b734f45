package kernels_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"railhead/internal/wire"
)

// The table of algorithms (internal/wire/algorithms.txt) lists what allreduce.cu has.
func TestThePTXHasTheAlgorithmsOfTheTable(t *testing.T) {
	ptx, err := os.ReadFile("ptx/allreduce.ptx")
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]bool{}
	for _, m := range regexp.MustCompile(`\.entry rh_([a-z]+)_([a-z]+)_(?:f32|bf16)\(`).FindAllStringSubmatch(string(ptx), -1) {
		if m[2] != "rmsnorm" { // fused: not an algorithm of an all-reduce
			entries[m[1]+" "+m[2]] = true
		}
	}
	for op := wire.OpNone; op <= wire.OpEPCombineRecv; op++ {
		for _, a := range op.CUDAAlgorithms() {
			entry := strings.ReplaceAll(op.String(), "_", "") + " " + a.String()
			if !entries[entry] {
				t.Errorf("the PTX has no kernel for %s", entry)
			}
			delete(entries, entry)
		}
	}
	if len(entries) > 0 {
		t.Errorf("the table does not have %v", entries)
	}
}

package kernels_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"railhead/internal/wire"
)

// entryPoints lists the kernels that a list of entry points (include/railhead/gpu) expands to, by the compiler's preprocessor.
func entryPoints(t *testing.T) []string {
	t.Helper()
	text := programs.Preprocess(t, `#include "railhead/gpu/all_reduce_entries.h"
#include "railhead/gpu/collective_entries.h"
#define NAME(name, ...) entry name;
RH_ALL_REDUCES_F32(NAME, NAME) RH_ALL_REDUCES_BF16(NAME, NAME) RH_ALL_REDUCES_F16(NAME, NAME) RH_ALL_REDUCES_OTHERS(NAME, NAME)
RH_COPIES(NAME) RH_PULLS(NAME) RH_REDUCE_SCATTERS(NAME) RH_PIPES(NAME) RH_GROUPS(NAME)
`)
	return namesIn(text)
}

func namesIn(text string) (names []string) {
	for _, m := range regexp.MustCompile(`entry (rh_\w+);`).FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return names
}

// The PTX has the listed entry points, and the machine code names each.
func TestTheImagesHaveEveryEntryPoint(t *testing.T) {
	ep := namesIn(programs.Preprocess(t, `#include "railhead/gpu/ep_entries.h"
#define NAME(name, ...) entry name;
RH_EP_ENTRIES(NAME, void)
`))
	for image, want := range map[string]struct {
		names []string
		least int // so that an empty list is noticed
	}{"kernels": {entryPoints(t), 50}, "ep": {ep, 9}} {
		ptx, err := os.ReadFile("ptx/" + image + ".ptx")
		if err != nil {
			t.Fatal(err)
		}
		cubin, err := os.ReadFile("cubin/" + image + ".sm_90.cubin")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range regexp.MustCompile(`\.entry (rh_\w+)\(`).FindAllStringSubmatch(string(ptx), -1) {
			names = append(names, m[1])
			if !strings.Contains(string(cubin), "\x00.text."+m[1]+"\x00") {
				t.Errorf("the machine code of %s has no %s", image, m[1])
			}
		}
		slices.Sort(names)
		if len(want.names) < want.least || !slices.Equal(names, want.names) {
			t.Errorf("the PTX of %s has %v, the lists %v (at least %d names)", image, names, want.names, want.least)
		}
	}
}

// The table of algorithms (internal/wire/algorithms.txt) lists the kernels for any world size, of every type.
func TestTheEntryPointsAreThoseOfTheTable(t *testing.T) {
	reductions := []string{"f32", "bf16", "f64", "f16", "fp8_e4m3", "fp8_e5m2", "i8", "u8", "i32", "i64", "u64"}
	listed := map[string]bool{}
	for _, name := range entryPoints(t) {
		listed[name] = true
	}
	delete(listed, "rh_barrier_none_bytes") // has no choice
	delete(listed, "rh_group_pipe_bytes")   // sends and receives
	for op := wire.OpNone; op <= wire.OpEPCombineRecv; op++ {
		types := []string{"bytes"}
		if op == wire.OpAllReduce || op == wire.OpReduceScatter || op == wire.OpReduce {
			types = reductions
		}
		for _, a := range op.CUDAAlgorithms() {
			if a == wire.AlgoCopy {
				continue // copies between two barriers
			}
			for _, dtype := range types {
				name := "rh_" + op.String() + "_" + a.String() + "_" + dtype
				if !listed[name] {
					t.Errorf("there is no kernel %s", name)
				}
				delete(listed, name)
			}
		}
	}
	for name := range listed {
		if !regexp.MustCompile(`_[248]$`).MatchString(name) {
			t.Errorf("the table does not have %s", name)
		}
	}
}

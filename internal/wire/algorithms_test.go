package wire

import (
	"fmt"
	"go/format"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const algorithmsFile = "algorithms.txt"

// algorithmLine is a line of algorithms.txt, unparsed but for the number.
type algorithmLine struct {
	number    int
	name      string
	windows   bool
	adds      string   // an AdditionOrder's constant
	cpu, cuda []string // by the names of Op
	constant  string
	macro     string
}

func readAlgorithms(t *testing.T) []algorithmLine {
	t.Helper()
	text, err := os.ReadFile(algorithmsFile)
	if err != nil {
		t.Fatal(err)
	}
	orders := map[string]string{"rank_order": "RankOrder", "chain": "ChainOrder", "own_order": "OwnOrder"}
	var lines []algorithmLine
	for i, l := range strings.Split(string(text), "\n") {
		f := strings.Fields(l)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 6 {
			t.Fatalf("%s:%d: %d columns, expected 6", algorithmsFile, i+1, len(f))
		}
		n, err := strconv.Atoi(f[0])
		if err != nil || n != len(lines)+1 {
			t.Fatalf("%s:%d: number %q, expected %d: numbers are consecutive and never reused", algorithmsFile, i+1, f[0], len(lines)+1)
		}
		if orders[f[3]] == "" || f[2] != "any" && f[2] != "windows" {
			t.Fatalf("%s:%d: buffers %q, adds %q", algorithmsFile, i+1, f[2], f[3])
		}
		a := algorithmLine{number: n, name: f[1], windows: f[2] == "windows", adds: orders[f[3]]}
		a.constant, a.macro = "Algo"+camel(f[1]), "RHW_ALGO_"+strings.ToUpper(f[1])
		a.cpu, a.cuda = operationsIn(t, f[4]), operationsIn(t, f[5])
		lines = append(lines, a)
	}
	return lines
}

// operationsIn reads a column of operations.
func operationsIn(t *testing.T, column string) []string {
	t.Helper()
	if column == "-" {
		return nil
	}
	names := strings.Split(column, ",")
	for _, n := range names {
		if !slices.Contains(opNames[:], n) {
			t.Fatalf("%s: operation %q", algorithmsFile, n)
		}
	}
	return names
}

// goOps writes a list of operations with the constants of control.go.
func goOps(names []string) string {
	var list []string
	for _, n := range names {
		list = append(list, "Op"+camel(n))
	}
	return "[]Op{" + strings.Join(list, ", ") + "}"
}

func algorithmsInGo(t *testing.T, lines []algorithmLine) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("// Code generated from algorithms.txt by `go generate ./internal/wire`. DO NOT EDIT.\n\npackage wire\n\n// Algorithms.\nconst (\nAlgoAuto Algo = 0\n")
	for _, a := range lines {
		fmt.Fprintf(&b, "%s Algo = %d\n", a.constant, a.number)
	}
	b.WriteString(")\n\nvar algorithms = [...]algorithm{\nAlgoAuto: {name: \"auto\"},\n")
	for _, a := range lines {
		fmt.Fprintf(&b, "%s: {name: %q, windows: %t, adds: %s, cpu: %s, cuda: %s},\n", a.constant, a.name, a.windows, a.adds, goOps(a.cpu), goOps(a.cuda))
	}
	b.WriteString("}\n")
	text, err := format.Source([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cOps writes a set of operations as a C mask: bit n = rhw_op n.
func cOps(names []string) string {
	var bits []string
	for _, n := range names {
		bits = append(bits, "1ull << RHW_OP_"+strings.ToUpper(n))
	}
	if len(bits) == 0 {
		return "0"
	}
	return strings.Join(bits, " | ")
}

func algorithmsInC(lines []algorithmLine) string {
	var b strings.Builder
	b.WriteString(`// Made from algorithms.txt by ` + "`go generate ./internal/wire`" + `. Do not edit. segment.h includes it.
#ifndef RAILHEAD_WIRE_ALGORITHMS_H_
#define RAILHEAD_WIRE_ALGORITHMS_H_

enum rhw_algo {
  RHW_ALGO_AUTO = 0,
`)
	for _, a := range lines {
		fmt.Fprintf(&b, "  %s = %d,\n", a.macro, a.number)
	}
	fmt.Fprintf(&b, "  RHW_ALGOS = %d,\n};\n", len(lines)+1)
	b.WriteString(`
struct rhw_algorithm {
  const char* name;
  uint32_t windows;     // 1 = all ranks' buffers must lie in windows: nothing is copied
  uint64_t operations;  // on a CPU: bit n = rhw_op n
  uint64_t cuda;        // on a CUDA device
};

// By rhw_algo.
static const struct rhw_algorithm rhw_algorithms[RHW_ALGOS] = {
    {"none", 0, 0, 0},
`)
	for _, a := range lines {
		windows := 0
		if a.windows {
			windows = 1
		}
		fmt.Fprintf(&b, "    {%q, %d,\n     %s,\n     %s},\n", a.name, windows, cOps(a.cpu), cOps(a.cuda))
	}
	b.WriteString("};\n\n#endif  // RAILHEAD_WIRE_ALGORITHMS_H_\n")
	return b.String()
}

// Generated files of the CPU target.
const (
	kernelNumbersFile = "../../kernels/host/algorithms.h"
	kernelTableFile   = "../../kernels/host/kernel_table.h"
)

// hasKernel says whether an operation is in the table of kernels. Sends and receives are not: they run several at a time.
func hasKernel(operation string) bool {
	return operation != OpSend.String() && operation != OpRecv.String()
}

// camel writes all_reduce as AllReduce.
func camel(name string) string {
	var b strings.Builder
	for _, word := range strings.Split(name, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// kernelNumbers writes the numbers by which the table of kernels is indexed, for C++ that does not include wire.h.
func kernelNumbers(lines []algorithmLine) string {
	var algorithms, operations strings.Builder
	end := 0
	for _, a := range lines {
		if len(a.cpu) > 0 {
			fmt.Fprintf(&algorithms, "  k%s = %d,\n", camel(a.name), a.number)
			end = a.number + 1
		}
	}
	last := OpNone
	for op := OpNone; int(op) < len(opNames); op++ {
		if slices.ContainsFunc(lines, func(a algorithmLine) bool { return hasKernel(op.String()) && slices.Contains(a.cpu, op.String()) }) {
			fmt.Fprintf(&operations, "  k%s = %d,\n", camel(op.String()), op)
			last = op
		}
	}
	return fmt.Sprintf(`// Made from internal/wire/algorithms.txt by `+"`go generate ./internal/wire`"+`. Do not edit.
#ifndef RAILHEAD_KERNELS_HOST_ALGORITHMS_H_
#define RAILHEAD_KERNELS_HOST_ALGORITHMS_H_

#include <stdint.h>

namespace railhead::host {

// Algorithms that run on a CPU, by the numbers of segment.h's rhw_algo.
enum Algorithm : uint32_t {
%s  kAlgorithms = %d,
};

// Operations that have algorithms, by the numbers of segment.h's rhw_op.
enum Collective : uint32_t {
%s  kCollectives = %d,
};

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_ALGORITHMS_H_
`, algorithms.String(), end, operations.String(), last+1)
}

// kernelTable writes the function that makes the table of kernels.
func kernelTable(lines []algorithmLine) string {
	var includes, kernels strings.Builder
	for _, a := range lines {
		if slices.ContainsFunc(a.cpu, hasKernel) {
			fmt.Fprintf(&includes, "#include \"host/%s.h\"\n", a.name)
		}
		for _, name := range a.cpu {
			if !hasKernel(name) {
				continue
			}
			function := camel(name)
			fmt.Fprintf(&kernels, "  k.of[k%s][k%s] = %s::%s;\n", camel(a.name), function, a.name, strings.ToLower(function[:1])+function[1:])
		}
	}
	return fmt.Sprintf(`// Made from internal/wire/algorithms.txt by `+"`go generate ./internal/wire`"+`. Do not edit. kernels.cc includes it.
#ifndef RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_
#define RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_

#include "host/kernels.h"
%s
namespace railhead::host {

constexpr Kernels makeKernels() {
  Kernels k{};
%s  return k;
}

}  // namespace railhead::host

#endif  // RAILHEAD_KERNELS_HOST_KERNEL_TABLE_H_
`, includes.String(), kernels.String())
}

func TestGeneratedAlgorithmsMatchTheTable(t *testing.T) {
	lines := readAlgorithms(t)
	for file, want := range map[string]string{
		"algorithms.go": algorithmsInGo(t, lines), "algorithms.h": algorithmsInC(lines),
		kernelNumbersFile: kernelNumbers(lines), kernelTableFile: kernelTable(lines),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(file)
		if err != nil || string(have) != want {
			t.Errorf("%s does not match %s (%v): run `go generate ./internal/wire`", file, algorithmsFile, err)
		}
	}
}

func TestAlgorithmsHaveTheNamesAndOperationsOfTheTable(t *testing.T) {
	for _, line := range readAlgorithms(t) {
		a, err := ParseAlgo(line.name)
		if err != nil || a != Algo(line.number) || a.String() != line.name || a.Windows() != line.windows {
			t.Errorf("%s: parsed as %d (%v), with name %s, windows: %v", line.name, a, err, a, a.Windows())
		}
		for op := OpNone; op <= OpEPCombineRecv; op++ {
			for device, lists := range map[string]struct {
				got  []Algo
				want []string
			}{"CPU": {op.Algorithms(), line.cpu}, "CUDA": {op.CUDAAlgorithms(), line.cuda}} {
				if got, want := slices.Contains(lists.got, a), slices.Contains(lists.want, op.String()); got != want {
					t.Errorf("%s has %s on %s: %v, the table says %v", op, line.name, device, got, want)
				}
			}
		}
	}
	for _, unknown := range []string{"", "none", "Ring", "ring "} {
		if a, err := ParseAlgo(unknown); err == nil || !strings.Contains(err.Error(), "oneshot") {
			t.Errorf("%q is %s, %v", unknown, a, err)
		}
	}
}

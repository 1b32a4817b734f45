package tests

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"railhead/client"
	"railhead/internal/oracle"
)

const goldenWorld = 4

// golden is a line of testdata/allreduce_golden.txt.
type golden struct {
	line        int
	dtype       oracle.Dtype
	reduceGroup int
	values      [goldenWorld]uint32
	sum         uint32
}

func readGolden(t *testing.T) []golden {
	f, err := os.Open("testdata/allreduce_golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var all []golden
	scanner := bufio.NewScanner(f)
	for line := 1; scanner.Scan(); line++ {
		text := strings.TrimSpace(scanner.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		g, err := parseGolden(text)
		if err != nil {
			t.Fatalf("line %d: %v: %s", line, err, text)
		}
		g.line = line
		all = append(all, g)
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func parseGolden(text string) (g golden, err error) {
	fields := strings.Fields(text)
	if len(fields) != 2+goldenWorld+2 || fields[2+goldenWorld] != "|" {
		return g, fmt.Errorf("expected: dtype reduce_group %d values | sum", goldenWorld)
	}
	g.dtype = oracle.Dtype(fields[0])
	if g.reduceGroup, err = strconv.Atoi(fields[1]); err != nil {
		return g, err
	}
	for i, field := range append(fields[2:2+goldenWorld:2+goldenWorld], fields[3+goldenWorld]) {
		bits, err := strconv.ParseUint(field, 16, 8*g.dtype.Size())
		if err != nil {
			return g, err
		}
		if i < goldenWorld {
			g.values[i] = uint32(bits)
		} else {
			g.sum = uint32(bits)
		}
	}
	return g, nil
}

// packBits encodes bit patterns as elements of d; unpackBits decodes them.
func packBits(values []uint32, d oracle.Dtype) []byte {
	var out []byte
	for _, v := range values {
		if d == oracle.BF16 {
			out = binary.LittleEndian.AppendUint16(out, uint16(v))
		} else {
			out = binary.LittleEndian.AppendUint32(out, v)
		}
	}
	return out
}

func unpackBits(b []byte, d oracle.Dtype) []uint32 {
	out := make([]uint32, len(b)/d.Size())
	for i := range out {
		if d == oracle.BF16 {
			out[i] = uint32(binary.LittleEndian.Uint16(b[2*i:]))
		} else {
			out[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
	}
	return out
}

// sumBits all-reduces values[rank], checks that all ranks have the same bits, and returns them.
func sumBits(t *testing.T, ranks []member, d oracle.Dtype, values [][]uint32) []uint32 {
	t.Helper()
	results := make([][]byte, len(ranks))
	all(t, ranks, func(m member) error {
		send := packBits(values[m.Rank()], d)
		results[m.Rank()] = bytes.Repeat([]byte{poison}, len(send))
		return m.AllReduce(send, results[m.Rank()], len(values[m.Rank()]), clientDtypes[d], client.Sum)
	})
	for r := range results {
		if !bytes.Equal(results[r], results[0]) {
			t.Fatalf("ranks 0 and %d have different bits", r)
		}
	}
	return unpackBits(results[0], d)
}

func TestSumsEqualTheHandComputedOnes(t *testing.T) {
	s := startDaemon(t)
	byGroup := map[int][]golden{}
	for _, g := range readGolden(t) {
		byGroup[g.reduceGroup] = append(byGroup[g.reduceGroup], g)
	}
	if len(byGroup) < 4 {
		t.Fatalf("the file has lines for only %d reduce groups", len(byGroup))
	}
	for _, algo := range copyingAlgorithms() {
		t.Setenv("RAILHEAD_ALGO", algo)
		for reduceGroup, lines := range byGroup {
			ranks := formGroup(t, s, client.CommConfig{
				Group: fmt.Sprintf("golden %s %d", algo, reduceGroup), World: goldenWorld, ReduceGroup: reduceGroup,
			})
			for _, g := range lines {
				g.check(t, ranks)
			}
		}
	}
}

func (g golden) check(t *testing.T, ranks []member) {
	t.Helper()
	values := make([][]uint32, goldenWorld)
	for r := range values {
		// Four tiles and one element, so that whole tiles and the remainder are both tested.
		for range 4*tileElements + 1 {
			values[r] = append(values[r], g.values[r])
		}
	}
	for i, got := range sumBits(t, ranks, g.dtype, values) {
		if got != g.sum {
			t.Errorf("line %d, element %d: %x, want %x", g.line, i, got, g.sum)
		}
	}
}

package ncclstyle

import (
	"math"
	"testing"
)

func TestBusFactorsAreThoseOfNcclTests(t *testing.T) {
	for _, c := range []struct {
		op   Operation
		n    int
		want float64
	}{
		{"all_reduce", 2, 1}, {"all_reduce", 4, 1.5}, {"all_reduce", 8, 1.75}, {"all_reduce", 1, 0}, {"all_reduce", 64, 1.96875},
		{"all_gather", 4, 0.75}, {"all_gather", 2, 0.5}, {"reduce_scatter", 8, 0.875}, {"reduce_scatter", 1, 0},
		{"all_to_all", 4, 0.75}, {"gather", 4, 0.75}, {"scatter", 8, 0.875}, {"broadcast", 7, 1}, {"reduce", 3, 1},
		{"sendrecv", 5, 1}, {"barrier", 4, 0},
	} {
		if got := c.op.BusFactor(c.n); got != c.want {
			t.Errorf("%s of %d ranks: %v, want %v", c.op, c.n, got, c.want)
		}
	}
	for _, c := range []struct {
		op Operation
		n  int
	}{{"all_reduc", 4}, {"", 4}, {"all_reduce", 0}, {"broadcast", -1}} {
		if got := c.op.BusFactor(c.n); !math.IsNaN(got) {
			t.Errorf("%q of %d ranks: %v, want NaN", c.op, c.n, got)
		}
	}
}

func TestSizesAndCountsAreThoseOfNcclTests(t *testing.T) {
	for _, c := range []struct {
		op          Operation
		asked       uint64
		dtype       Dtype
		ranks       int
		count, size uint64
	}{
		{AllReduce, 1024, Float, 3, 256, 1024}, {AllReduce, 1023, Float, 3, 255, 1020}, {AllReduce, 7, Double, 2, 0, 0},
		{Broadcast, 9, Int8, 5, 9, 9}, {Reduce, 9, Half, 5, 4, 8}, {Sendrecv, 30, Int64, 2, 3, 24},
		// 1000/3 elements, rounded down to whole 16 bytes: 332 floats.
		{AllGather, 4000, Float, 3, 332, 3984}, {ReduceScatter, 4000, Float, 3, 332, 3984}, {AllToAll, 4000, Float, 3, 332, 3984},
		{Gather, 4000, Float, 3, 332, 3984}, {Scatter, 4000, Float, 3, 332, 3984},
		{AllGather, 64, Int8, 4, 16, 64}, {AllGather, 63, Int8, 4, 0, 0}, {AllToAll, 100, Double, 3, 4, 96},
		{AllGather, 4001, Int8, 1, 4000, 4000}, {Barrier, 4000, Float, 4, 0, 0},
	} {
		count := c.op.Count(c.asked, c.dtype, c.ranks)
		if size := c.op.Bytes(count, c.dtype, c.ranks); count != c.count || size != c.size {
			t.Errorf("%s of %d bytes, %s, %d ranks: count %d, size %d; want %d, %d", c.op, c.asked, c.dtype, c.ranks, count, size, c.count, c.size)
		}
	}
}

func TestCommandsAreTheNamesWithoutUnderscores(t *testing.T) {
	if got := ReduceScatter.Command() + " " + AllToAll.Command() + " " + Sendrecv.Command(); got != "reducescatter alltoall sendrecv" {
		t.Errorf("got %q", got)
	}
}

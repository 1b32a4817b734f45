package measure

import (
	"testing"

	"railhead/internal/ncclstyle"
)

func TestIterationsOfARowAreBoundedByTheirVolume(t *testing.T) {
	for _, c := range []struct {
		volume, bytes uint64
		warmup, timed int
	}{
		{0, 1 << 40, 20, 200}, {1 << 26, 0, 20, 200}, {1 << 26, 1 << 10, 20, 200}, {1 << 26, 1 << 20, 20, 64}, {1 << 26, 1 << 24, 4, 4},
		{1 << 26, 1 << 30, 1, 1},
	} {
		j := Job{Iters: 200, Warmup: 20, Volume: c.volume}
		if warmup, timed := j.iterations(c.bytes); warmup != c.warmup || timed != c.timed {
			t.Errorf("%+v: %d, %d", c, warmup, timed)
		}
	}
}

func TestTheWorkOfAJobIsThatOfItsRows(t *testing.T) {
	j := Job{Op: ncclstyle.AllReduce, Dtypes: []ncclstyle.Dtype{"float"}, Redops: []ncclstyle.Redop{"sum", "max"}, Roots: []int{NoRoot},
		Sizes: []uint64{8, 1 << 20}}
	if got, want := j.Work(2), 2*(RowWork(8)+RowWork(1<<20)); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

package gpus

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"

	"railhead/engine/topo"
)

// on are the members of ranks on these GPUs of a machine.
func on(t *testing.T, m *Machine, devs ...int) (ranks []Member) {
	t.Helper()
	for _, d := range devs {
		uuid := m.Node(m.OfKind(topo.GPU)[d]).GPU.UUID
		ranks = append(ranks, Member{UUID: uuid, SM: 90, Multiprocessors: 132})
	}
	return ranks
}

func driver(version string) func() (string, nvml.Return) {
	return func() (string, nvml.Return) { return version, nvml.SUCCESS }
}

func h200s(t *testing.T, change func(*mock)) *Machine {
	t.Helper()
	mock := newMock(dgxh200.New()).onSwitches(18, "00000000:C0:00.0")
	mock.SystemGetDriverVersionFunc = driver("580.159.04")
	if change != nil {
		change(mock)
	}
	m := machineOf(t, sys(8), mock)
	return &m
}

func TestAGroupsModelNamesGPUsLinksAndTheDriversBranch(t *testing.T) {
	m := h200s(t, nil)
	name := fileName(m.Node("gpu0").GPU.Name)
	for _, c := range []struct {
		devs []int
		want Group
	}{
		{[]int{0, 0}, Group{"1x-" + name + "-132sm-shared-r580", 1, 66}},
		{[]int{3, 3, 3, 3, 3, 3, 3, 3}, Group{"1x-" + name + "-132sm-shared-r580", 1, 16}},
		{[]int{0, 7}, Group{"2x-" + name + "-132sm-nvl450-r580", 2, 132}},
		{[]int{0, 0, 1, 1}, Group{"2x-" + name + "-132sm-nvl450-r580", 2, 66}},
		{[]int{0, 0, 1}, Group{"", 2, 66}}, // not as many ranks on each
	} {
		if got := GroupOf(m, on(t, m, c.devs...)); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.devs, got, c.want)
		}
	}
	if !strings.Contains(name, "h200") {
		t.Errorf("the name of the GPU is %q", name)
	}
	unlike := on(t, m, 0, 1)
	unlike[1].Multiprocessors = 100
	if got := GroupOf(m, unlike); got != (Group{"", 2, 100}) {
		t.Errorf("unlike GPUs: %+v", got)
	}
}

func TestWhatADriverOrALinkChangesIsAnotherModel(t *testing.T) {
	m := h200s(t, nil)
	two := []int{0, 1}
	was := GroupOf(m, on(t, m, two...)).Model
	for what, change := range map[string]func(*mock){
		"another branch of the driver": func(m *mock) { m.SystemGetDriverVersionFunc = driver("590.1") },
		"fewer links":                  func(m *mock) { m.links[1] = m.links[1][:9] },
		"no links":                     func(m *mock) { m.links = map[int][]link{} },
	} {
		other := h200s(t, change)
		if got := GroupOf(other, on(t, other, two...)).Model; got == was || got == "" {
			t.Errorf("%s: %s", what, got)
		}
	}
	later := h200s(t, func(m *mock) { m.SystemGetDriverVersionFunc = driver("580.999.01") })
	if got := GroupOf(later, on(t, later, two...)).Model; got != was {
		t.Errorf("a later release of the branch: %s, was %s", got, was)
	}
	pcie := newMock(dgxa100.New())
	pcie.SystemGetDriverVersionFunc = driver("580.1")
	a := machineOf(t, sys(8), pcie)
	near, far := GroupOf(&a, on(t, &a, 0, 1)).Model, GroupOf(&a, on(t, &a, 0, 6)).Model
	if !strings.Contains(near, "-pix") || !strings.Contains(far, "-sys") {
		t.Errorf("without NVLinks: %s, %s", near, far)
	}
}

// Without NVML a model holds on machines of one topology only.
func TestUnknownGPUsBelongToTheirMachine(t *testing.T) {
	m := h200s(t, nil)
	for _, ranks := range [][]Member{{{"GPU-a", 90, 132}, {"GPU-a", 90, 132}}, {{"GPU-a", 90, 132}, {"GPU-b", 90, 132}}} {
		got := GroupOf(m, ranks)
		if !strings.HasSuffix(got.Model, "-on-"+m.Fingerprint()) || !strings.Contains(got.Model, "x-sm90-132sm-") {
			t.Errorf("%v: %+v", ranks, got)
		}
		if none := GroupOf(nil, ranks); none.Model != "" || none.Blocks != got.Blocks {
			t.Errorf("no machine: %+v", none)
		}
	}
}

func TestRanksOfAGPUShareItsMultiprocessors(t *testing.T) {
	gpu := func(id string, multiprocessors int) Member { return Member{UUID: id, Multiprocessors: multiprocessors} }
	for what, c := range map[string]struct {
		gpus []Member
		want int
	}{
		"a GPU each":               {[]Member{gpu("1", 132), gpu("2", 132)}, 132},
		"different GPUs":           {[]Member{gpu("1", 132), gpu("2", 108)}, 108},
		"four ranks a GPU":         {[]Member{gpu("1", 132), gpu("2", 132), gpu("1", 132), gpu("2", 132), gpu("1", 132), gpu("2", 132), gpu("1", 132), gpu("2", 132)}, 33},
		"three ranks on one":       {[]Member{gpu("1", 132), gpu("2", 132), gpu("1", 132), gpu("1", 132)}, 44},
		"more ranks than it holds": {[]Member{gpu("1", 2), gpu("1", 2), gpu("1", 2)}, 1},
	} {
		if got := GroupOf(nil, c.gpus); got.Blocks != c.want {
			t.Errorf("%s: %d blocks, want %d", what, got.Blocks, c.want)
		}
	}
}

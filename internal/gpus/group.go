package gpus

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"railhead/engine/topo"
)

// Member is the GPU of one rank, as CUDA describes it.
type Member struct {
	UUID            string // as nvidia-smi prints it
	SM              int    // compute capability, 90 for 9.0
	Multiprocessors int
}

// Group is what the choice of algorithms for ranks on GPUs depends on, besides their number.
type Group struct {
	// Model names the kind of GPUs and of the links between them: what was measured on a group holds for groups of the same model and number of
	// ranks. "1x-nvidia-h200-132sm-shared-r580". "" if nothing measured can hold: GPUs differ, or have different numbers of ranks.
	Model string
	GPUs  int
	// Blocks is how many thread blocks of a kernel every GPU can run at once for each of its ranks. Ranks of a GPU share its multiprocessors, and
	// blocks that wait for those of another rank must not keep them from running.
	Blocks int
}

// modelBytes is the longest name of a GPU in a model.
const modelBytes = 40

// GroupOf describes the group of these ranks. m may be nil: the machine is unknown.
func GroupOf(m *Machine, ranks []Member) Group {
	sharing := map[string]int{}
	var devices []Member
	for _, r := range ranks {
		if sharing[r.UUID]++; sharing[r.UUID] == 1 {
			devices = append(devices, r)
		}
	}
	g := Group{GPUs: len(devices), Blocks: math.MaxInt}
	alike := m != nil && len(devices) > 0
	for _, d := range devices {
		g.Blocks = min(g.Blocks, d.Multiprocessors/sharing[d.UUID])
		alike = alike && d.SM == devices[0].SM && d.Multiprocessors == devices[0].Multiprocessors && sharing[d.UUID] == sharing[devices[0].UUID]
	}
	g.Blocks = max(g.Blocks, 1)
	if alike {
		g.Model = m.model(devices)
	}
	return g
}

// model names different GPUs, "" if their models differ. NVML may be missing, or not show them: then the model of the whole machine takes the place
// of what is unknown.
func (m *Machine) model(devices []Member) string {
	kind, first := fmt.Sprintf("sm%d", devices[0].SM), ""
	var nodes []string
	for i, d := range devices {
		id, name := m.gpu(d.UUID)
		if i == 0 {
			first = name
		}
		if name != first {
			return ""
		}
		nodes = append(nodes, id)
	}
	known := first != ""
	if known {
		kind = fileName(first)
	}
	head := fmt.Sprintf("%dx-%s-%dsm-", len(devices), kind, devices[0].Multiprocessors)
	if len(devices) == 1 {
		head += "shared"
	} else if link := m.link(nodes); known && link != "" {
		head += link
	} else {
		known = false
		head += "linked"
	}
	// A new branch of the driver may change times; its later releases do not.
	branch, _, _ := strings.Cut(m.Driver, ".")
	if !known || branch == "" {
		return head + "-on-" + m.Fingerprint()
	}
	return head + "-r" + fileName(branch)
}

// gpu finds a GPU by its UUID: its node, and the name of its model. "" if NVML has not shown it.
func (m *Machine) gpu(uuid string) (id, name string) {
	for _, id := range m.OfKind(topo.GPU) {
		if g := m.Node(id).GPU; g != nil && uuid != "" && g.UUID == uuid {
			return id, g.Name
		}
	}
	return "", ""
}

// link names the worst path between any two of the GPUs: "nvl450". "" if it is unknown.
func (m *Machine) link(nodes []string) string {
	paths, err := m.Paths(nodes)
	if err != nil {
		return ""
	}
	worst := topo.Path{Type: topo.LOC, GBps: math.MaxFloat64}
	for a := range nodes {
		for b := range a {
			if p := paths.Rows[a][b]; cmp.Or(cmp.Compare(p.Type, worst.Type), cmp.Compare(worst.GBps, p.GBps)) > 0 {
				worst = p
			}
		}
	}
	return fileName(fmt.Sprintf("%s%.0f", worst.Type, worst.GBps))
}

// fileName makes a text a part of a file's name: small letters, digits and single dashes.
func fileName(text string) string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !('a' <= r && r <= 'z' || '0' <= r && r <= '9') })
	name := strings.Join(words, "-")
	return strings.Trim(name[:min(len(name), modelBytes)], "-")
}

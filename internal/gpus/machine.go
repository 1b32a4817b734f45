package gpus

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"railhead/engine/topo"
)

// Machine is the topology of this machine with its GPUs.
type Machine struct {
	*topo.Graph
	NoGPUs string // why there are no GPUs; "" if there are some
	Driver string // its version; "" is unknown
}

// ReadMachine reads the topology of this machine from /sys and NVML. Its error is that of topo.ReadMachine; NVML being absent is none. All parts
// of the program read the machine this way: the fingerprint of the topology names tuning tables.
func ReadMachine() (Machine, error) {
	return read(os.DirFS("/"), reader{lib: nvml.New(), fabric: fabricOf})
}

func read(root fs.FS, r reader) (Machine, error) {
	g, err := topo.ReadMachine(root)
	if err != nil {
		return Machine{}, err
	}
	m := Machine{Graph: g}
	report, err := r.read()
	m.Driver = report.Driver
	if err == nil {
		err = g.AddDriver(report.GPUs, report.Access)
	}
	onBus := len(g.OfKind(topo.GPU))
	switch {
	case err != nil && onBus > 0:
		g.Warn(fmt.Sprintf("NVLinks, compute capability and UUIDs of %d GPUs are unknown: %v", onBus, err))
	case err != nil:
		m.NoGPUs = err.Error()
	case onBus == 0:
		m.NoGPUs = "the driver shows none to this process"
	}
	for _, w := range report.Warnings {
		g.Warn(w)
	}
	return m, nil
}

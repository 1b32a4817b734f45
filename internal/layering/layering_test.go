package layering

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport lists, for each package of the module, the packages of the module that it may import. A package that is not
// here fails the test: decide where it belongs, here and in docs/architecture.md.
var mayImport = map[string][]string{
	"railhead/internal/deep":            {},
	"railhead/internal/layering":        {},
	"railhead/internal/rank":            {},
	"railhead/internal/wire":            {"railhead/internal/rank"},
	"railhead/internal/launch":          {},
	"railhead/internal/await":           {},
	"railhead/internal/leaseholder":     {"railhead/internal/wire", "railhead/symm"},
	"railhead/internal/limits":          {},
	"railhead/internal/killrounds":      {},
	"railhead/internal/librarybuild":    {"railhead/internal/objectcache"},
	"railhead/internal/objectcache":     {},
	"railhead/internal/models":          {},
	"railhead/internal/ncclstyle":       {},
	"railhead/internal/nodelink":        {"railhead/internal/nodetls"},
	"railhead/internal/nodetls":         {},
	"railhead/internal/kvwire":          {},
	"railhead/internal/kvwire/kvclient": {"railhead/internal/kvwire"},
	"railhead/internal/proxycontrol":    {},
	"railhead/internal/oracle":          {},
	"railhead/internal/cuda":            {},
	"railhead/internal/gpus":            {"railhead/engine/topo"},
	"railhead/internal/mps":             {"railhead/internal/tempdir"},
	"railhead/alltoall":                 {"railhead/internal/oracle"},
	"railhead/kvxfer/grant":             {},
	"railhead/kvxfer/hostcopy":          {"railhead/kvxfer/paged"},
	"railhead/kvxfer/notify":            {},
	"railhead/kvxfer/paged":             {},
	"railhead/kvxfer/transfer":          {},
	"railhead/kvxfer/proxy": {
		"railhead/internal/kvwire", "railhead/internal/proxycontrol", "railhead/internal/wire", "railhead/kvxfer/grant", "railhead/kvxfer/hostcopy",
		"railhead/kvxfer/paged", "railhead/kvxfer/transfer",
	},
	"railhead/engine/topo":         {},
	"railhead/internal/sizeplot":   {},
	"railhead/internal/tempdir":    {},
	"railhead/internal/cxxprogram": {"railhead/internal/await", "railhead/internal/objectcache"},
	"railhead/kernels":             {},
	"railhead/kernels/gpuhost":     {"railhead/kernels"},
	"railhead/kernels/model":       {"railhead/kernels"},
	"railhead/kernels/model/tests": {},
	"railhead/symm":                {},
	"railhead/engine/tuner":        {},
	"railhead/client/include":      {},
	"railhead/client/base":         {"railhead/client/include", "railhead/internal/wire", "railhead/kernels"},
	"railhead/client/session":      {"railhead/client/base", "railhead/client/include", "railhead/internal/wire", "railhead/kernels"},
	"railhead/client/device":       {"railhead/client/base", "railhead/client/include", "railhead/internal/wire", "railhead/kernels"},
	"railhead/client/comm":         {"railhead/client/base", "railhead/client/device", "railhead/client/include", "railhead/client/session", "railhead/internal/wire", "railhead/kernels"},
	"railhead/client/memory": {
		"railhead/client/base", "railhead/client/comm", "railhead/client/device", "railhead/client/include", "railhead/client/session", "railhead/internal/wire", "railhead/kernels",
	},
	"railhead/client/collectives": {
		"railhead/client/base", "railhead/client/comm", "railhead/client/device", "railhead/client/include", "railhead/client/memory",
		"railhead/client/session", "railhead/internal/wire", "railhead/kernels",
	},
	"railhead/client/kv": {
		"railhead/client/base", "railhead/client/include", "railhead/client/memory", "railhead/client/session", "railhead/internal/kvwire",
		"railhead/internal/wire", "railhead/kernels",
	},
	"railhead/client/tests/kv": {},
	"railhead/client/ep": {
		"railhead/client/base", "railhead/client/comm", "railhead/client/device", "railhead/client/include", "railhead/client/memory",
		"railhead/client/session", "railhead/internal/wire", "railhead/kernels",
	},
	"railhead/client/device/cpu": {
		"railhead/client/base", "railhead/client/comm", "railhead/client/device", "railhead/client/include", "railhead/client/session",
		"railhead/internal/wire", "railhead/kernels",
	},
	"railhead/client/device/cuda": {
		"railhead/client/base", "railhead/client/comm", "railhead/client/device", "railhead/client/device/cpu", "railhead/client/ep", "railhead/client/include",
		"railhead/client/memory", "railhead/client/session", "railhead/internal/wire", "railhead/kernels",
	},
	"railhead/client/device/cuda/fake":   {"railhead/internal/librarybuild"},
	"railhead/client/device/cuda/fake/c": {"railhead/client/device/cuda"},
	"railhead/client/device/threads": {
		"railhead/client", "railhead/client/base", "railhead/client/comm", "railhead/client/device", "railhead/client/device/cpu",
		"railhead/client/ep", "railhead/client/include", "railhead/client/session", "railhead/internal/wire", "railhead/kernels",
	},
	"railhead/client": {
		"railhead/client/base", "railhead/client/collectives", "railhead/client/comm", "railhead/client/device", "railhead/client/device/cpu", "railhead/client/device/cuda",
		"railhead/client/ep", "railhead/client/include", "railhead/client/kv", "railhead/client/memory", "railhead/client/session", "railhead/internal/wire",
		"railhead/kernels",
	},
	"railhead/client/tests/gpu":        {"railhead/client"},
	"railhead/client/tests":            {"railhead/client/base", "railhead/client/include", "railhead/client/session", "railhead/internal/wire", "railhead/kernels"},
	"railhead/client/tests/cuda":       {},
	"railhead/client/tests/cudadriver": {},
	"railhead/client/tests/harness":    {"railhead/client", "railhead/internal/await", "railhead/internal/wire", "railhead/server"},
	"railhead/client/tests/hostile":    {},
	"railhead/client/tests/programs":   {},
	"railhead/client/tests/races":      {},
	"railhead/client/abi":              {},
	"railhead/python":                  {},
	"railhead/client/examples":         {},
	"railhead/server/flight":           {"railhead/internal/rank", "railhead/internal/wire"},
	"railhead/server/membership":       {"railhead/internal/rank", "railhead/internal/wire", "railhead/server/flight", "railhead/symm"},
	"railhead/engine/plan":             {"railhead/engine/tuner", "railhead/internal/rank", "railhead/internal/wire"},
	"railhead/server/lease":            {"railhead/internal/wire"},
	"railhead/server/registry":         {"railhead/internal/nodetls"},
	"railhead/server/registry/etcd":    {"railhead/internal/nodetls", "railhead/server/registry"},
	"railhead/server/session":          {"railhead/internal/wire", "railhead/server/lease", "railhead/symm"},
	"railhead/server/group": {
		"railhead/engine/plan", "railhead/engine/topo", "railhead/engine/tuner", "railhead/internal/gpus", "railhead/internal/rank", "railhead/internal/wire",
		"railhead/symm",
		"railhead/server/flight", "railhead/server/lease", "railhead/server/membership", "railhead/server/session",
	},
	"railhead/server/metrics": {"railhead/internal/wire", "railhead/server/flight", "railhead/server/group", "railhead/server/membership"},
	"railhead/server/proxy":   {"railhead/internal/proxycontrol"},
	"railhead/server/kv":      {"railhead/internal/proxycontrol", "railhead/internal/wire", "railhead/server/proxy", "railhead/server/session"},
	"railhead/server/admin":   {"railhead/internal/wire", "railhead/server/flight", "railhead/server/group", "railhead/server/membership"},
	"railhead/server": {
		"railhead/internal/proxycontrol", "railhead/internal/wire", "railhead/kvxfer/proxy", "railhead/server/admin", "railhead/server/group",
		"railhead/server/kv", "railhead/server/membership", "railhead/server/metrics", "railhead/server/proxy", "railhead/server/session",
	},
	"railhead/benchmarks/abioverhead": {"railhead/client", "railhead/client/device/cuda/fake", "railhead/internal/cuda", "railhead/internal/tempdir", "railhead/server"},
	"railhead/benchmarks/daemonload":  {"railhead/internal/tempdir", "railhead/internal/wire", "railhead/server"},
	"railhead/benchmarks/killnotice":  {"railhead/client", "railhead/internal/tempdir", "railhead/internal/wire", "railhead/server"},
	"railhead/internal/sidebyside":    {"railhead/internal/launch", "railhead/internal/librarybuild"},
	"railhead/benchmarks/moe": {
		"railhead/internal/launch", "railhead/internal/librarybuild", "railhead/internal/sidebyside", "railhead/internal/sizeplot",
		"railhead/internal/tempdir", "railhead/server",
	},
	"railhead/benchmarks/mpi": {
		"railhead/internal/launch", "railhead/internal/librarybuild", "railhead/internal/ncclstyle", "railhead/internal/sidebyside",
		"railhead/internal/sizeplot", "railhead/internal/tempdir", "railhead/server",
	},
	// A command family imports no other one: what two of them do is in cmd/railhead/internal.
	"railhead/cmd/railhead": {
		"railhead/cmd/railhead/bench", "railhead/cmd/railhead/bench/kv", "railhead/cmd/railhead/bench/moe", "railhead/cmd/railhead/certs", "railhead/cmd/railhead/demo", "railhead/cmd/railhead/internal/cli",
		"railhead/cmd/railhead/internal/measure", "railhead/cmd/railhead/internal/ranks", "railhead/cmd/railhead/predict", "railhead/cmd/railhead/proxy", "railhead/cmd/railhead/run",
		"railhead/cmd/railhead/serve", "railhead/cmd/railhead/status", "railhead/cmd/railhead/topo", "railhead/cmd/railhead/trace",
		"railhead/cmd/railhead/tune", "railhead/server",
	},
	"railhead/cmd/railhead/bench": {
		"railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/measure", "railhead/cmd/railhead/internal/private",
		"railhead/cmd/railhead/internal/ranks", "railhead/engine/plan", "railhead/engine/tuner", "railhead/internal/ncclstyle", "railhead/internal/sizeplot",
		"railhead/internal/wire",
	},
	"railhead/cmd/railhead/bench/kv": {
		"railhead/client", "railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/private", "railhead/cmd/railhead/internal/ranks",
		"railhead/internal/ncclstyle",
	},
	"railhead/cmd/railhead/bench/moe": {
		"railhead/alltoall", "railhead/client", "railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/experts",
		"railhead/cmd/railhead/internal/private", "railhead/cmd/railhead/internal/ranks", "railhead/internal/cuda", "railhead/internal/models", "railhead/internal/sizeplot",
	},
	"railhead/cmd/railhead/certs": {"railhead/cmd/railhead/internal/cli", "railhead/internal/nodetls"},
	"railhead/cmd/railhead/demo": {
		"railhead/alltoall", "railhead/client", "railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/experts",
		"railhead/cmd/railhead/internal/private", "railhead/cmd/railhead/internal/ranks", "railhead/internal/cuda", "railhead/internal/launch",
		"railhead/internal/models", "railhead/internal/ncclstyle", "railhead/internal/oracle",
	},
	"railhead/cmd/railhead/predict": {"railhead/cmd/railhead/internal/cli", "railhead/engine/tuner", "railhead/internal/models", "railhead/internal/ncclstyle"},
	"railhead/cmd/railhead/run": {
		"railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/private", "railhead/cmd/railhead/internal/ranks", "railhead/internal/gpus",
		"railhead/internal/launch", "railhead/internal/mps",
	},
	"railhead/cmd/railhead/proxy": {"railhead/cmd/railhead/internal/cli", "railhead/server"},
	"railhead/cmd/railhead/serve": {"railhead/cmd/railhead/internal/cli", "railhead/server"},
	"railhead/cmd/railhead/status": {
		"railhead/cmd/railhead/internal/admin", "railhead/cmd/railhead/internal/cli", "railhead/internal/wire", "railhead/server", "railhead/server/flight",
		"railhead/server/group", "railhead/server/membership",
	},
	"railhead/cmd/railhead/topo":  {"railhead/cmd/railhead/internal/cli", "railhead/engine/topo", "railhead/internal/gpus"},
	"railhead/cmd/railhead/trace": {"railhead/cmd/railhead/internal/admin", "railhead/cmd/railhead/internal/cli", "railhead/internal/wire", "railhead/server/flight"},
	"railhead/cmd/railhead/tune": {
		"railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/measure", "railhead/cmd/railhead/internal/private",
		"railhead/cmd/railhead/internal/ranks", "railhead/engine/plan", "railhead/engine/tuner", "railhead/internal/gpus", "railhead/internal/launch",
		"railhead/internal/ncclstyle", "railhead/internal/tempdir", "railhead/internal/wire", "railhead/server",
	},
	"railhead/cmd/railhead/internal/admin":    {"railhead/cmd/railhead/internal/cli", "railhead/internal/wire", "railhead/server"},
	"railhead/cmd/railhead/internal/cli":      {"railhead/internal/launch", "railhead/internal/ncclstyle", "railhead/internal/sizeplot", "railhead/server"},
	"railhead/cmd/railhead/internal/experts":  {"railhead/alltoall", "railhead/client", "railhead/internal/oracle"},
	"railhead/cmd/railhead/internal/tunetest": {"railhead/engine/plan", "railhead/engine/tuner", "railhead/internal/gpus"},
	"railhead/cmd/railhead/internal/measure": {
		"railhead/client", "railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/private", "railhead/cmd/railhead/internal/ranks", "railhead/internal/cuda",
		"railhead/internal/ncclstyle", "railhead/internal/oracle", "railhead/internal/wire",
	},
	"railhead/cmd/railhead/internal/private": {"railhead/internal/tempdir", "railhead/server"},
	"railhead/cmd/railhead/internal/ranks": {
		"railhead/client", "railhead/cmd/railhead/internal/cli", "railhead/cmd/railhead/internal/private", "railhead/engine/plan", "railhead/internal/launch",
		"railhead/internal/cuda", "railhead/internal/gpus", "railhead/internal/mps", "railhead/internal/ncclstyle", "railhead/internal/oracle",
		"railhead/internal/wire",
	},

	"railhead/client/examples/go/allgather": {"railhead/client"},
}

// modulePackage is what the tests look at in a package.
type modulePackage struct {
	ImportPath                    string
	Imports, CXXFiles, EmbedFiles []string
}

// modulePackages lists the packages of the module by their import paths.
func modulePackages(t *testing.T) map[string]modulePackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,CXXFiles,EmbedFiles", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := map[string]modulePackage{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p modulePackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}

func TestPackagesImportOnlyWhatTheArchitectureAllows(t *testing.T) {
	packages := modulePackages(t)
	for _, p := range packages {
		allowed, known := mayImport[p.ImportPath]
		if !known {
			t.Errorf("%s is not in the table: say what it may import", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			if strings.HasPrefix(i, "railhead/") && !slices.Contains(allowed, i) {
				t.Errorf("%s imports %s, which the architecture does not allow", p.ImportPath, i)
			}
		}
	}
	for p := range mayImport {
		if _, ok := packages[p]; !ok {
			t.Errorf("%s is in the table but not in the module", p)
		}
	}
}

// withoutIO are the packages that docs/architecture.md calls free of I/O: they decide, and others act.
var withoutIO = []string{"railhead/server/membership", "railhead/server/flight", "railhead/engine/plan", "railhead/alltoall"}

func TestPackagesWithoutIOImportNothingOfTheSystem(t *testing.T) {
	packages := modulePackages(t)
	for _, name := range withoutIO {
		for _, i := range packages[name].Imports {
			if first, _, _ := strings.Cut(i, "/"); slices.Contains([]string{"os", "net", "syscall", "log"}, first) || strings.HasPrefix(i, "golang.org/x/sys") {
				t.Errorf("%s imports %s, but it is free of I/O", name, i)
			}
		}
	}
}

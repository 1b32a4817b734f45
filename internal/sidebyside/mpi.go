package sidebyside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// MPI is an implementation of MPI, with its names in Debian.
type MPI struct {
	Name, Suffix, packages string
}

// MPIs are the supported implementations.
var MPIs = []MPI{
	{"OpenMPI", "openmpi", "openmpi-bin libopenmpi-dev"},
	{"MPICH", "mpich", "mpich libmpich-dev"},
}

// InstalledMPIs lists the installed implementations and writes a note about the others. It is an error if none is installed.
func InstalledMPIs(notes io.Writer) (installed []MPI, err error) {
	for _, m := range MPIs {
		// Debian has the compiler wrapper in one package and its header in another.
		noHeader := exec.Command(m.Compiler(), "-fsyntax-only", "-include", "mpi.h", "-xc", "/dev/null").Run()
		_, noStarter := exec.LookPath("mpirun." + m.Suffix)
		if noHeader != nil || noStarter != nil {
			fmt.Fprintf(notes, "%s is left out: it is not installed (apt-get install %s)\n", m.Name, m.packages)
			continue
		}
		installed = append(installed, m)
	}
	if len(installed) == 0 {
		return nil, errors.New("no MPI is installed, so there is nothing to compare with: apt-get install openmpi-bin libopenmpi-dev, or mpich libmpich-dev")
	}
	return installed, nil
}

// NeedMPI skips a test where no MPI is installed. With RAILHEAD_REQUIRE_MPI=1 the test fails instead.
func NeedMPI(t interface {
	Helper()
	Fatal(...any)
	Skip(...any)
}) {
	t.Helper()
	if _, err := InstalledMPIs(io.Discard); err == nil {
		return
	}
	if os.Getenv("RAILHEAD_REQUIRE_MPI") == "1" {
		t.Fatal("no MPI is installed, and RAILHEAD_REQUIRE_MPI=1")
	}
	t.Skip("no MPI is installed (apt-get install openmpi-bin libopenmpi-dev)")
}

// Compiler is the compiler wrapper for C.
func (m MPI) Compiler() string { return "mpicc." + m.Suffix }

// Side is the side that runs program, which was compiled with this MPI, on a machine with that number of CPUs.
func (m MPI) Side(ctx context.Context, ranks, cpus int, program string) (Side, error) {
	argv := starterCommand(m.Suffix, ranks, cpus, os.Getuid() == 0)
	version, err := firstVersion(ctx, argv[0])
	return Side{Name: m.Name, Version: version, Argv: append(argv, program), Starter: true}, err
}

// starterCommand is the mpirun command of an implementation, up to the program. mpirun must not bind ranks: they bind themselves
// (rank.h).
func starterCommand(suffix string, ranks, cpus int, asRoot bool) []string {
	argv := []string{"mpirun." + suffix, "-n", fmt.Sprint(ranks)}
	if suffix == "mpich" {
		return append(argv, "-bind-to", "none")
	}
	// Without "isolated" it needs ssh even where all ranks are on this machine.
	argv = append(argv, "--mca", "plm", "isolated", "--bind-to", "none", "--use-hwthread-cpus")
	if ranks > cpus {
		// Then ranks must yield the processor while they wait. OpenMPI detects that itself in most cases; this makes it certain.
		argv = append(argv, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
	}
	if asRoot {
		argv = append(argv, "--allow-run-as-root")
	}
	return argv
}

// firstVersion is the first dotted number in the output of program --version.
func firstVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	return versionIn(string(out)), nil
}

func versionIn(text string) string {
	for _, word := range strings.Fields(text) {
		if word[0] >= '0' && word[0] <= '9' && strings.Contains(word, ".") {
			return word
		}
	}
	return "unknown"
}

// RepositoryRoot is the root of the repository, whose sources the command compiles.
func RepositoryRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: go list: %w", err)
	}
	dir, ours := strings.CutPrefix(strings.TrimSpace(string(out)), "railhead ")
	if !ours {
		return "", fmt.Errorf("find the repository: the current directory is in module %s; run this inside the repository", out)
	}
	return dir, nil
}

package cudadriver

import "testing"

// Without sanitizers: they keep the signals of the program's single steps for themselves.
func TestKernelsThatADeathStopsSeeThatAtEachStoreOfTheHost(t *testing.T) {
	output(t, plainBuild.command(t, "stops.cc", nil))
}

package cudadriver

import "testing"

func TestACommIsIdleWhenTheContextOrItsOwnStreamsAre(t *testing.T) {
	onEach(t, func(t *testing.T, b *build) { output(t, b.command(t, "idle.cc", nil)) }, asanBuild, tsanBuild)
}

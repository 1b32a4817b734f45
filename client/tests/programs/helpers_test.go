package programs

import (
	"sync"

	"railhead/client/tests/harness"
	"railhead/internal/await"
)

const patience = await.Patience

var (
	startDaemon   = harness.StartDaemon
	eventually    = await.True
	nothingLeaks  = harness.NothingLeaks
	ranksThatCame = harness.RanksThatCame
)

// inParallel calls f(0)..f(n-1) at the same time and returns what each returned.
func inParallel(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

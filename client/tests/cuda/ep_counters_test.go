package cuda

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"railhead/client"
	"railhead/client/tests/harness"
	"railhead/server"
)

// waited is the time that rank r has waited for a peer, in the daemon's metrics.
func waited(t *testing.T, s *server.Server, r, peer int) time.Duration {
	t.Helper()
	reply, done := harness.AskDaemon(t, s, "/metrics")
	defer done()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.Contains(name, "ep_wait_seconds_total{") || !strings.Contains(name, fmt.Sprintf(`peer="%d"`, peer)) || !strings.HasSuffix(name, fmt.Sprintf(`rank="%d"`, r)) {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(seconds * float64(time.Second))
	}
	return 0
}

// All blocks and threads of a rank wait for a late one at the same time: it is counted once. The clock is looked at after 100 polls, which a busy machine takes
// long for, so rank 2 is later each time until most of it is counted.
func TestTheTimeThatARankWaitsForALateOneIsCounted(t *testing.T) {
	inBothModes(t, layerConfig, htConfig, func(t *testing.T, c client.EPConfig) {
		s := startDaemon(t)
		ranks := form(t, s, client.CommConfig{World: 3})
		layers := newLayers(t, ranks, c, 1)
		var before [2]time.Duration
		counted := false
		for lateness, n := 20*time.Millisecond, 1; !counted && lateness < 5*time.Second; lateness, n = 3*lateness, n+1 {
			began := time.Now()
			each(t, ranks[:2], func(r rank) error { return layers[r.Rank()][0].Both(false) })
			time.Sleep(lateness)
			each(t, ranks[2:], func(r rank) error { return layers[r.Rank()][0].Both(false) })
			each(t, ranks, func(r rank) error {
				l := layers[r.Rank()][0]
				if err := errors.Join(r.wait(), l.Check(n)); err != nil {
					return err
				}
				_, _, err := l.EP.Load() // the metrics are as of this call
				return err
			})
			took := time.Since(began)
			counted = true
			for r := range before {
				now := waited(t, s, r, 2)
				if now-before[r] > took {
					t.Errorf("rank %d has waited %v for rank 2 in %v", r, now-before[r], took)
				}
				counted = counted && now-before[r] > lateness/2
				before[r] = now
			}
		}
		if !counted {
			t.Errorf("ranks 0 and 1 have waited %v for rank 2 in the last round: less than half of its lateness", before)
		}
	})
}

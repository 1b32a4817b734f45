package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"railhead/client"
	"railhead/internal/await"
	"railhead/internal/wire"
	"railhead/server/membership"
)

func parseMetrics(t testing.TB, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// metric is the value of a counter or gauge without labels.
func metric(t testing.TB, s *Server, name string) float64 {
	t.Helper()
	return metricAt(t, s.AdminSocket(), name)
}

func metricAt(t testing.TB, socket, name string) float64 {
	t.Helper()
	f := parseMetrics(t, adminGetAt(t, socket, "/metrics").body)[name]
	if f == nil || len(f.Metric) != 1 {
		t.Fatalf("no single metric %s: %v", name, f)
	}
	return f.Metric[0].GetCounter().GetValue() + f.Metric[0].GetGauge().GetValue()
}

// series is the one of which the only label has this value, nil if there is none.
func series(f *dto.MetricFamily, value string) *dto.Metric {
	for _, m := range f.GetMetric() {
		if len(m.Label) == 1 && m.Label[0].GetValue() == value {
			return m
		}
	}
	return nil
}

// labelled is the value of the counter or gauge whose only label has this value.
func labelled(f *dto.MetricFamily, value string) float64 {
	m := series(f, value)
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func scrape(t testing.TB, s *Server) map[string]*dto.MetricFamily {
	t.Helper()
	return parseMetrics(t, adminGet(t, s, "/metrics").body)
}

// wantOperations checks how many operations of a kind are counted, and how many bytes they have had.
func wantOperations(t *testing.T, families map[string]*dto.MetricFamily, operation string, count uint64, bytes float64) {
	t.Helper()
	h := series(families["railhead_operation_seconds"], operation).GetHistogram()
	if n := h.GetSampleCount(); n != count {
		t.Errorf("%d operations %s, want %d", n, operation, count)
	}
	if sum := h.GetSampleSum(); count > 0 && !(sum > 0 && sum < await.Patience.Seconds()*float64(count)) {
		t.Errorf("%s took %v s", operation, sum)
	}
	if n := labelled(families["railhead_operation_bytes_total"], operation); n != bytes {
		t.Errorf("%s: %v bytes, want %v", operation, n, bytes)
	}
}

func TestOperationsAreCountedByKindAlsoThoseOfGroupsThatHaveEnded(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, cause := range []string{"aborted", "timeout", "mismatch", "bad_offer"} {
		if m := series(scrape(t, s)["railhead_operations_failed_total"], cause); m == nil || m.GetCounter().GetValue() != 0 {
			t.Errorf("failures by %s before any: %v", cause, m)
		}
	}
	ranks := formed(t, s, client.CommConfig{Group: "counted", HeapBytes: mebibyte}, 2)
	for range 3 {
		mustEach(t, ranks, "all_reduce", reduceOnce)
	}
	wantOperations(t, scrape(t, s), "all_reduce", 6, 6*400)
	mustEach(t, ranks, "all_reduce", reduceOnce)
	mustEach(t, ranks, "barrier", func(r *rank) error { return r.comm.Barrier() })
	end(t, ranks)
	await.Until(t, func() string {
		if n := len(statusOf(t, s).Groups); n != 0 {
			return fmt.Sprintf("%d groups are left", n)
		}
		return ""
	})
	families := scrape(t, s)
	wantOperations(t, families, "all_reduce", 8, 8*400)
	wantOperations(t, families, "barrier", 2, 0)
	if n := families["railhead_operations_unread_total"].GetMetric()[0].GetCounter().GetValue(); n > 2 { // finalize of each rank may still run
		t.Errorf("%v operations are unread", n)
	}
}

func TestOperationsBeforeTheDaemonTookAGroupOverAreNotCountedAgain(t *testing.T) {
	t.Parallel()
	socket := shortDir(t) + "/rh.sock"
	s := startConfig(t, Config{SocketPath: socket})
	ranks := formed(t, s, client.CommConfig{Group: "kept", HeapBytes: mebibyte}, 2)
	mustEach(t, ranks, "all_reduce", reduceOnce)
	s.Close()
	s = startConfig(t, Config{SocketPath: socket})
	awaitGroup(t, s, "kept", "has come back", func(g membership.GroupInfo) bool { return g.State == membership.Ready && len(g.Ranks) == 2 })
	wantOperations(t, scrape(t, s), "all_reduce", 0, 0)
	mustEach(t, ranks, "all_reduce", reduceOnce)
	wantOperations(t, scrape(t, s), "all_reduce", 2, 2*400)
}

func TestAnOperationThatTimesOutIsCountedByItsCause(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ranks := formed(t, s, client.CommConfig{Group: "late", HeapBytes: mebibyte, Timeout: 3 * time.Second}, 2) // forming has this deadline too
	wantError(t, "rank 0", ranks[0].comm.Barrier(), wire.ResultTimeout)
	if n := labelled(scrape(t, s)["railhead_operations_failed_total"], "timeout"); n != 1 {
		t.Errorf("%v time-outs are counted, want 1", n)
	}
}

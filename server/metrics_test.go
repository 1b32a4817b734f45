package server

import (
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
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

// labelled is the value of the counter whose only label has this value.
func labelled(f *dto.MetricFamily, value string) float64 {
	for _, m := range f.GetMetric() {
		if len(m.Label) == 1 && m.Label[0].GetValue() == value {
			return m.GetCounter().GetValue()
		}
	}
	return 0
}

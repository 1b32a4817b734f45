package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"railhead/internal/wire"
	"railhead/server/flight"
	"railhead/server/group"
)

// operationMetrics counts the ranks' operations, by what the flight records have of them at each scrape. Nothing is added to the data
// path, so operations that are overwritten between two scrapes are missing: `unread` says how many.
type operationMetrics struct {
	core                           group.Asker
	seconds, bytes, failed, unread *prometheus.Desc
}

func newOperationMetrics(core group.Asker) *operationMetrics {
	return &operationMetrics{
		core: core,
		seconds: prometheus.NewDesc("railhead_operation_seconds",
			"How long operations took that ended well, of all ranks. Those counted in railhead_operations_unread_total are missing.", []string{"operation"}, nil),
		bytes: prometheus.NewDesc("railhead_operation_bytes_total",
			"Bytes of the operations in railhead_operation_seconds: each rank's larger buffer.", []string{"operation"}, nil),
		failed: prometheus.NewDesc("railhead_operations_failed_total", "Operations of ranks that did not end well, by cause.", []string{"cause"}, nil),
		unread: prometheus.NewDesc("railhead_operations_unread_total",
			"Operations of which nothing else is known: ranks have overwritten their record before a scrape, or keep none.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (o *operationMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{o.seconds, o.bytes, o.failed, o.unread} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It asks for one group at a time. Where the core does not answer there are no series.
func (o *operationMetrics) Collect(ch chan<- prometheus.Metric) {
	groups, err := group.AskFor(o.core, (*group.Groups).Held)
	if err != nil {
		return
	}
	for _, id := range groups {
		if _, err := group.AskFor(o.core, func(g *group.Groups) struct{} { g.CountOperations(id); return struct{}{} }); err != nil {
			return
		}
	}
	counted, err := group.AskFor(o.core, (*group.Groups).Operations)
	if err != nil {
		return
	}
	for op := range counted.Ops {
		if t := &counted.Ops[op]; t.Count > 0 {
			name := wire.Op(op).String()
			ch <- prometheus.MustNewConstHistogram(o.seconds, t.Count, t.Seconds, cumulative(t), name)
			ch <- prometheus.MustNewConstMetric(o.bytes, prometheus.CounterValue, t.Bytes, name)
		}
	}
	for i, cause := range flight.Failures {
		ch <- prometheus.MustNewConstMetric(o.failed, prometheus.CounterValue, counted.Failed[i], string(cause))
	}
	ch <- prometheus.MustNewConstMetric(o.unread, prometheus.CounterValue, counted.Unread)
}

// cumulative has the numbers of operations up to each bound, as Prometheus wants them.
func cumulative(t *flight.OpTally) map[float64]uint64 {
	out, sum := map[float64]uint64{}, uint64(0)
	for i, bound := range flight.DurationBounds {
		sum += t.Within[i]
		out[bound.Seconds()] = sum
	}
	return out
}

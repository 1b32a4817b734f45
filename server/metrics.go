package server

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the daemon's own. Every label has a bounded set of values: the results.
type metrics struct {
	registry        *prometheus.Registry
	sessions        prometheus.Gauge
	groups          prometheus.Gauge
	leaseDeaths     prometheus.Counter
	ended           *prometheus.CounterVec
	errors          *prometheus.CounterVec
	rendezvous      prometheus.Histogram
	handshakeErrors prometheus.Counter
	protocolErrors  prometheus.Counter
	adopted         prometheus.Counter
	away            prometheus.Gauge
	reannounced     prometheus.Counter
}

func newMetrics(committed func() float64) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "railhead_sessions", Help: "Client sessions connected to this daemon; one is one rank of a process.",
		}),
		groups: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "railhead_groups", Help: "Groups that at least one rank holds, forming and broken ones included.",
		}),
		leaseDeaths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "railhead_lease_deaths_total", Help: "Ranks found dead by their lease word, the fastest way.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "railhead_groups_ended_total", Help: "Groups that ended, by result; ok means finalized by all ranks.",
		}, []string{"result"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "railhead_errors_sent_total", Help: "Errors answered to clients, by result; one per rank concerned.",
		}, []string{"result"}),
		rendezvous: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "railhead_rendezvous_seconds", Help: "Wall time from a group's first rank to its readiness, per group.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		handshakeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "railhead_handshake_errors_total", Help: "Connections refused: credentials, version, limit or no Hello.",
		}),
		protocolErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "railhead_protocol_errors_total", Help: "Sessions ended because the client broke the protocol.",
		}),
		adopted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "railhead_groups_adopted_total", Help: "Working groups of an earlier daemon that this one has taken over.",
		}),
		away: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "railhead_ranks_away", Help: "Ranks of groups taken over that have not come back to this daemon yet.",
		}),
		reannounced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "railhead_ranks_reannounced_total", Help: "Ranks of an earlier daemon that came back to this one.",
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "railhead_build_info", Help: "1; the version is the label.", ConstLabels: prometheus.Labels{"version": Version},
	})
	info.Set(1)
	heap := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "railhead_heap_committed_bytes", Help: "Pages behind all heaps of this node's groups, summed over ranks.",
	}, committed)
	m.registry.MustRegister(m.sessions, m.groups, m.leaseDeaths, m.ended, m.errors, m.rendezvous, m.handshakeErrors,
		m.protocolErrors, m.adopted, m.away, m.reannounced, info, heap, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

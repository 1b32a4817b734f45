package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"railhead/internal/wire"
	"railhead/server/group"
)

// Metrics are the daemon's own. Every label has a bounded set of values: the results.
type Metrics struct {
	registry        *prometheus.Registry
	sessions        prometheus.Gauge
	groups          prometheus.Gauge
	leaseDeaths     prometheus.Counter
	ended           *prometheus.CounterVec
	errors          *prometheus.CounterVec
	rendezvous      prometheus.Histogram
	draining        prometheus.Gauge
	handshakeErrors prometheus.Counter
	protocolErrors  prometheus.Counter
	adopted         prometheus.Counter
	away            prometheus.Gauge
	reannounced     prometheus.Counter
}

// New registers everything. Collectors ask the core at each scrape.
func New(version string, core group.Asker) *Metrics {
	m := &Metrics{
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
		draining: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "railhead_draining", Help: "1 while the daemon takes no new groups because it is about to end, else 0.",
		}),
		handshakeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "railhead_handshake_errors_total", Help: "Connections refused: credentials, version, limit or no Hello; not those that were closed without a word.",
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
	for _, r := range wire.Results() { // a series that begins with its first failure would hide that failure from rate()
		m.ended.WithLabelValues(r.String())
		if r != wire.ResultOK {
			m.errors.WithLabelValues(r.String())
		}
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "railhead_build_info", Help: "1; the version is the label.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	heap := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "railhead_heap_committed_bytes", Help: "Pages behind all heaps of CPU memory of this node's groups, summed over ranks.",
	}, func() float64 {
		committed, _ := group.AskFor(core, (*group.Groups).Committed) // 0 where the core does not answer
		return float64(committed)
	})
	device := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "railhead_device_window_bytes",
		Help: "Memory of CUDA devices in windows of this node's groups, the kernels' scratch included, summed over ranks.",
	}, func() float64 {
		bytes, _ := group.AskFor(core, (*group.Groups).DeviceBytes) // as above
		return float64(bytes)
	})
	m.registry.MustRegister(m.sessions, m.groups, m.leaseDeaths, m.ended, m.errors, m.rendezvous, m.draining, m.handshakeErrors,
		m.protocolErrors, m.adopted, m.away, m.reannounced, info, heap, device, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newGroupMetrics(core),
		newOperationMetrics(core), newEPMetrics(core))
	return m
}

// Handler answers a scrape, in OpenMetrics' format where the scraper asks for it.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Draining: the daemon takes no new groups any more.
func (m *Metrics) Draining() { m.draining.Set(1) }

// Held stores the daemon's numbers of sessions and groups. The core calls it after each event.
func (m *Metrics) Held(sessions, groups, away int) {
	m.sessions.Set(float64(sessions))
	m.groups.Set(float64(groups))
	m.away.Set(float64(away))
}

// ConnectionRefused implements session.Observer.
func (m *Metrics) ConnectionRefused() { m.handshakeErrors.Inc() }

// ProtocolBroken implements session.Observer.
func (m *Metrics) ProtocolBroken() { m.protocolErrors.Inc() }

// GroupFormed implements group.Observer, as all that follow.
func (m *Metrics) GroupFormed(took time.Duration) { m.rendezvous.Observe(took.Seconds()) }

// GroupEnded counts by result.
func (m *Metrics) GroupEnded(result wire.Result) { m.ended.WithLabelValues(result.String()).Inc() }

// GroupAdopted counts groups that were taken over.
func (m *Metrics) GroupAdopted() { m.adopted.Inc() }

// RankReannounced counts ranks that have come back.
func (m *Metrics) RankReannounced() { m.reannounced.Inc() }

// LeaseDied counts deaths that a lease has shown.
func (m *Metrics) LeaseDied() { m.leaseDeaths.Inc() }

// ErrorSent counts by result.
func (m *Metrics) ErrorSent(code wire.Result) { m.errors.WithLabelValues(code.String()).Inc() }

package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenring/tokenring/node/limits"
)

// path is how a check was decided.
type path int

const (
	pathLocal path = iota
	pathForwarded
	pathRedis
	paths
)

// metrics are a node's counts. Everything that a check touches is looked up beforehand.
type metrics struct {
	checks    map[string]*checkCounts // by the limit's name; only read
	durations [paths]prometheus.Observer
	failures  *prometheus.CounterVec
	forwards  *prometheus.CounterVec
	registry  prometheus.Registerer
}

type checkCounts struct{ allowed, denied, failed prometheus.Counter }

type forwardCounts struct{ answered, failed prometheus.Counter }

func newMetrics(r prometheus.Registerer, set *limits.Set) *metrics {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	checks := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tokenring_checks_total",
		Help: "Checks that this node was asked by clients, by limit and result (allowed, denied, error).",
	}, []string{"limit", "result"})
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "tokenring_check_duration_seconds",
		Help:    "Time that deciding took, by path (local, forwarded, redis).",
		Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1},
	}, []string{"path"})
	m := &metrics{
		checks:   map[string]*checkCounts{},
		registry: r,
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tokenring_degraded_total",
			Help: "Checks answered by a failure policy because no holder could be asked in time.",
		}, []string{"limit", "policy"}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tokenring_forwards_total",
			Help: "Groups of checks sent to other nodes, by node and result (answered, failed).",
		}, []string{"peer", "result"}),
	}
	r.MustRegister(checks, durations, m.failures, m.forwards)
	for i, label := range []string{"local", "forwarded", "redis"} {
		m.durations[i] = durations.WithLabelValues(label)
	}
	add := func(limit string) {
		m.checks[limit] = &checkCounts{
			allowed: checks.WithLabelValues(limit, "allowed"),
			denied:  checks.WithLabelValues(limit, "denied"),
			failed:  checks.WithLabelValues(limit, "error"),
		}
	}
	for name := range set.Names() {
		add(name)
	}
	add(InlineLimit)
	add(UnknownLimit)
	return m
}

// observe registers what is read from the node when somebody asks.
func (m *metrics) observe(n *Node) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tokenring_members", Help: "Active members, which share what is to be decided.",
	}, func() float64 { return float64(n.peers.Load().nodes) }))
}

func (m *metrics) count(a *Answer) {
	c := m.checks[a.Limit]
	switch {
	case a.Err != nil:
		c.failed.Inc()
	case a.Allowed:
		c.allowed.Inc()
	default:
		c.denied.Inc()
	}
}

func (m *metrics) took(p path, d time.Duration) { m.durations[p].Observe(d.Seconds()) }

func (m *metrics) degraded(r *limits.Rule) {
	m.failures.WithLabelValues(r.Name, r.OnFailure.String()).Inc()
}

func (m *metrics) forwardsTo(id string) forwardCounts {
	return forwardCounts{
		answered: m.forwards.WithLabelValues(id, "answered"),
		failed:   m.forwards.WithLabelValues(id, "failed"),
	}
}

func (c forwardCounts) count(err error) {
	if err == nil {
		c.answered.Inc()
	} else {
		c.failed.Inc()
	}
}

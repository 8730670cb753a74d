package keeper

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenring/tokenring/node/authority"
)

// metrics are what a keeper counts.
type metrics struct {
	freezes   prometheus.Histogram
	claims    prometheus.Counter
	failovers prometheus.Counter
	moved     struct{ in, out prometheus.Counter }
	lag       prometheus.Histogram

	// Largest lag of this window and of the one before, and when this one began; guarded by
	// the keeper's lock.
	largest, before, turned time.Duration
}

func newMetrics(k *Keeper) *metrics {
	r := k.config.Metrics
	if r == nil {
		r = prometheus.NewRegistry()
	}
	m := &metrics{
		freezes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "tokenring_handoff_freeze_seconds",
			Help:    "Time for which a partition decided nothing while it was handed over or merged.",
			Buckets: []float64{2.5e-4, 5e-4, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 7.5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1},
		}),
		claims: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tokenring_claims_total",
			Help: "Partitions that came to be held here since nobody held them: for the first time, or after a failure.",
		}),
		failovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tokenring_failovers_total",
			Help: "Partitions taken over from a node that is gone.",
		}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "tokenring_replication_lag_seconds",
			Help:    "Age of the oldest change of a message when the copy had it.",
			Buckets: []float64{5e-4, 1e-3, 2.5e-3, 5e-3, 7.5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1},
		}),
	}
	moved := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tokenring_handoff_buckets_total",
		Help: "Buckets in partitions that were handed over, by direction (in, out).",
	}, []string{"direction"})
	m.moved.in, m.moved.out = moved.WithLabelValues("in"), moved.WithLabelValues("out")
	r.MustRegister(m.freezes, m.claims, m.failovers, moved, m.lag, newCurrent(k))
	return m
}

// lagWindow is the time whose largest lag is shown, at least; at most it is twice that.
const lagWindow = 10 * time.Second

// lagged notes how old the oldest change was when a copy had it. The keeper's lock is held.
func (m *metrics) lagged(now, lag time.Duration) {
	m.lag.Observe(lag.Seconds())
	m.turn(now)
	m.largest = max(m.largest, lag)
}

func (m *metrics) turn(now time.Duration) {
	if now-m.turned >= lagWindow {
		m.turned, m.before, m.largest = now, m.largest, 0
	}
}

// A current is what is read from the keeper when somebody asks.
type current struct {
	keeper                     *Keeper
	partitions, copied, lagMax *prometheus.Desc
}

func newCurrent(k *Keeper) *current {
	return &current{
		keeper: k,
		partitions: prometheus.NewDesc("tokenring_partitions",
			"Partitions of this node, by state (holding, frozen, claiming, paused; copied: a complete copy lies here).", []string{"state"}, nil),
		copied: prometheus.NewDesc("tokenring_partitions_replicated",
			"Partitions of this node whose heir has a complete copy.", nil, nil),
		lagMax: prometheus.NewDesc("tokenring_replication_lag_max_seconds",
			"Largest replication lag of the last ten to twenty seconds.", nil, nil),
	}
}

// Describe and Collect make it a prometheus.Collector.
func (c *current) Describe(to chan<- *prometheus.Desc) {
	to <- c.partitions
	to <- c.copied
	to <- c.lagMax
}

// Collect reads the figures.
func (c *current) Collect(to chan<- prometheus.Metric) {
	k := c.keeper
	k.mu.Lock()
	counts := k.machine.Counts()
	k.metrics.turn(k.now())
	lag := max(k.metrics.before, k.metrics.largest)
	k.mu.Unlock()
	gauge := func(of *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, value, labels...)
	}
	for role, n := range counts.Roles {
		if role := authority.Role(role); role != authority.None {
			gauge(c.partitions, float64(n), role.String())
		}
	}
	gauge(c.partitions, float64(counts.Copies), "copied")
	gauge(c.copied, float64(counts.Copied))
	gauge(c.lagMax, lag.Seconds())
}

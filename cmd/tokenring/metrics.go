package main

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tokenring/tokenring/bucket"
)

// registerProcess makes the figures of the process and of its buckets readable.
func registerProcess(r prometheus.Registerer, buckets *bucket.Store) {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tokenring_build_info", Help: "Always 1; the labels tell what runs.",
		ConstLabels: prometheus.Labels{"version": buildInfo().Version, "goversion": runtime.Version()},
	})
	build.Set(1)
	dropped := func(kind string, read func(bucket.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tokenring_evictions_total", Help: "Buckets dropped: full ones, of which nothing was lost, and lossy ones.",
			ConstLabels: prometheus.Labels{"kind": kind},
		}, func() float64 { return float64(read(buckets.Stats())) })
	}
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tokenring_keys", Help: "Buckets held."},
			func() float64 { return float64(buckets.Stats().Keys) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tokenring_copies", Help: "Buckets of copies for other nodes."},
			func() float64 { return float64(buckets.Stats().Copies) }),
		dropped("full", func(s bucket.Stats) uint64 { return s.Full }),
		dropped("lossy", func(s bucket.Stats) uint64 { return s.Lossy }),
	)
}

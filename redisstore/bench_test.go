package redisstore

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/redistest"
)

func takes(b *testing.B) []bucket.Take {
	all := make([]bucket.Take, 1024)
	for i := range all {
		all[i] = bucket.Take{Name: "api", Key: "user:" + strconv.Itoa(i), Limit: limit(b, 100, time.Minute, 20), Cost: 1}
	}
	return all
}

// One check at a time: the whole way there and back.
func BenchmarkTakeAlone(b *testing.B) {
	s := newStore(b, redistest.Start(b).URL())
	keys := takes(b)
	out := make([]bucket.Outcome, 1)
	i := 0
	for b.Loop() {
		s.Take(b.Context(), keys[i%1024:i%1024+1], out)
		if out[0].Err != nil {
			b.Fatal(out[0].Err)
		}
		i++
	}
}

// 64 callers at once, who share round trips.
func BenchmarkTake64Callers(b *testing.B) {
	s := newStore(b, redistest.Start(b).URL())
	keys := takes(b)
	procs := runtime.GOMAXPROCS(0)
	b.SetParallelism((64 + procs - 1) / procs)
	var next atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		out := make([]bucket.Outcome, 1)
		for pb.Next() {
			i := next.Add(1) % 1024
			s.Take(b.Context(), keys[i:i+1], out)
			if out[0].Err != nil {
				b.Error(out[0].Err)
				return
			}
		}
	})
}

// A batch of 100 checks in one call.
func BenchmarkTakeBatch100(b *testing.B) {
	s := newStore(b, redistest.Start(b).URL())
	keys := takes(b)[:100]
	out := make([]bucket.Outcome, len(keys))
	for b.Loop() {
		s.Take(b.Context(), keys, out)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/check")
}

package test

import (
	"slices"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/redistest"
	"github.com/tokenring/tokenring/test/wait"
)

// Redis ends under load in Redis mode, once by dying and once by falling silent: the
// failure policy answers within the time budget, and Redis is used again soon after it is
// back.
func TestRedisStopsUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name       string
		away, back func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"silent", (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			cluster := harness.Start(t, harness.Config{
				Nodes: 2, Flags: []string{"--backend", "redis", "--redis-url", server.URL(), "--forward-timeout", budget.String()}, Limits: loadLimits,
			})
			l := startLoad(t, loadClients, cluster.Nodes(), func(client, i int) harness.Check {
				return harness.Check{Limit: "api", Key: loadKey(client*7 + i)}
			})
			grow := func(by int) {
				t.Helper()
				before, _ := l.seen(0, none)
				wait.For(t, harness.Slow, "checks under load", func() bool { n, _ := l.seen(0, none); return n > before+by })
			}
			grow(1000)
			gone := time.Now()
			c.away(server)
			grow(6000)
			back := time.Now()
			c.back(server)
			before, _ := l.seen(0, none)
			wait.For(t, harness.Slow, "Redis to be used again", func() bool {
				_, used := l.seen(before, func(s sample) bool { return !s.answer.Degraded && s.err == nil })
				return used
			})
			again := time.Since(back)
			grow(1000)
			samples := l.end()
			assessRedis(t, samples, gone, back)
			t.Logf("Redis was used again %v after its return", again.Round(time.Millisecond))
			if again > time.Second {
				t.Errorf("Redis was used again %v after its return, want at most 1s", again)
			}
		})
	}
}

func assessRedis(t *testing.T, samples []sample, gone, back time.Time) {
	t.Helper()
	var away []sample
	for _, s := range samples {
		if s.err != nil {
			t.Errorf("a caller got %v", s.err)
			continue
		}
		asked := s.at.Add(-s.took)
		if s.answer.Degraded && s.at.Before(gone) {
			t.Errorf("a check was degraded while Redis answered: %+v", s.answer)
		}
		if s.answer.Degraded && !s.answer.Allowed {
			t.Errorf("the policy allow answered %+v", s.answer)
		}
		if asked.After(gone) && s.at.Before(back) {
			away = append(away, s)
			if !s.answer.Degraded {
				t.Errorf("a check was decided without Redis: %+v", s.answer)
			}
			if s.took > budget+margin {
				t.Errorf("a check took %v with a budget of %v", s.took, budget)
			}
		}
		if s.at.Sub(back) > time.Second+margin && s.answer.Degraded {
			t.Errorf("a check was degraded %v after Redis was back", s.at.Sub(back))
		}
	}
	if len(away) == 0 {
		t.Error("no check was answered while Redis was away")
	}
	t.Logf("without Redis: %s", latencies(slices.Clip(away)))
}

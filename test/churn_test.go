package test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

const (
	churnKeys  = 2500
	churnBurst = 10
)

const churnLimits = `
limits:
  - {name: ten, rate: 0, burst: 10}
  - {name: busy, rate: 5/s, burst: 20}
`

// changes takes a cluster of three through all planned changes: to six nodes and back, a
// restart of each, and a new node in place of each. After every one it calls step.
func changes(t *testing.T, c *harness.Cluster, l *load, step func(what string)) {
	t.Helper()
	grow := func() {
		c.Add().Start()
		c.WaitReady()
		l.ask(running(c)...)
	}
	shrink := func(n *harness.Node) {
		l.ask(slices.DeleteFunc(running(c), func(o *harness.Node) bool { return o == n })...)
		n.Leave()
	}
	for size := 4; size <= 6; size++ {
		grow()
		step(fmt.Sprintf("grown to %d nodes", size))
	}
	for size := 5; size >= 3; size-- {
		shrink(running(c)[size-2]) // neither the oldest nor the newest
		step(fmt.Sprintf("shrunk to %d nodes", size))
	}
	for _, n := range running(c) {
		shrink(n)
		n.Restart()
		c.WaitReady()
		l.ask(running(c)...)
		step("restarted " + n.ID)
	}
	for _, n := range running(c) {
		grow()
		shrink(n)
		step("replaced " + n.ID)
	}
}

// changesCount is how often changes calls step with three nodes.
const changesCount = 12

func running(c *harness.Cluster) []*harness.Node {
	return slices.DeleteFunc(c.Nodes(), func(n *harness.Node) bool { return !n.Running() })
}

func churnKey(i int) string { return fmt.Sprintf("churn-%d", i%churnKeys) }

// Of 2500 buckets of ten that do not refill, each gives exactly ten in the course of all
// planned changes under load, tokens being left in all of them at each change.
func TestExactWhileNodesComeAndGo(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: patient, Limits: churnLimits})
	var granted, taken atomic.Int64 // takes that may be made, and that were
	look := int64(0)
	l := startLoad(t, loadClients, c.Nodes(), func(client, i int) harness.Check {
		if n := taken.Load(); n < granted.Load() && taken.CompareAndSwap(n, n+1) {
			return harness.Check{Limit: "ten", Key: churnKey(int(n))}
		}
		return harness.Check{Limit: "ten", Key: churnKey(client*41 + i), Cost: &look}
	})
	const perStep = churnKeys * (churnBurst - 2) / changesCount
	changes(t, c, l, func(what string) {
		granted.Add(perStep)
		wait.For(t, harness.Slow, "the checks of a step", func() bool { return taken.Load() == granted.Load() })
		t.Logf("%s, %d of %d tokens spent", what, taken.Load(), churnKeys*churnBurst)
	})
	spent := spending(t, l.end())
	drain(t, c, spent)
	report(t, c)
}

// The same, with no traffic on those buckets in between.
func TestExactWithoutTraffic(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: patient, Limits: churnLimits})
	spent := map[string]int{}
	eachKey(t, running(c), func(key string, a harness.Answer) bool {
		spent[key]++
		return spent[key] < 3
	})
	l := startLoad(t, loadClients, c.Nodes(), func(client, i int) harness.Check {
		return harness.Check{Limit: "busy", Key: loadKey(client*7 + i)}
	})
	changes(t, c, l, func(string) {})
	spending(t, l.end())
	drain(t, c, spent)
	report(t, c)
}

// spending counts what each bucket of ten gave, and wants no errors and nothing degraded.
func spending(t *testing.T, samples []sample) map[string]int {
	t.Helper()
	spent := map[string]int{}
	bad := 0
	for _, s := range samples {
		switch {
		case s.err != nil || s.answer.Degraded:
			if bad++; bad <= 5 {
				t.Errorf("a caller of %s got %+v, %v after %v, at %v", s.asked, s.answer, s.err, s.took, s.at.Format("05.000"))
			}
		case s.answer.Limit == "ten" && s.cost == 1 && s.answer.Allowed:
			spent[s.key]++
		case s.answer.Limit == "ten" && !s.answer.Allowed:
			t.Errorf("key %s was denied with tokens left: %+v", s.key, s.answer)
		}
	}
	t.Logf("under load: %s; %d errors or degraded", latencies(samples), bad)
	return spent
}

// drain takes what is left of each bucket and wants it to have given ten in all.
func drain(t *testing.T, c *harness.Cluster, spent map[string]int) {
	t.Helper()
	eachKey(t, running(c), func(key string, a harness.Answer) bool {
		if a.Allowed {
			spent[key]++
		}
		return a.Allowed
	})
	wrong := 0
	for i := range churnKeys {
		if n := spent[churnKey(i)]; n != churnBurst {
			if wrong++; wrong <= 5 {
				t.Errorf("key %s gave %d, want exactly %d", churnKey(i), n, churnBurst)
			}
		}
	}
	t.Logf("%d of %d keys gave exactly %d", churnKeys-wrong, churnKeys, churnBurst)
}

// eachKey takes tokens of each key, asking the nodes in turn, for as long as more reports
// true. Calls of more do not overlap.
func eachKey(t *testing.T, nodes []*harness.Node, more func(key string, a harness.Answer) bool) {
	t.Helper()
	var mu sync.Mutex
	var next atomic.Int64
	var callers sync.WaitGroup
	for range 32 {
		callers.Go(func() {
			for i := int(next.Add(1)) - 1; i < churnKeys; i = int(next.Add(1)) - 1 {
				for try, again := 0, true; again; try++ {
					a, err := nodes[(i+try)%len(nodes)].Check(inTime(t), harness.Check{Limit: "ten", Key: churnKey(i)})
					if err != nil || a.Degraded {
						t.Errorf("%+v, %v", a, err)
						break
					}
					mu.Lock()
					again = more(churnKey(i), a)
					mu.Unlock()
				}
			}
		})
	}
	callers.Wait()
}

// report prints what the nodes that run have counted.
func report(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for _, n := range running(c) {
		frozen, times := metric(t, n, "tokenring_handoff_freeze_seconds_sum"), metric(t, n, "tokenring_handoff_freeze_seconds_count")
		t.Logf("%s: %v partitions frozen for %v in all, buckets received %v and handed over %v", n.ID, times,
			time.Duration(frozen*float64(time.Second)).Round(time.Microsecond),
			metric(t, n, `tokenring_handoff_buckets_total{direction="in"}`), metric(t, n, `tokenring_handoff_buckets_total{direction="out"}`))
	}
}

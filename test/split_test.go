package test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// healing is within what time a split that has ended leaves one holder for each partition.
const healing = 10 * time.Second

// splitKeys is how many buckets of each kind a split is tried on.
const splitKeys = 60

// spend takes tokens of buckets of ten and wants each of these checks to be decided by a
// bucket, and allowed as said. It asks again as long as the failure policy answers.
func spend(t *testing.T, nodes []*harness.Node, kind string, tokens int, allowed bool) {
	t.Helper()
	var callers sync.WaitGroup
	for i := range splitKeys {
		callers.Go(func() {
			for k := range tokens {
				c := harness.Check{Limit: "ten", Key: fmt.Sprintf("%s-%d", kind, i)}
				var a harness.Answer
				err := wait.Until(harness.Slow, func() bool {
					var err error
					a, err = nodes[(i+k)%len(nodes)].Check(inTime(t), c)
					return err == nil && !a.Degraded
				})
				if err != nil || a.Allowed != allowed {
					t.Errorf("token %d of %s: %+v, %v, want allowed %t", k+1, c.Key, a, err, allowed)
				}
			}
		})
	}
	callers.Wait()
}

// Three nodes are split two against one, and the split heals: each side gives at most one
// burst, and what both have spent is merged.
func TestSplitAndHeal(t *testing.T) {
	harness.NeedHosts(t)
	c := harness.Start(t, harness.Config{Nodes: 3, Hosts: true, Limits: loadLimits + "  - {name: ten, rate: 0, burst: 10}\n"})
	c.WaitSettled(true)
	nodes := c.Nodes()
	for _, kind := range []string{"both", "debt", "idle"} {
		spend(t, nodes, kind, 2, true)
	}
	var g generations
	l := startLoad(t, loadClients, nodes, g.check)
	l.await(t, 2000)

	begin := time.Now()
	c.Split(nodes[2])
	for _, side := range [][]*harness.Node{nodes[:2], nodes[2:]} {
		spend(t, side, "probe", 1, true)
		took := time.Since(begin)
		t.Logf("%d of 3 nodes decide everything again after %v", len(side), took.Round(time.Millisecond))
		if took > found+margin {
			t.Errorf("want at most %v, and %v more on a busy machine", found, margin)
		}
	}
	spend(t, nodes[:2], "both", 3, true)
	spend(t, nodes[2:], "both", 4, true)
	spend(t, nodes[:2], "debt", 8, true)
	spend(t, nodes[2:], "debt", 6, true)
	l.await(t, 4000)

	back := time.Now()
	c.Heal()
	c.WaitSettled(false)
	took := time.Since(back)
	c.WaitSettled(true)
	l.await(t, 4000)
	samples := l.end()
	t.Logf("one holder for each partition %v after healing, copies complete after %v", took.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
	if took > healing+margin {
		t.Errorf("want at most %v, and %v more on a busy machine", healing, margin)
	}
	assessSplit(t, samples, begin, back, took)
	spend(t, nodes, "both", 1, true) // of ten, 2 before and 3 and 4 on the two sides
	spend(t, nodes, "both", 1, false)
	spend(t, nodes, "debt", 1, false)
	spend(t, nodes, "idle", 8, true)
	spend(t, nodes, "idle", 1, false)
}

// assessSplit wants that each bucket gave at most one burst for each side, and one alone if
// the split did not concern it, and no answer by the failure policy once it has healed.
func assessSplit(t *testing.T, samples []sample, begin, back time.Time, took time.Duration) {
	t.Helper()
	type tally struct {
		allowed int
		during  bool
	}
	keys := map[string]*tally{}
	degraded, last := 0, time.Duration(0)
	for _, s := range samples {
		k := keys[s.key]
		if k == nil {
			k = &tally{}
			keys[s.key] = k
		}
		k.during = k.during || s.at.After(begin) && s.at.Add(-s.took).Before(back.Add(took))
		switch {
		case s.err != nil:
			t.Errorf("a caller of %s got %v at %s", s.asked, s.err, s.at.Format("05.000"))
		case s.answer.Degraded:
			degraded++
			last = max(last, s.at.Sub(back))
		case s.answer.Allowed:
			k.allowed++
		}
	}
	beyond, twice := 0, 0
	for name, k := range keys {
		most := twentyBurst
		if k.during {
			most *= 2
		}
		if k.allowed > most {
			t.Errorf("%s gave %d, want at most %d", name, k.allowed, most)
		}
		if k.allowed > twentyBurst {
			beyond, twice = beyond+k.allowed-twentyBurst, twice+1
		}
	}
	t.Logf("%d buckets, %d gave %d beyond their limit; %d answers by the failure policy, the last one %v after healing; %s",
		len(keys), twice, beyond, degraded, last.Round(time.Millisecond), latencies(samples))
	if last > took+margin {
		t.Errorf("an answer by the failure policy %v after healing, when all was held after %v", last, took)
	}
	if twice == 0 {
		t.Error("no bucket was spent on both sides: the test has not seen a split")
	}
}

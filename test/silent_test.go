package test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/redistest"
	"github.com/tokenring/tokenring/test/wait"
)

const (
	loadClients = 64
	loadKeys    = 300
	// budget is longer than the default, so that a busy machine degrades no check of a
	// node that answers.
	budget = time.Second
	// found is how long the silent node's keys may be answered by the failure policy.
	found = 3 * time.Second
	// margin is what a busy machine may add to a time budget. The budget itself is what
	// is measured and printed.
	margin = 2 * time.Second
)

const loadLimits = `
limits:
  - {name: api, rate: 12/s, burst: 12}
  - {name: twenty, rate: 0, burst: 20}
`

// Under load from 64 clients one of three nodes falls silent: no caller of the others sees
// an error, its keys are answered as the failure policy says until the others decide them,
// and a node under its id is used again.
func TestSilenceUnderLoad(t *testing.T) {
	for _, policy := range []string{"allow", "deny", "local", "redis"} {
		t.Run(policy, func(t *testing.T) {
			flags := []string{"--on-failure", policy, "--forward-timeout", budget.String()}
			if policy == "redis" {
				flags = append(flags, "--redis-url", redistest.Start(t).URL())
			}
			silenceUnderLoad(t, policy, flags)
		})
	}
}

func silenceUnderLoad(t *testing.T, policy string, flags []string) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: flags, Limits: loadLimits})
	nodes := c.Nodes()
	victim, survivors := nodes[1], []*harness.Node{nodes[0], nodes[2]}
	holders := holdersOf(t, nodes[0])

	l := startLoad(t, loadClients, nodes, func(client, i int) harness.Check {
		return harness.Check{Limit: "api", Key: loadKey(client*7 + i)}
	})
	l.await(t, 2000)
	l.ask(survivors...)

	death := time.Now()
	victim.Stop()
	wait.For(t, harness.Slow, "the survivors to have the ring to themselves", func() bool {
		return survivors[0].State(victim.ID) == "dead" && survivors[1].State(victim.ID) == "dead"
	})
	checkBucketsOfSilentKeys(t, survivors, victim.ID)
	l.await(t, 2000)

	victim.Kill()
	back := time.Now()
	victim.Restart()
	before, _ := l.seen(0, none)
	wait.For(t, harness.Slow, "the node to be used again", func() bool {
		_, used := l.seen(before, func(s sample) bool { return s.answer.Node == victim.ID && !s.answer.Degraded })
		return used
	})
	took := time.Since(back)
	t.Logf("%s: the node started again was used after %v", policy, took.Round(time.Millisecond))
	if took > found {
		t.Errorf("the node was used %v after it had started again, want at most %v", took, found)
	}
	assessSilence(t, l.end(), policy, victim.ID, holders, death)
}

func loadKey(i int) string { return fmt.Sprintf("load-%d", i%loadKeys) }

func none(sample) bool { return false }

// holdersOf asks for every key who holds it.
func holdersOf(t *testing.T, n *harness.Node) map[string]string {
	t.Helper()
	holders := map[string]string{}
	look := int64(0)
	for i := range loadKeys {
		a, err := n.Check(inTime(t), harness.Check{Limit: "api", Key: loadKey(i), Cost: &look})
		if err != nil || a.Degraded {
			t.Fatalf("looking at %s: %+v, %v", loadKey(i), a, err)
		}
		holders[loadKey(i)] = a.Node
	}
	return holders
}

// checkBucketsOfSilentKeys makes sure that the survivors decide by buckets again: of many
// new ones, among them those that the silent node would have held, each gives what it holds.
func checkBucketsOfSilentKeys(t *testing.T, survivors []*harness.Node, victim string) {
	t.Helper()
	for k := range 30 {
		key, allowed := fmt.Sprintf("after-%d", k), 0
		for i := range 25 {
			a, err := survivors[i%2].Check(inTime(t), harness.Check{Limit: "twenty", Key: key})
			if err != nil || a.Degraded || a.Node == victim {
				t.Fatalf("key %s after the change: %+v, %v", key, a, err)
			}
			if a.Allowed {
				allowed++
			}
		}
		if allowed != 20 {
			t.Errorf("key %s after the change: %d of 25 allowed, want 20", key, allowed)
		}
	}
}

// assessSilence holds what the clients saw against what the policy promises.
func assessSilence(t *testing.T, samples []sample, policy, victim string, holders map[string]string, death time.Time) {
	t.Helper()
	var degraded, after []sample
	allowed := map[string]int{} // by the policy, of one bucket
	for _, s := range samples {
		if s.err != nil {
			// Who asked the silent node may have lost the answer, and nobody else.
			if s.asked != victim || s.at.Before(death) {
				t.Errorf("a caller of %s got %v", s.asked, s.err)
			}
			continue
		}
		if s.at.After(death) && s.asked != victim {
			after = append(after, s)
		}
		if !s.answer.Degraded {
			continue
		}
		degraded = append(degraded, s)
		if holders[s.key] != victim || s.at.Before(death) {
			t.Errorf("a check of %s, held by %s, was degraded: %+v", s.key, holders[s.key], s.answer)
		}
		if policy == "allow" && !s.answer.Allowed || policy == "deny" && s.answer.Allowed {
			t.Errorf("the policy %s answered %+v", policy, s.answer)
		}
		if bucket := bucketOfPolicy(policy, s); s.answer.Allowed && bucket != "" {
			allowed[bucket]++
		}
	}
	if len(degraded) == 0 {
		t.Error("no check was degraded: the test has not seen the time without a holder")
		return
	}
	last := slices.MaxFunc(degraded, func(a, b sample) int { return a.at.Compare(b.at) }).at.Sub(death)
	t.Logf("%s: %d of %d checks degraded, the last one %v after the silence began", policy, len(degraded), len(after), last.Round(time.Millisecond))
	t.Logf("%s: in the silence, all: %s", policy, latencies(after))
	t.Logf("%s: in the silence, degraded: %s", policy, latencies(degraded))
	// The third of the limit that a node has of its own, or the whole of it in Redis.
	for bucket, n := range allowed {
		rate := map[string]float64{"local": 4, "redis": 12}[policy]
		if most := rate*(1+last.Seconds()) + 1; float64(n) > most {
			t.Errorf("the policy %s let %d checks of the bucket %s through, want at most %.0f", policy, n, bucket, most)
		}
	}
	if last > found {
		t.Errorf("a check was degraded %v after the silence began, want at most %v", last, found)
	}
	for _, s := range after {
		if s.took > budget+margin {
			t.Errorf("a check took %v with a budget of %v", s.took, budget)
		}
	}
}

// bucketOfPolicy names the bucket that a policy decides from, if it has any.
func bucketOfPolicy(policy string, s sample) string {
	switch policy {
	case "local":
		return s.asked + " " + s.key
	case "redis":
		return s.key
	}
	return ""
}

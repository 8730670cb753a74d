package test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/redistest"
)

const twenty = "limits:\n  - {name: twenty, rate: 0, burst: 20}\n"

// The promise: of a bucket of 20 that does not refill, 100 checks at once through three
// nodes are allowed exactly 20 times and denied 80 times, every time.
func TestExactlyTwentyOfAHundred(t *testing.T) {
	const rounds = 200
	modes := []struct {
		name  string
		flags func(t *testing.T) []string
	}{
		{"cluster", func(*testing.T) []string { return patient }},
		{"redis", func(t *testing.T) []string {
			return append([]string{"--backend", "redis", "--redis-url", redistest.Start(t).URL()}, patient...)
		}},
	}
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			c := harness.Start(t, harness.Config{Nodes: 3, Flags: mode.flags(t), Limits: twenty})
			for _, w := range ways(t) {
				t.Run(w.name, func(t *testing.T) {
					deciders := map[string]int{}
					for round := range rounds {
						for id, n := range hundredAtOnce(t, c, w, fmt.Sprintf("%s-%d", w.name, round)) {
							deciders[id] += n
						}
					}
					t.Logf("%d rounds, exactly 20 and 80 each, decided by %v", rounds, deciders)
				})
			}
		})
	}
}

// hundredAtOnce sends 100 checks of a new key, spread over all nodes, and returns who
// decided how many.
func hundredAtOnce(t *testing.T, c *harness.Cluster, w way, key string) map[string]int {
	t.Helper()
	const callers, each = 20, 5 // a batch has several checks of the bucket
	nodes := c.Nodes()
	var mu sync.Mutex
	var answers []harness.Answer
	var wg sync.WaitGroup
	start := make(chan struct{})
	for caller := range callers {
		wg.Go(func() {
			checks := make([]harness.Check, each)
			for i := range checks {
				checks[i] = harness.Check{Limit: "twenty", Key: key}
			}
			<-start
			got, err := w.ask(inTime(t), nodes[caller%len(nodes)], checks)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			answers = append(answers, got...)
		})
	}
	close(start)
	wg.Wait()
	deciders := map[string]int{}
	allowed, denied := 0, 0
	for _, a := range answers {
		deciders[a.Node]++
		switch {
		case a.Degraded || a.Error != nil || a.Key != key:
			t.Fatalf("key %q: %+v", key, a)
		case a.Allowed:
			allowed++
		case a.RetryAfterMS != -1:
			t.Errorf("denied with retry_after_ms %d, want -1: the bucket does not refill", a.RetryAfterMS)
			denied++
		default:
			denied++
		}
	}
	if allowed != 20 || denied != 80 {
		t.Fatalf("key %q: %d allowed and %d denied, want exactly 20 and 80", key, allowed, denied)
	}
	return deciders
}

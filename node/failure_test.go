package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/ring"
)

func TestFailurePolicies(t *testing.T) {
	for _, c := range []struct {
		limit           string
		cost            int64
		allowed         int // of 30 checks
		policy          string
		retryWhenDenied time.Duration
	}{
		{"api", 1, 30, "allow", 0},
		{"deny", 1, 0, "deny", time.Second},
		{"deny", 0, 30, "deny", 0},
		{"deny", -1, 30, "deny", 0},
		{"local", 1, 10, "local", time.Second}, // half of 20: two nodes
		{"local", -1, 30, "local", 0},
	} {
		t.Run(fmt.Sprint(c.limit, c.cost), func(t *testing.T) {
			p := newPeers()
			p.set("b", failing(errors.New("refused")))
			registry := prometheus.NewRegistry()
			n := cluster(t, Config{Peers: p, Metrics: registry}, "b")
			key := keyOf(t, n, c.limit, "b")
			allowed := 0
			for range 30 {
				a := n.one(t.Context(), Check{Limit: c.limit, Key: key, Cost: c.cost})
				if !a.Degraded || a.Err != nil || a.Node != "self" || a.Remaining != 0 || a.ResetAfter != 0 || a.Burst != 20 {
					t.Fatalf("%+v, want a degraded answer without figures", a)
				}
				if a.Allowed {
					allowed++
				} else if a.RetryAfter != c.retryWhenDenied {
					t.Errorf("denied with retry after %v, want %v", a.RetryAfter, c.retryWhenDenied)
				}
			}
			if allowed != c.allowed {
				t.Errorf("%d of 30 allowed, want %d", allowed, c.allowed)
			}
			want := fmt.Sprintf("# HELP tokenring_degraded_total Checks answered by a failure policy because no holder could be asked in time.\n"+
				"# TYPE tokenring_degraded_total counter\ntokenring_degraded_total{limit=%q,policy=%q} 30\n", c.limit, c.policy)
			if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tokenring_degraded_total"); err != nil {
				t.Error(err)
			}
		})
	}
}

// store is a fake of Redis.
type store func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome)

func (s store) Take(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	s(ctx, takes, outs)
}

func TestPolicyRedisHasHalfOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", silent)
		var left time.Duration
		redis := store(func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			for i := range takes {
				outs[i] = bucket.Outcome{Decision: bucket.Decision{Allowed: takes[i].Key != "nobody" && i != 1}}
			}
		})
		n := cluster(t, Config{Peers: p, Redis: redis, Budget: 100 * time.Millisecond}, "b")
		key := keyOf(t, n, "redis", "b")
		begin := time.Now()
		answers := make([]Answer, 2)
		n.Check(t.Context(), []Check{{Limit: "redis", Key: key, Cost: 1}, {Limit: "redis", Key: key, Cost: 1}}, answers)
		if took := time.Since(begin); took != 50*time.Millisecond || left != 50*time.Millisecond {
			t.Errorf("asked for %v, then Redis had %v left, want half of 100ms each", took, left)
		}
		if a := answers[0]; !a.Degraded || !a.Allowed || a.RetryAfter != 0 {
			t.Errorf("%+v, want Redis's yes, degraded", a)
		}
		if a := answers[1]; !a.Degraded || a.Allowed || a.RetryAfter != time.Second {
			t.Errorf("%+v, want Redis's no, degraded", a)
		}
	})
}

func TestPolicyRedisWithoutRedisAllows(t *testing.T) {
	p := newPeers()
	p.set("b", failing(errors.New("refused")))
	redis := store(failing(errors.New("redis is down")))
	n := cluster(t, Config{Peers: p, Redis: redis}, "b")
	if a := n.one(t.Context(), Check{Limit: "redis", Key: keyOf(t, n, "redis", "b"), Cost: 1}); !a.Degraded || !a.Allowed {
		t.Errorf("%+v, want a degraded yes", a)
	}
}

func TestNoAnswerTakesTheBudgetAndNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", silent)
		n := cluster(t, Config{Peers: p, Budget: 80 * time.Millisecond}, "b")
		begin := time.Now()
		a := n.one(t.Context(), Check{Limit: "api", Key: keyOf(t, n, "api", "b"), Cost: 1})
		if took := time.Since(begin); took != 80*time.Millisecond || !a.Degraded {
			t.Errorf("%+v after %v, want a degraded answer after 80ms", a, took)
		}
	})
}

func TestCallerThatGivesUpIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", silent)
		registry := prometheus.NewRegistry()
		n := cluster(t, Config{Peers: p, Budget: time.Minute, Metrics: registry}, "b")
		key := keyOf(t, n, "api", "b")
		const callers = 300
		for range callers {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if a := n.one(ctx, Check{Limit: "api", Key: key, Cost: 1}); !errors.Is(a.Err, context.DeadlineExceeded) || a.Degraded {
				t.Fatalf("%+v, want the caller's own error", a)
			}
			cancel()
		}
		if got := p.count("b"); got != callers {
			t.Errorf("asked %d times of %d: the breaker has opened for callers that gave up", got, callers)
		}
	})
}

func TestBreakerSparesTheWaitAndLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", silent)
		n := cluster(t, Config{Peers: p, Budget: 60 * time.Millisecond}, "b")
		key := keyOf(t, n, "api", "b")
		ask := func() (Answer, time.Duration) {
			begin := time.Now()
			a := n.one(t.Context(), Check{Limit: "api", Key: key, Cost: 1})
			return a, time.Since(begin)
		}
		begin := time.Now()
		for !n.peers.Load().byBoot[bootOf("b")].breaker.isOpen() {
			if _, took := ask(); took != 60*time.Millisecond {
				t.Fatalf("took %v before the breaker opened", took)
			}
		}
		if opened := time.Since(begin); opened < breakAfter || opened > 3*breakAfter {
			t.Errorf("the breaker opened after %v of silence, want a little more than %v", opened, breakAfter)
		}
		for range 1000 {
			if a, took := ask(); took != 0 || !a.Degraded {
				t.Fatalf("%+v after %v, want a degraded answer at once", a, took)
			}
			time.Sleep(time.Millisecond)
		}
		// It is back while nobody asks. All who ask then, at once, are decided.
		p.set("b", func(_ context.Context, _ []bucket.Take, outs []bucket.Outcome) { clear(outs) })
		time.Sleep(2*probeEvery + 60*time.Millisecond)
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() {
				if a, _ := ask(); a.Degraded || a.Node != "b" {
					t.Errorf("%+v, want answers of b again", a)
				}
			})
		}
		all.Wait()
	})
}

// All that were waiting while a process stood still for a moment fail together. That is
// no reason to open the breaker.
func TestOneStallOpensNoBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", silent)
		n := cluster(t, Config{Peers: p, Budget: 60 * time.Millisecond}, "b")
		key := keyOf(t, n, "api", "b")
		var stalled sync.WaitGroup
		for range 100 {
			stalled.Go(func() { n.one(t.Context(), Check{Limit: "api", Key: key, Cost: 1}) })
		}
		stalled.Wait()
		p.set("b", func(_ context.Context, _ []bucket.Take, outs []bucket.Outcome) { clear(outs) })
		if a := n.one(t.Context(), Check{Limit: "api", Key: key, Cost: 1}); a.Degraded {
			t.Errorf("%+v, want b's answer", a)
		}
	})
}

// What the policy local let through is charged to the real bucket in the end.
func TestLocalSpendingIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", failing(errors.New("refused")))
		n := cluster(t, Config{Peers: p}, "b")
		key := keyOf(t, n, "local", "b")
		for range 6 {
			n.one(t.Context(), Check{Limit: "local", Key: key, Cost: 1})
		}
		n.one(t.Context(), Check{Limit: "local", Key: key, Cost: -2})
		time.Sleep(time.Second) // b cannot be charged yet

		b := New(Config{ID: "b", Store: Memory(bucket.New(bucket.Config{Shards: ring.Partitions}))})
		p.set("b", b.Take)
		time.Sleep(time.Second)
		a := n.one(t.Context(), Check{Limit: "local", Key: key})
		if a.Degraded || a.Remaining != 16 {
			t.Errorf("%+v, want b's bucket of 20 without the 4 that were spent", a)
		}
		asked := p.count("b")
		time.Sleep(time.Second)
		if p.count("b") != asked {
			t.Error("what was settled is charged again")
		}
	})
}

func TestGuardBoundsASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, slow atomic.Int64
		slow.Store(1)
		g := Guard(store(func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
			calls.Add(1)
			if slow.Load() == 1 {
				silent(ctx, takes, outs)
			} else {
				clear(outs)
			}
		}), 40*time.Millisecond)
		n := cluster(t, Config{Peers: newPeers(), Store: g, Budget: 40 * time.Millisecond})
		begin := time.Now()
		for range 1000 {
			if a := n.one(t.Context(), Check{Limit: "api", Key: "k", Cost: 1}); !a.Degraded {
				t.Fatal("a silent store has decided")
			}
		}
		// The first few wait, then nobody does.
		if took := time.Since(begin); took > 2*breakAfter || calls.Load() > 10 {
			t.Errorf("1000 checks of a silent store took %v and %d calls", took, calls.Load())
		}
		slow.Store(0)
		time.Sleep(2*probeEvery + 40*time.Millisecond)
		if a := n.one(t.Context(), Check{Limit: "api", Key: "k", Cost: 1}); a.Degraded {
			t.Errorf("the store is back, and a check gets %+v", a)
		}
	})
}

// A client that brings a limit which the store cannot represent is told so, and cannot
// open the breaker for all others.
func TestLimitsBeyondTheStoreAreTheClientsFault(t *testing.T) {
	beyond := fmt.Errorf("%w: too large", bucket.ErrLimit)
	shared := Guard(store(func(_ context.Context, takes []bucket.Take, outs []bucket.Outcome) {
		for i := range takes {
			outs[i] = bucket.Outcome{}
			if takes[i].Key == "beyond" {
				outs[i].Err = beyond
			}
		}
	}), time.Second)
	n := cluster(t, Config{Peers: newPeers(), Store: shared})
	for begin := time.Now(); time.Since(begin) < 2*breakAfter; {
		if a := n.one(t.Context(), Check{Limit: "api", Key: "beyond", Cost: 1}); !errors.Is(a.Err, bucket.ErrLimit) || a.Degraded {
			t.Fatalf("%+v, want the client's own error", a)
		}
	}
	if a := n.one(t.Context(), Check{Limit: "api", Key: "victim", Cost: 1}); a.Err != nil || a.Degraded {
		t.Errorf("another client gets %+v", a)
	}
}

// A node that answers some of a batch in time is there: its breaker stays closed.
func TestBusyNodeKeepsItsBreakerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
			<-ctx.Done()
			setErr(outs, ctx.Err())
			outs[0] = bucket.Outcome{Decision: bucket.Decision{Allowed: true}}
		})
		n := cluster(t, Config{Peers: p, Budget: 10 * time.Millisecond}, "b")
		key := keyOf(t, n, "api", "b")
		checks, answers := []Check{{Limit: "api", Key: key}, {Limit: "api", Key: key}}, make([]Answer, 2)
		const rounds = 100
		for range rounds {
			n.Check(t.Context(), checks, answers)
			if answers[0].Degraded || !answers[1].Degraded {
				t.Fatalf("%+v, want the first decided and the second degraded", answers)
			}
		}
		if got := p.count("b"); got != rounds {
			t.Errorf("asked %d times of %d: the breaker has opened", got, rounds)
		}
	})
}

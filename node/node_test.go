package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
	"github.com/tokenring/tokenring/node/members"
	"github.com/tokenring/tokenring/ring"
)

// peers is a fake of all other nodes: what one of them does is a function of its id.
type peers struct {
	mu    sync.Mutex
	do    map[string]func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome)
	asked map[string]int
}

func newPeers() *peers {
	return &peers{do: map[string]func(context.Context, []bucket.Take, []bucket.Outcome){}, asked: map[string]int{}}
}

func (p *peers) Take(ctx context.Context, to Peer, takes []bucket.Take, outs []bucket.Outcome) {
	p.mu.Lock()
	p.asked[to.ID]++
	do := p.do[to.ID]
	p.mu.Unlock()
	do(ctx, takes, outs)
}

func (p *peers) set(id string, do func(context.Context, []bucket.Take, []bucket.Outcome)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.do[id] = do
}

func (p *peers) count(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[id]
}

// silent is a node that never answers.
func silent(ctx context.Context, _ []bucket.Take, outs []bucket.Outcome) {
	<-ctx.Done()
	setErr(outs, ctx.Err())
}

// failing is a node that fails at once with an error.
func failing(err error) func(context.Context, []bucket.Take, []bucket.Outcome) {
	return func(_ context.Context, _ []bucket.Take, outs []bucket.Outcome) { setErr(outs, err) }
}

const limitsFile = `
limits:
  - {name: api, rate: 0, burst: 20}
  - {name: slow, rate: 1/s, burst: 10}
  - {name: deny, rate: 0, burst: 20, on_failure: deny}
  - {name: local, rate: 0, burst: 20, on_failure: local}
  - {name: redis, rate: 0, burst: 20, on_failure: redis}
  - {name: partners, unlimited: true}
  - {name: banned, burst: 0}
`

// cluster returns a node with a view of itself and others that are all active.
func cluster(t *testing.T, c Config, others ...string) *Node {
	t.Helper()
	set, err := limits.Parse([]byte(limitsFile), limits.Allow)
	if err != nil {
		t.Fatal(err)
	}
	c.ID, c.Limits, c.Logger = "self", set, slog.New(slog.DiscardHandler)
	if c.Store == nil {
		c.Store = Memory(bucket.New(bucket.Config{Shards: ring.Partitions}))
	}
	n := New(c)
	n.Start()
	t.Cleanup(func() {
		for range 2 {
			if err := n.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	n.SetView(view(members.Active, others...))
	return n
}

func view(self members.State, others ...string) members.View {
	v := members.View{{ID: "self", Boot: 1, State: self, Self: true}}
	for i, id := range others {
		v = append(v, members.Member{ID: id, Boot: uint64(i + 2), State: members.Active, Peer: id + ":1"})
	}
	return v
}

// keyOf returns a key whose bucket the node with that id holds.
func keyOf(t *testing.T, n *Node, limit, id string) string {
	t.Helper()
	tab := n.table.Load()
	for i := range 100_000 {
		key := fmt.Sprintf("key-%d", i)
		if at := tab.holderOf(ring.Partition(limit, key)); at != nobody && tab.placement.Members()[at] == id {
			return key
		}
	}
	t.Fatalf("no key is held by %s", id)
	return ""
}

func (n *Node) one(ctx context.Context, c Check) Answer {
	answers := make([]Answer, 1)
	n.Check(ctx, []Check{c}, answers)
	return answers[0]
}

func TestChecksThatNeedNoBucket(t *testing.T) {
	n := cluster(t, Config{Peers: newPeers()})
	for _, c := range []struct {
		name  string
		check Check
		want  Answer
	}{
		{"unlimited", Check{Limit: "partners", Key: "k", Cost: 5}, Answer{Limit: "partners", Unlimited: true, Decision: bucket.Decision{Allowed: true}}},
		{"banned", Check{Limit: "banned", Key: "k", Cost: 1}, Answer{Limit: "banned", Decision: bucket.Decision{RetryAfter: bucket.Never}}},
		{"looking at banned", Check{Limit: "banned", Key: "k"}, Answer{Limit: "banned", Decision: bucket.Decision{Allowed: true}}},
	} {
		c.want.Key, c.want.Node = "k", "self"
		if got := n.one(t.Context(), c.check); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	got := n.one(t.Context(), Check{Limit: "apo", Key: "k", Cost: 1})
	if e, ok := errors.AsType[*UnknownLimitError](got.Err); !ok || e.Name != "apo" || got.Limit != UnknownLimit {
		t.Errorf("an undefined limit: %+v, want an error that names it", got)
	}
	if got := n.one(t.Context(), Check{Key: "k", Cost: 1}); got.Limit != "default" || got.Burst != 10 || got.Remaining != 9 {
		t.Errorf("no limit named: %+v, want the default one", got)
	}
}

func TestInlineLimitsAreTheirFigures(t *testing.T) {
	n := cluster(t, Config{Peers: newPeers()})
	limit := func(tokens, burst int64) bucket.Limit {
		l, err := bucket.NewLimit(tokens, time.Hour, burst)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for i, c := range []struct {
		rule      bucket.Limit
		remaining int64
	}{{limit(1, 5), 4}, {limit(1, 5), 3}, {limit(1, 6), 5}, {limit(2, 5), 4}} {
		got := n.one(t.Context(), Check{Inline: true, Rule: c.rule, Key: "k", Cost: 1, Limit: "not read"})
		if got.Limit != InlineLimit || got.Remaining != c.remaining {
			t.Errorf("check %d: %+v, want %d remaining", i, got, c.remaining)
		}
	}
}

func TestBatchIsGroupedByHolder(t *testing.T) {
	p := newPeers()
	remote := map[string]*Node{}
	for _, id := range []string{"b", "c"} {
		remote[id] = New(Config{ID: id, Store: Memory(bucket.New(bucket.Config{Shards: ring.Partitions}))})
		p.set(id, remote[id].Take)
	}
	n := cluster(t, Config{Peers: p}, "b", "c")
	var checks []Check
	for range 25 { // of each bucket, whose burst is 20
		for _, id := range []string{"self", "b", "c"} {
			checks = append(checks, Check{Limit: "api", Key: keyOf(t, n, "api", id), Cost: 1})
		}
		checks = append(checks, Check{Limit: "apo", Key: "k"}, Check{Limit: "partners", Key: "k", Cost: 1})
	}
	answers := make([]Answer, len(checks))
	n.Check(t.Context(), checks, answers)
	for i, a := range answers {
		round, id := i/5, []string{"self", "b", "c", "self", "self"}[i%5]
		switch {
		case a.Node != id || a.Key != checks[i].Key || a.Degraded:
			t.Fatalf("answer %d: %+v, want one by %s", i, a, id)
		case i%5 == 3 && a.Err == nil || i%5 == 4 && !a.Allowed:
			t.Errorf("answer %d: %+v", i, a)
		case i%5 < 3 && (a.Allowed != (round < 20) || a.Remaining != int64(max(0, 19-round))):
			t.Errorf("check %d of the bucket at %s: %+v: not decided in order", round, id, a)
		}
	}
	if p.count("b") != 1 || p.count("c") != 1 {
		t.Errorf("asked b %d and c %d times, want one message each", p.count("b"), p.count("c"))
	}
}

// Another node's check is decided here whatever this node thinks of the cluster.
func TestTakeNeverForwards(t *testing.T) {
	p := newPeers()
	n := cluster(t, Config{Peers: p}, "b")
	l, err := bucket.NewLimit(0, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	outs := make([]bucket.Outcome, 1)
	n.Take(t.Context(), []bucket.Take{{Name: "api", Key: keyOf(t, n, "api", "b"), Limit: l, Cost: 1}}, outs)
	if outs[0].Err != nil || !outs[0].Allowed || p.count("b") != 0 {
		t.Errorf("%+v after asking b %d times, want a decision made here", outs[0], p.count("b"))
	}
}

func TestLostConnectionIsAskedOnceMore(t *testing.T) {
	p := newPeers()
	n := cluster(t, Config{Peers: p}, "b", "c")
	key := keyOf(t, n, "api", "b")
	answered := func(_ context.Context, _ []bucket.Take, outs []bucket.Outcome) {
		for i := range outs {
			outs[i] = bucket.Outcome{Decision: bucket.Decision{Allowed: true, Burst: 20, Remaining: 7}}
		}
	}

	t.Run("of the same node", func(t *testing.T) {
		p.set("b", func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
			if p.count("b") == 1 {
				setErr(outs, fmt.Errorf("stream: %w", ErrLost))
				return
			}
			answered(ctx, takes, outs)
		})
		if a := n.one(t.Context(), Check{Limit: "api", Key: key, Cost: 1}); a.Degraded || a.Node != "b" || a.Remaining != 7 {
			t.Errorf("%+v, want b's second answer", a)
		}
	})
	t.Run("of who holds it now", func(t *testing.T) {
		p.set("b", func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
			n.SetView(view(members.Active, "c")) // b is found dead in this moment
			setErr(outs, ErrLost)
		})
		p.set("c", answered)
		a := n.one(t.Context(), Check{Limit: "api", Key: key, Cost: 1})
		if a.Degraded || a.Node == "b" || !a.Allowed {
			t.Errorf("%+v, want the answer of a survivor", a)
		}
	})
	t.Run("and then no more", func(t *testing.T) {
		n.SetView(view(members.Active, "b"))
		before := p.count("b")
		p.set("b", failing(ErrLost))
		a := n.one(t.Context(), Check{Limit: "api", Key: keyOf(t, n, "api", "b"), Cost: 1})
		if !a.Degraded || !a.Allowed || p.count("b") != before+2 {
			t.Errorf("%+v after asking %d times, want the failure policy after 2", a, p.count("b")-before)
		}
	})
}

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
		for range 3 * breakerFailures {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if a := n.one(ctx, Check{Limit: "api", Key: key, Cost: 1}); !errors.Is(a.Err, context.DeadlineExceeded) || a.Degraded {
				t.Fatalf("%+v, want the caller's own error", a)
			}
			cancel()
		}
		if got := p.count("b"); got != 3*breakerFailures {
			t.Errorf("asked %d times of %d: the breaker has opened for callers that gave up", got, 3*breakerFailures)
		}
	})
}

func TestBreakerSparesTheWaitAndLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.set("b", silent)
		n := cluster(t, Config{Peers: p, Budget: 100 * time.Millisecond}, "b")
		key := keyOf(t, n, "api", "b")
		ask := func() (Answer, time.Duration) {
			begin := time.Now()
			a := n.one(t.Context(), Check{Limit: "api", Key: key, Cost: 1})
			return a, time.Since(begin)
		}
		for range breakerFailures {
			if _, took := ask(); took != 100*time.Millisecond {
				t.Fatalf("took %v before the breaker opened", took)
			}
		}
		for range 50 {
			if a, took := ask(); took != 0 || !a.Degraded {
				t.Fatalf("%+v after %v, want a degraded answer at once", a, took)
			}
		}
		asked := p.count("b")
		time.Sleep(breakerPause + time.Millisecond)
		var waits sync.WaitGroup
		for range 20 {
			waits.Go(func() { ask() })
		}
		waits.Wait()
		if got := p.count("b") - asked; got != 1 {
			t.Errorf("%d checks tried the silent node after the pause, want 1", got)
		}
		p.set("b", func(_ context.Context, _ []bucket.Take, outs []bucket.Outcome) { clear(outs) })
		time.Sleep(breakerPause + time.Millisecond)
		for range 3 {
			if a, _ := ask(); a.Degraded || a.Node != "b" {
				t.Fatalf("%+v, want answers of b again", a)
			}
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

func TestReadiness(t *testing.T) {
	p := newPeers()
	p.set("b", failing(errors.New("refused")))
	n := cluster(t, Config{Peers: p}, "b")
	for _, c := range []struct {
		view members.View
		want string
	}{
		{view(members.Joining), "joining the cluster"},
		{view(members.Joining, "b"), "joining the cluster"},
		{view(members.Active, "b"), ""},
		{view(members.Active), ""},
		{view(members.Leaving, "b"), "leaving the cluster"},
		{view(members.Leaving), "leaving the cluster"},
	} {
		n.SetView(c.view)
		if got := n.NotReady(); got != c.want {
			t.Errorf("%+v: not ready because %q, want %q", c.view, got, c.want)
		}
	}
	// The last node goes on deciding while it leaves; a joining one leaves it to a policy.
	if a := n.one(t.Context(), Check{Limit: "api", Key: "k", Cost: 1}); a.Degraded {
		t.Errorf("the last node, leaving: %+v", a)
	}
	n.SetView(view(members.Joining))
	if a := n.one(t.Context(), Check{Limit: "api", Key: "k", Cost: 1}); !a.Degraded || !a.Allowed {
		t.Errorf("a lone node, joining: %+v, want a degraded answer", a)
	}
}

func TestTableFollowsTheView(t *testing.T) {
	n := cluster(t, Config{Peers: newPeers()}, "b", "c")
	before := n.table.Load()
	v := view(members.Active, "b", "c", "d")
	v[2].Boot = 99            // c has started again
	v[3].State = members.Dead // d is gone
	v = append(v, members.Member{ID: "b", Boot: 77, State: members.Active, Peer: "b:2"})
	n.SetView(v)
	after := n.table.Load()
	if got := strings.Join(after.placement.Members(), " "); got != "b c self" {
		t.Fatalf("placed on %q, want b c self", got)
	}
	if after.peers[0] != before.peers[0] {
		t.Error("b has not changed, and what was known of it is lost")
	}
	if after.peers[1] == before.peers[1] || after.peers[1].Boot != 99 {
		t.Error("c has started again, and is taken for the old one")
	}
	if ring.Moved(before.placement, after.placement) != 0 {
		t.Error("partitions moved although the ids are the same")
	}
}

func TestSharedStoreNeedsNobodyElse(t *testing.T) {
	n := cluster(t, Config{Peers: newPeers(), Shared: true}, "b", "c")
	for i := range 100 {
		if a := n.one(t.Context(), Check{Limit: "api", Key: fmt.Sprint(i), Cost: 1}); a.Node != "self" || a.Degraded {
			t.Fatalf("%+v, want this node's answer", a)
		}
	}
	if got := n.Partitions(); got["self"] != ring.Partitions {
		t.Errorf("partitions %v, want all here", got)
	}
}

func TestGuardBoundsASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		g := Guard(store(func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
			calls++
			silent(ctx, takes, outs)
		}), 40*time.Millisecond)
		begin := time.Now()
		outs := make([]bucket.Outcome, 3)
		for range breakerFailures + 10 {
			g.Take(t.Context(), make([]bucket.Take, 3), outs)
			if outs[2].Err == nil {
				t.Fatal("a silent store has decided")
			}
		}
		if took := time.Since(begin); took != breakerFailures*40*time.Millisecond || calls != breakerFailures {
			t.Errorf("%d calls in %v, want %d and then none", calls, took, breakerFailures)
		}
	})
}

func BenchmarkCheckLocal(b *testing.B) {
	n := New(Config{ID: "self", Store: Memory(bucket.New(bucket.Config{Shards: ring.Partitions})), Logger: slog.New(slog.DiscardHandler)})
	n.SetView(view(members.Active))
	checks, answers := []Check{{Key: "203.0.113.9", Cost: 1}}, make([]Answer, 1)
	b.ReportAllocs()
	for b.Loop() {
		n.Check(b.Context(), checks, answers)
	}
}

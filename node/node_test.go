package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

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

func BenchmarkCheckLocal(b *testing.B) {
	n := New(Config{ID: "self", Store: Memory(bucket.New(bucket.Config{Shards: ring.Partitions})), Logger: slog.New(slog.DiscardHandler)})
	n.SetView(view(members.Active))
	checks, answers := []Check{{Key: "203.0.113.9", Cost: 1}}, make([]Answer, 1)
	b.ReportAllocs()
	for b.Loop() {
		n.Check(b.Context(), checks, answers)
	}
}

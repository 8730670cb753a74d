package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/limits"
	"github.com/tokenring/tokenring/ring"
)

// fakePeers is a fake of all other nodes: what one of them does is a function of its id.
type fakePeers struct {
	mu    sync.Mutex
	do    map[string]func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome)
	asked map[string]int
}

func newPeers() *fakePeers {
	return &fakePeers{do: map[string]func(context.Context, []bucket.Take, []bucket.Outcome){}, asked: map[string]int{}}
}

func (p *fakePeers) Take(ctx context.Context, to Peer, takes []bucket.Take, outs []bucket.Outcome) {
	p.mu.Lock()
	p.asked[to.ID]++
	do := p.do[to.ID]
	p.mu.Unlock()
	do(ctx, takes, outs)
}

func (p *fakePeers) set(id string, do func(context.Context, []bucket.Take, []bucket.Outcome)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.do[id] = do
}

func (p *fakePeers) count(id string) int {
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

// cluster returns a node that shares the partitions with others.
func cluster(t *testing.T, c Config, others ...string) *Node {
	t.Helper()
	set, err := limits.Parse([]byte(limitsFile), limits.Allow)
	if err != nil {
		t.Fatal(err)
	}
	shared := c.Store != nil // a test that brings its store has one for all nodes
	c.ID, c.Boot, c.Limits, c.Logger = "self", bootOf("self"), set, slog.New(slog.DiscardHandler)
	if !shared {
		c.Store = Memory(bucket.New(bucket.Config{Shards: ring.Partitions}))
		c.Holders = newHolders()
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
	if !shared {
		place(n, others...)
	}
	return n
}

// holders is a fake of Holders: placement, but for the partitions that have moved.
type holders struct {
	placer *ring.Placer

	mu        sync.Mutex
	placement *ring.Placement
	moved     map[int]authority.Epoch
	missed    map[int]authority.Epoch
	changed   chan struct{}
}

func newHolders() *holders {
	return &holders{placer: ring.NewPlacer(), moved: map[int]authority.Epoch{}, missed: map[int]authority.Epoch{}, changed: make(chan struct{})}
}

func (h *holders) Route(partition int) authority.Route {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := authority.Route{Partition: partition}
	if e, ok := h.moved[partition]; ok {
		r.To, r.Epoch = e.Boot, e
	} else if at := h.placement.Owner(partition); at >= 0 {
		r.To = bootOf(h.placement.Members()[at])
	}
	return r
}

func (h *holders) Missed(partition int, named authority.Epoch) {
	h.mu.Lock()
	h.missed[partition] = named
	newer := named.After(h.moved[partition])
	h.mu.Unlock()
	if newer {
		h.move(partition, named)
	}
}

func (h *holders) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *holders) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *holders) move(partition int, e authority.Epoch) {
	h.change(func() { h.moved[partition] = e })
}

// bootOf is the boot of a node.
func bootOf(id string) uint64 { return uint64(id[0]) }

// place makes a node share the partitions with others.
func place(n *Node, others ...string) {
	h := n.holders.(*holders)
	h.change(func() { h.placement = h.placer.Place(append([]string{"self"}, others...)) })
	var peers []Peer
	for _, id := range others {
		peers = append(peers, Peer{ID: id, Boot: bootOf(id), Addr: id + ":1"})
	}
	n.SetPeers(peers, 1+len(others))
}

// keyOf returns a key whose checks go to the node with that id.
func keyOf(t *testing.T, n *Node, limit, id string) string {
	t.Helper()
	for i := range 100_000 {
		key := fmt.Sprintf("key-%d", i)
		if n.holders.Route(ring.Partition(limit, key)).To == bootOf(id) {
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
			place(n, "c") // b is found dead in this moment
			setErr(outs, ErrLost)
		})
		p.set("c", answered)
		a := n.one(t.Context(), Check{Limit: "api", Key: key, Cost: 1})
		if a.Degraded || a.Node == "b" || !a.Allowed {
			t.Errorf("%+v, want the answer of a survivor", a)
		}
	})
	t.Run("and then no more", func(t *testing.T) {
		place(n, "b")
		before := p.count("b")
		p.set("b", failing(ErrLost))
		a := n.one(t.Context(), Check{Limit: "api", Key: keyOf(t, n, "api", "b"), Cost: 1})
		if !a.Degraded || !a.Allowed || p.count("b") != before+2 {
			t.Errorf("%+v after asking %d times, want the failure policy after 2", a, p.count("b")-before)
		}
	})
}

func TestWhatIsKnownOfAPeerStays(t *testing.T) {
	n := cluster(t, Config{Peers: newPeers()}, "b", "c")
	before := n.peers.Load()
	n.SetPeers([]Peer{{ID: "b", Boot: bootOf("b"), Addr: "b:1"}, {ID: "c", Boot: 1000, Addr: "c:1"}}, 3)
	after := n.peers.Load()
	if after.byBoot[bootOf("b")] != before.byBoot[bootOf("b")] {
		t.Error("b has not changed, and what was known of it is lost")
	}
	if c := after.byBoot[1000]; c == nil || c == before.byBoot[bootOf("c")] || len(after.byBoot) != 2 {
		t.Error("c has started again, and is taken for the old one")
	}
}

func TestSharedStoreNeedsNobodyElse(t *testing.T) {
	n := cluster(t, Config{Peers: newPeers(), Store: Memory(bucket.New(bucket.Config{Shards: ring.Partitions}))})
	for i := range 100 {
		if a := n.one(t.Context(), Check{Limit: "api", Key: fmt.Sprint(i), Cost: 1}); a.Node != "self" || a.Degraded {
			t.Fatalf("%+v, want this node's answer", a)
		}
	}
}

func BenchmarkCheckLocal(b *testing.B) {
	n := New(Config{
		ID: "self", Boot: bootOf("self"), Holders: newHolders(),
		Store: Memory(bucket.New(bucket.Config{Shards: ring.Partitions})), Logger: slog.New(slog.DiscardHandler),
	})
	place(n)
	checks, answers := []Check{{Key: "203.0.113.9", Cost: 1}}, make([]Answer, 1)
	b.ReportAllocs()
	for b.Loop() {
		n.Check(b.Context(), checks, answers)
	}
}

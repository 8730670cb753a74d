// Package node decides checks: here, if this node holds the key's partition, or by
// asking the node that does.
//
//	client -> front end (transport) -> Node.Check
//	    1. limit    resolve the limit's name, once; the rule travels with the check
//	    2. place    partition = hash(limit, key); who holds it is read from a table
//	    3. decide   held here: Store.Take; else one message to the holder, which takes
//	    4. fail     nobody answered in the time budget: the failure policy does
//	<- Answer
//
// Checks of one call are grouped by holder, so a batch costs one message for each node
// that has to be asked, and checks of one bucket stay in their order. A node that is
// asked by another one takes at once and never looks at the table: a check makes one hop
// at the most, whatever two nodes think of the cluster.
//
// The table is immutable and swapped in whole for each new picture of the cluster; no
// lock lies in the way of a check. holderOf is the one place that says who decides. For
// now that is placement.
//
// A check is charged once. It is asked a second time only when the connection ended
// before the answer: that can charge twice, but never allow twice.
package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
	"github.com/tokenring/tokenring/node/members"
	"github.com/tokenring/tokenring/ring"
)

// A Store decides takes: outs[i] for takes[i].
type Store interface {
	Take(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome)
}

// A Peer is another node, in one of its runs.
type Peer struct {
	ID   string
	Boot uint64
	Addr string // host:port of its peer port
}

// Peers asks other nodes: outs[i] for takes[i]. The deadline of ctx is the time budget.
// An outcome whose Err is ErrLost may have been charged.
type Peers interface {
	Take(ctx context.Context, to Peer, takes []bucket.Take, outs []bucket.Outcome)
}

// ErrLost says that the connection to a node ended after it was asked and before it
// answered.
var ErrLost = errors.New("connection lost before the answer")

// ErrDown says that a node was not asked, since it cannot be reached.
var ErrDown = errors.New("not connected")

var errNoHolder = errors.New("no node holds the partition")

// Config says what a node is made of. Zero values stand for the defaults.
type Config struct {
	ID     string
	Store  Store // decides what this node holds
	Shared bool  // the store is one for all nodes, so every node decides everything
	Peers  Peers
	Redis  Store // for the policy redis; nil if no limit has it

	Limits       *limits.Set   // limits.Default
	InlinePolicy limits.Policy // failure policy of limits that checks bring along
	Budget       time.Duration // for asking another node, and the policy redis; 100 ms
	MaxKeys      int           // buckets of the policy local, and keys that it owes; 1 000 000
	Metrics      prometheus.Registerer
	Logger       *slog.Logger
}

// Node decides checks. All its methods may be called at once.
type Node struct {
	config  Config
	rules   *limits.Set
	table   atomic.Pointer[table]
	placer  *ring.Placer // belongs to SetView
	local   *locally
	metrics *metrics
	batches sync.Pool

	stop      chan struct{}
	running   sync.WaitGroup
	closeOnce sync.Once
}

// New returns a node that has not heard of any member yet. Start runs its upkeep.
func New(c Config) *Node {
	if c.Limits == nil {
		c.Limits = limits.Default(limits.Allow)
	}
	if c.Budget == 0 {
		c.Budget = 100 * time.Millisecond
	}
	n := &Node{
		config:  c,
		rules:   c.Limits,
		placer:  ring.NewPlacer(),
		local:   newLocally(c.MaxKeys),
		metrics: newMetrics(c.Metrics, c.Limits),
		batches: sync.Pool{New: func() any { return new(batch) }},
		stop:    make(chan struct{}),
	}
	n.table.Store(&table{placement: n.placer.Place(nil), self: nobody, selfID: c.ID})
	n.metrics.observe(n)
	return n
}

// Start runs what goes on beside the checks, until Close.
func (n *Node) Start() {
	n.local.buckets.Start()
	n.running.Go(n.settle)
	n.running.Go(n.revive)
}

// Close ends what Start began and waits for it. It may be called twice.
func (n *Node) Close(ctx context.Context) error {
	n.closeOnce.Do(func() { close(n.stop) })
	n.running.Wait()
	return n.local.buckets.Close(ctx)
}

// Take decides for other nodes, without looking at who should: one hop and no more.
func (n *Node) Take(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	for i := range takes {
		takes[i].Partition = ring.Partition(takes[i].Name, takes[i].Key)
	}
	n.config.Store.Take(ctx, takes, outs)
}

// Later decides what Take could not decide at once.
func (n *Node) Later(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	n.Take(ctx, takes, outs)
}

// SetView makes the node follow a new picture of the cluster. Calls must not overlap.
func (n *Node) SetView(v members.View) {
	old := n.table.Load()
	next := n.tableFor(v, old)
	n.table.Store(next)
	if moved := ring.Moved(old.placement, next.placement); moved > 0 {
		n.config.Logger.Info("placement changed", "members", next.placement.Members(), "partitions_moved", moved)
	}
}

// NotReady says why no load balancer should send checks here, or "".
func (n *Node) NotReady() string {
	t := n.table.Load()
	switch {
	case t.state == members.Leaving:
		return "leaving the cluster"
	case t.state != members.Active:
		return "joining the cluster"
	case t.self == nobody:
		return "waiting for partitions"
	}
	return ""
}

// Partitions returns how many partitions are placed on each id.
func (n *Node) Partitions() map[string]int {
	p := n.table.Load().placement
	counts := make(map[string]int, len(p.Members()))
	for i, id := range p.Members() {
		counts[id] = p.Count(i)
	}
	return counts
}

// Memory makes a Store of buckets in memory.
func Memory(s *bucket.Store) Store { return memory{s} }

type memory struct{ buckets *bucket.Store }

func (m memory) Take(_ context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	for i := range takes {
		outs[i] = m.buckets.Take(&takes[i])
	}
}

// Package node decides checks: here, if this node holds the key's partition, or by asking
// the node that does.
//
//	client -> front end (transport) -> Node.Check
//	    1. limit    resolve the limit's name, once; the rule travels with the check
//	    2. place    partition = hash(limit, key); Holders.Route says who is asked
//	    3. decide   held here: Store.Take; else one message to the holder, which takes
//	    4. fail     nobody decided in the time budget: the failure policy does
//	<- Answer
//
// Checks of one call are grouped by the node that they go to, so a batch costs one message
// for each node that has to be asked, and checks of one bucket stay in their order. A route
// is one atomic read; no lock lies in the way of a check.
//
// Partitions move. A node that does not hold one charges nothing and names the epoch of
// whoever does, as far as it knows; the asker follows only a newer epoch than the one it
// went by, so a check never circles. What nobody can decide for a moment (the partition is
// being handed over, its holder has died, nobody has claimed it yet) waits for the next
// change of its route or role, within its time budget.
//
// A check is charged once. It is asked a second time only when the connection ended before
// the answer: that can charge twice, but never allow twice. An answer to an open check
// counts, whoever holds the partition by then.
package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
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
	ID      string
	Boot    uint64
	Store   Store   // decides what this node holds
	Holders Holders // nil if the store is one for all nodes, so that every node decides
	Peers   Peers
	Redis   Store // for the policy redis; nil if no limit has it

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
	holders Holders
	peers   atomic.Pointer[peers]
	local   *locally
	metrics *metrics
	batches sync.Pool

	stop      chan struct{}
	running   sync.WaitGroup
	closeOnce sync.Once
}

// New returns a node that knows no other. Start runs its upkeep.
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
		holders: c.Holders,
		local:   newLocally(c.MaxKeys),
		metrics: newMetrics(c.Metrics, c.Limits),
		batches: sync.Pool{New: func() any { return new(batch) }},
		stop:    make(chan struct{}),
	}
	if n.holders == nil {
		n.holders = everything{c.Boot}
	}
	n.peers.Store(&peers{nodes: 1})
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

// Memory makes a Store of buckets in memory.
func Memory(s *bucket.Store) Store { return memory{s} }

type memory struct{ buckets *bucket.Store }

func (m memory) Take(_ context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	var refused []int // takes whose partition decides nothing: for the order's sake, no later one either
	for i := range takes {
		at := slices.IndexFunc(refused, func(j int) bool { return takes[j].Partition == takes[i].Partition })
		if at >= 0 {
			outs[i] = outs[refused[at]]
			continue
		}
		if outs[i] = m.buckets.Take(&takes[i]); outs[i].Err != nil {
			refused = append(refused, i)
		}
	}
}

package node

import (
	"context"
	"fmt"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/ring"
)

// Holders says who holds partitions.
type Holders interface {
	// Route returns where checks of a partition go: 0 is nobody.
	Route(partition int) authority.Route
	// Missed says that a check was asked of another node that does not hold the partition,
	// and the epoch that it named; or of this node, and no epoch.
	Missed(partition int, named authority.Epoch)
	// Changed returns a channel that is closed when a route or a role changes.
	Changed() <-chan struct{}
}

// everything is the holder of a node whose store is one for all nodes.
type everything struct{ self uint64 }

func (e everything) Route(partition int) authority.Route {
	return authority.Route{Partition: partition, To: e.self}
}
func (everything) Missed(int, authority.Epoch) {}
func (everything) Changed() <-chan struct{}    { return nil }

// A MovedError says that the asked node does not hold the partition, and in which epoch it
// is held as far as it knows. Nothing was charged.
type MovedError struct{ To authority.Epoch }

func (e *MovedError) Error() string {
	return fmt.Sprintf("the partition is not held here, but in epoch %v", e.To)
}

// peers are the other nodes, by boot. They never change.
type peers struct {
	byBoot map[uint64]*peer
	nodes  int // that a limit is shared by under the policy local
	// version grows with each picture. It is the version of this node's shares of limits.
	version uint64
}

// A peer is another node with what is known of how it answers.
type peer struct {
	Peer
	breaker *breaker
	counts  forwardCounts
}

// SetPeers names the other nodes, and how many nodes share what is to be decided. Calls must
// not overlap.
func (n *Node) SetPeers(named []Peer, nodes int) {
	old := n.peers.Load()
	next := &peers{byBoot: make(map[uint64]*peer, len(named)), nodes: max(nodes, 1), version: old.version + 1}
	for _, p := range named {
		if known := old.byBoot[p.Boot]; known != nil && known.Peer == p {
			next.byBoot[p.Boot] = known
		} else {
			next.byBoot[p.Boot] = &peer{Peer: p, breaker: newBreaker(max(n.config.Budget, breakAfter)), counts: n.metrics.forwardsTo(p.ID)}
		}
	}
	n.peers.Store(next)
}

// idOf returns the id of a boot; of nobody it is this node's, since the failure policy
// answers here.
func (n *Node) idOf(boot uint64) string {
	if p := n.peers.Load().byBoot[boot]; p != nil {
		return p.ID
	}
	return n.config.ID
}

// Take decides for other nodes what this node holds, and names the epoch of whoever holds
// the rest. What it is about to hold or to hand over is left to Later, with ErrFrozen.
func (n *Node) Take(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	for i := range takes {
		takes[i].Partition = ring.Partition(takes[i].Name, takes[i].Key)
	}
	n.takeHere(ctx, takes, outs)
	for i := range outs {
		if outs[i].Err != bucket.ErrNotHeld {
			continue
		}
		if r := n.holders.Route(takes[i].Partition); r.To == n.config.Boot {
			outs[i].Err = bucket.ErrFrozen
		} else {
			outs[i].Err = &MovedError{r.Epoch}
		}
	}
}

// Later waits until what Take has left to it can be decided, or ctx ends.
func (n *Node) Later(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	for i := range outs {
		outs[i].Err = bucket.ErrFrozen
	}
	var again group
	for {
		changed := n.holders.Changed()
		again.reset(n.config.Boot)
		for i := range takes {
			if outs[i].Err == bucket.ErrFrozen {
				again.add(authority.Route{}, i, takes[i])
			}
		}
		n.Take(ctx, again.takes, again.outs)
		waiting := false
		for j, i := range again.index {
			outs[i] = again.outs[j]
			waiting = waiting || outs[i].Err == bucket.ErrFrozen
		}
		if !waiting {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// takeHere asks this node's store, and says if it was asked for what it does not hold but
// should.
func (n *Node) takeHere(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	n.config.Store.Take(ctx, takes, outs)
	for i := range outs {
		if outs[i].Err == bucket.ErrNotHeld {
			n.holders.Missed(takes[i].Partition, authority.Epoch{})
		}
	}
}

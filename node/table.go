package node

import (
	"slices"

	"github.com/tokenring/tokenring/node/members"
	"github.com/tokenring/tokenring/ring"
)

// nobody is the position of a holder that does not exist.
const nobody = -1

// A table says who decides for each partition. It never changes.
type table struct {
	placement *ring.Placement
	peers     []*peer // by position in the placement; nil for this node
	self      int     // this node's position, or nobody
	selfID    string
	state     members.State // of this node
	// version grows with each table. It is the version of this node's shares of limits,
	// which depend on how many nodes there are.
	version uint64
}

// A peer is another node that partitions are placed on, with what is known of how it
// answers.
type peer struct {
	Peer
	breaker *breaker
	counts  forwardCounts
}

// holderOf returns the position of the node that decides for a partition, or nobody.
func (t *table) holderOf(partition int) int { return t.placement.Owner(partition) }

// isSelf reports whether a holder is this node.
func (t *table) isSelf(holder int) bool { return holder != nobody && holder == t.self }

// idOf returns the id of the node at a position; of nobody it is this node's, since the
// failure policy answers here.
func (t *table) idOf(holder int) string {
	if holder == nobody || t.isSelf(holder) {
		return t.selfID
	}
	return t.peers[holder].ID
}

// tableFor builds the table for a picture of the cluster, keeping the peers that it has
// in common with the old one.
func (n *Node) tableFor(v members.View, old *table) *table {
	self := v.Self()
	byID := map[string]members.Member{}
	for _, m := range v {
		// Of two boots with one id the lower one stays, if both live at all.
		if other, ok := byID[m.ID]; m.State == members.Active && (!ok || m.Boot < other.Boot) {
			byID[m.ID] = m
		}
	}
	// A store that all nodes share needs no other node to decide, and the last node goes
	// on deciding while it leaves.
	if n.config.Shared && self.State >= members.Active || len(byID) == 0 && self.State == members.Leaving {
		byID = map[string]members.Member{self.ID: self}
	}
	ids := make([]string, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	t := &table{placement: n.placer.Place(ids), self: nobody, selfID: self.ID, state: self.State, version: old.version + 1}
	for i, id := range t.placement.Members() {
		m := byID[id]
		if m.Self {
			t.self = i
			t.peers = append(t.peers, nil)
			continue
		}
		p := Peer{ID: m.ID, Boot: m.Boot, Addr: m.Peer}
		at := slices.IndexFunc(old.peers, func(o *peer) bool { return o != nil && o.Peer == p })
		if at >= 0 {
			t.peers = append(t.peers, old.peers[at])
		} else {
			t.peers = append(t.peers, &peer{Peer: p, breaker: newBreaker(), counts: n.metrics.forwardsTo(p.ID)})
		}
	}
	return t
}

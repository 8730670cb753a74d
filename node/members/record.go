package members

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// entry is a member as memberlist last described it.
type entry struct {
	Member
	since time.Time // of being dead
}

// record is what memberlist has told, written by its callbacks and read by Members. Its
// lock is held for moments only, since callbacks run under memberlist's own.
type record struct {
	changed chan struct{} // poked when there is something new; holds one

	mu      sync.Mutex // guards what follows
	self    meta
	others  map[string]entry // by memberlist's name
	refusal error            // the last, of a node that cannot be in one cluster with this
	met     bool             // the cluster, or known to be alone
	cleared bool             // to become active

	// Boots with this node's own id that others listed when they exchanged states with it.
	// Memberlist itself does not tell a joining node of those that are suspected, which
	// may live or not.
	namesakes map[uint64]Member
	heard     map[uint64]Member // in the present round of exchanges
}

func (r *record) init(self meta) {
	r.changed = make(chan struct{}, 1)
	r.self = self
	r.others = map[string]entry{}
	r.namesakes, r.heard = map[uint64]Member{}, map[uint64]Member{}
}

func (r *record) poke() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// name is what memberlist calls this node.
func (r *record) name() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%s@%016x", r.self.ID, r.self.Boot)
}

func (r *record) state() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.self.State
}

// advance moves this node's state forward and reports whether that is a change.
func (r *record) advance(s State) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s <= r.self.State {
		return false
	}
	r.self.State = s
	r.poke()
	return true
}

func (r *record) encode(limit int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.self.encode(limit)
}

func (r *record) lastRefusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusal
}

// meet notes that this node has met the cluster.
func (r *record) meet() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.met {
		r.met = true
		r.poke()
	}
}

func (r *record) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleared = true
}

func (r *record) hasMet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.met
}

// beginRound and endRound enclose exchanges with others, after which only those boots of
// this node's id count that were listed again.
func (r *record) beginRound() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = map[uint64]Member{}
}

func (r *record) endRound() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.namesakes) > len(r.heard) {
		r.poke()
	}
	r.namesakes = maps.Clone(r.heard)
}

// rivals returns the boots with this node's id that may live.
func (r *record) rivals() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(r.namesakes)
	for _, e := range r.others {
		if e.ID != r.self.ID {
			continue
		}
		if delete(all, e.Boot); e.State != Dead {
			all[e.Boot] = e.Member
		}
	}
	return slices.Collect(maps.Values(all))
}

// view returns the picture: this node, then the others in order. Of the dead boots of an
// id the last is shown, and none once another boot lives.
func (r *record) view() View {
	r.mu.Lock()
	defer r.mu.Unlock()
	shown := map[string]entry{} // dead ones, by id
	living := map[string]bool{r.self.ID: true}
	v := View{{ID: r.self.ID, Boot: r.self.Boot, State: r.self.State, Peer: r.self.Peer, Self: true, Cleared: r.cleared}}
	for name, e := range r.others {
		switch {
		case e.State != Dead:
			living[e.ID] = true
			v = append(v, e.Member)
		case time.Since(e.since) > deadMemory:
			delete(r.others, name)
		case shown[e.ID].since.Before(e.since):
			shown[e.ID] = e
		}
	}
	for id, e := range shown {
		if !living[id] {
			v = append(v, e.Member)
		}
	}
	slices.SortFunc(v[1:], func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Boot, b.Boot))
	})
	return v
}

// living returns the gossip addresses of the members that are not dead.
func (r *record) living() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	living := map[string]bool{}
	for _, e := range r.others {
		if e.State != Dead {
			living[e.Gossip] = true
		}
	}
	return living
}

// lost returns those of the members that are.
func (r *record) lost() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lost []string
	for _, e := range r.others {
		if e.State == Dead {
			lost = append(lost, e.Gossip)
		}
	}
	return lost
}

func (r *record) put(n *memberlist.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := decodeMeta(n.Meta)
	if err != nil || m.Boot == r.self.Boot {
		return // the admission logged it; or it is this node itself
	}
	r.others[n.Name] = entry{Member: Member{
		ID: m.ID, Boot: m.Boot, State: m.State, Peer: m.Peer,
		Gossip: net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port))),
	}}
	r.poke()
}

func (r *record) remove(n *memberlist.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.others[n.Name]
	switch {
	case !ok:
		return
	case e.State == Leaving:
		delete(r.others, n.Name)
	default:
		e.State, e.since = Dead, time.Now()
		r.others[n.Name] = e
	}
	r.poke()
}

// admit returns why a node cannot be in this cluster, or nil.
func (r *record) admit(n *memberlist.Node) error {
	other, err := decodeMeta(n.Meta)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if refusal := r.self.refuse(other); refusal != nil {
		r.refusal = refusal
		r.poke()
		return refusal
	}
	return nil
}

// exchanged notes what another node has listed in an exchange of states. That is what it
// takes to have met the cluster: gossip alone leaves out whom it suspects.
func (r *record) exchanged(nodes []*memberlist.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range nodes {
		m, err := decodeMeta(n.Meta)
		gone := n.State != memberlist.StateAlive && n.State != memberlist.StateSuspect
		if err != nil || gone || m.ID != r.self.ID || m.Boot == r.self.Boot {
			continue
		}
		other := Member{ID: m.ID, Boot: m.Boot, State: m.State, Peer: m.Peer}
		r.namesakes[m.Boot], r.heard[m.Boot] = other, other
	}
	r.met = true
	r.poke()
}

// The delegates are the record's faces towards memberlist.
type (
	metaDelegate  record
	eventDelegate record
	admission     record
)

func (d *metaDelegate) NodeMeta(limit int) []byte {
	// Start has made sure that it fits; only the state changes later.
	data, err := (*record)(d).encode(limit)
	if err != nil {
		return nil
	}
	return data
}

func (d *metaDelegate) NotifyMsg([]byte)                  {}
func (d *metaDelegate) GetBroadcasts(int, int) [][]byte   { return nil }
func (d *metaDelegate) LocalState(bool) []byte            { return nil }
func (d *metaDelegate) MergeRemoteState([]byte, bool)     {}
func (d *eventDelegate) NotifyJoin(n *memberlist.Node)    { (*record)(d).put(n) }
func (d *eventDelegate) NotifyUpdate(n *memberlist.Node)  { (*record)(d).put(n) }
func (d *eventDelegate) NotifyLeave(n *memberlist.Node)   { (*record)(d).remove(n) }
func (d *admission) NotifyAlive(n *memberlist.Node) error { return (*record)(d).admit(n) }

func (d *admission) NotifyMerge(nodes []*memberlist.Node) error {
	for _, n := range nodes {
		if err := (*record)(d).admit(n); err != nil {
			return err
		}
	}
	(*record)(d).exchanged(nodes)
	return nil
}

package authority

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// A simulation plays a random schedule over a few nodes: each has its Machine, and a store
// in which a partition is a vector of how much each boot has spent, so that copies and
// merges can be told exactly. Streams are queues that may break; gossip is late and
// different at every node.
type simulation struct {
	rand   *rand.Rand
	faults faults
	now    time.Duration
	next   uint64 // boot
	purses uint64
	nodes  map[uint64]*simNode
	links  map[[2]uint64]*simLink
	cut    map[[2]uint64]bool // pairs that cannot reach each other
	spent  []spending         // by partition, the truth
	floor  []spending         // what must not be lost by the crash
	epochs []Epoch            // newest so far
	trace  []string
	err    error

	crashed, split, broken, quiet bool // has happened at some time
	handed, won, merged           int
}

// faults are those that a schedule may have.
type faults struct{ crash, breaks, stop, split bool }

// spending is how much was spent, by the times of holding: each has a number of its own,
// so that the same count is never meant by two.
type spending map[uint64]int

func (s spending) total() int {
	n := 0
	for _, v := range s {
		n += v
	}
	return n
}

func (s spending) merge(t spending) {
	for boot, n := range t {
		s[boot] = max(s[boot], n)
	}
}

type simNode struct {
	Member
	machine  *Machine
	stores   []simStore
	resumeAt time.Duration // while it stands still
	left     bool
	met      bool // the cluster, through a seed
	inStream map[uint64]*simLink
}

type simStore struct {
	role  Role
	epoch Epoch
	spent spending
	purse uint64 // what is spent now counts under
	stash spending
	sinks [2]simSink
}

type simSink struct {
	to          uint64
	whole, news bool
	epoch       Epoch
}

// simLink is the stream from one boot to another.
type simLink struct {
	from, to uint64
	up, in   bool // open for the sender; the receiver has begun to read
	queue    []any
	ended    bool // nothing more will come
}

type simChunk struct {
	partition  int
	epoch      Epoch
	start, end bool
	number     uint64
	merge      bool
	spent      spending
}

const simPartitions = 3

func newSimulation(seed uint64, f faults) *simulation {
	s := &simulation{
		rand: rand.New(rand.NewPCG(seed, 1)), faults: f, nodes: map[uint64]*simNode{}, links: map[[2]uint64]*simLink{},
		cut: map[[2]uint64]bool{}, epochs: make([]Epoch, simPartitions),
	}
	for range simPartitions {
		s.spent, s.floor = append(s.spent, spending{}), append(s.floor, spending{})
	}
	for range 1 + s.rand.IntN(3) {
		s.start("")
	}
	return s
}

func (s *simulation) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%6d ms  ", s.now.Milliseconds())+fmt.Sprintf(format, args...))
}

func (s *simulation) fail(format string, args ...any) {
	if s.err == nil {
		s.logf("FAILED: "+format, args...)
		s.err = fmt.Errorf(format, args...)
	}
}

// simPlace is a placement by the highest hash.
func simPlace(ids []string, without string) (owners, heirs []string) {
	best := func(i int, skip string) string {
		most, at := uint64(0), ""
		for _, id := range ids {
			h := fnv.New64a()
			fmt.Fprintf(h, "%d %s", i, id)
			if id != skip && (at == "" || h.Sum64() > most) {
				most, at = h.Sum64(), id
			}
		}
		return at
	}
	for i := range simPartitions {
		owners = append(owners, best(i, ""))
		heirs = append(heirs, best(i, without))
	}
	return owners, heirs
}

// start starts a node, or one with the id of a boot that has ended.
func (s *simulation) start(id string) {
	// Boots are random numbers, so that an earlier one may be the greater.
	s.next++
	boot := s.next*7919%997 + 1
	if id == "" {
		id = fmt.Sprintf("n%d", s.next)
	}
	self := Member{Boot: boot, ID: id, State: Joining}
	n := &simNode{Member: self, stores: make([]simStore, simPartitions), inStream: map[uint64]*simLink{}}
	for i := range n.stores {
		n.stores[i].spent, n.stores[i].stash = spending{}, spending{}
	}
	n.machine = New(Config{Self: self, Partitions: simPartitions, Replicas: 1, Place: simPlace, Rand: s.rand})
	s.nodes[boot] = n
	s.logf("%s starts as boot %d", id, boot)
}

func (s *simulation) boots() []uint64 { return slices.Sorted(maps.Keys(s.nodes)) }

func (s *simulation) pick(boots []uint64) *simNode {
	if len(boots) == 0 {
		return nil
	}
	return s.nodes[boots[s.rand.IntN(len(boots))]]
}

func (s *simulation) apart(a, b uint64) bool { return s.cut[[2]uint64{min(a, b), max(a, b)}] }

func (s *simulation) awake(n *simNode) bool { return n.resumeAt == 0 }

// do carries out what a machine wants.
func (s *simulation) do(n *simNode, effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Send:
			s.sendMessage(n, e.To, e.Message)
		case SetRole:
			s.setRole(n, e)
		case Forget:
			n.stores[e.Partition].spent = spending{}
		case Track:
			n.stores[e.Partition].sinks[e.Slot] = simSink{to: e.To, whole: e.Whole, epoch: e.Epoch, news: true}
		case Untrack:
			n.stores[e.Partition].sinks[e.Slot] = simSink{}
		case Export:
			c := simChunk{partition: e.Partition, epoch: e.Epoch, start: true, end: true, number: e.Number, merge: e.Merge, spent: maps.Clone(n.stores[e.Partition].spent)}
			if e.Merge {
				c.spent = maps.Clone(n.stores[e.Partition].stash)
			}
			s.push(n.Boot, e.To, c)
		case Stash:
			n.stores[e.Partition].stash.merge(n.stores[e.Partition].spent)
		case MergeStash:
			s.mergeInto(n, e.Partition, n.stores[e.Partition].stash)
			n.stores[e.Partition].stash = spending{}
		case Unstash:
			n.stores[e.Partition].stash = spending{}
		case Cut:
			s.endStream(e.From, n.Boot, true)
		case Reset:
			for _, other := range s.boots() {
				s.endStream(n.Boot, other, true)
				s.endStream(other, n.Boot, true)
			}
		case Activate:
			s.logf("%d is active", n.Boot)
		}
	}
}

func (s *simulation) setRole(n *simNode, e SetRole) {
	st := &n.stores[e.Partition]
	if st.role == None && e.Role == Holds && e.Cause != Claimed && e.Cause != Received {
		s.fail("boot %d holds partition %d from none by cause %d", n.Boot, e.Partition, e.Cause)
	}
	st.role, st.epoch = e.Role, e.Epoch
	s.logf("%d: partition %d is %v in epoch %v, spent %d", n.Boot, e.Partition, e.Role, e.Epoch, st.spent.total())
	if e.Role != Holds {
		return
	}
	s.purses++
	st.purse = s.purses
	switch e.Cause {
	case Claimed:
		s.won++
	case Received:
		s.handed++
	}
	if s.split {
		return
	}
	for _, boot := range s.boots() {
		other := s.nodes[boot]
		if o := &other.stores[e.Partition]; other != n && o.role == Holds && s.awake(other) && (!s.faults.stop || s.meet(n, other)) {
			s.fail("partition %d has two holders, %d and %d", e.Partition, n.Boot, boot)
		}
	}
	if (e.Cause == Claimed || e.Cause == Received) && !e.Epoch.After(s.epochs[e.Partition]) && !s.crashed && !s.faults.stop {
		s.fail("partition %d goes back from epoch %v to %v", e.Partition, s.epochs[e.Partition], e.Epoch)
	}
	s.epochs[e.Partition] = e.Epoch
	want := s.spent[e.Partition]
	if s.crashed {
		want = s.floor[e.Partition]
	}
	if !s.faults.stop {
		s.mustHave(n, e.Partition, want)
	}
}

// meet reports whether two nodes have heard each other's hello.
func (s *simulation) meet(a, b *simNode) bool {
	x, y := a.machine.members[b.Boot], b.machine.members[a.Boot]
	return x != nil && y != nil && x.in && y.in
}

func (s *simulation) mustHave(n *simNode, i int, want spending) {
	for purse, v := range want {
		if n.stores[i].spent[purse] < v {
			s.fail("boot %d holds partition %d without purse %d: %v of %v", n.Boot, i, purse, n.stores[i].spent, want)
		}
	}
}

func (s *simulation) sendMessage(n *simNode, to uint64, m Message) {
	if h, ok := m.(Handover); ok {
		for _, part := range h.Parts {
			s.pump(n, part.Partition, to)
		}
	}
	s.push(n.Boot, to, m)
}

func (s *simulation) push(from, to uint64, what any) {
	if l := s.links[[2]uint64{from, to}]; l != nil && l.up {
		l.queue = append(l.queue, what)
		if _, repeats := what.(Handover); repeats && s.rand.IntN(8) == 0 {
			l.queue = append(l.queue, what)
		}
	}
}

// pump sends what a copy lacks.
func (s *simulation) pump(n *simNode, i int, to uint64) {
	st := &n.stores[i]
	for slot := range st.sinks {
		if k := &st.sinks[slot]; k.to == to && k.news {
			s.push(n.Boot, to, simChunk{partition: i, epoch: k.epoch, start: k.whole, end: true, spent: maps.Clone(st.spent)})
			k.whole, k.news = false, false
		}
	}
}

// spend lets a client take a token from whoever holds.
func (s *simulation) spend(n *simNode, i int) {
	if st := &n.stores[i]; st.role == Holds && !s.quiet {
		st.spent[st.purse]++
		s.spent[i][st.purse]++
		s.changed(st)
	}
}

// gossip tells a node what is true, or was until a moment ago.
func (s *simulation) gossip(n *simNode) {
	var listed []Listed
	known := n.machine.members
	for _, boot := range s.boots() {
		other := s.nodes[boot]
		if boot == n.Boot {
			continue
		}
		if s.apart(n.Boot, boot) || !s.awake(other) {
			if known[boot] != nil {
				listed = append(listed, Listed{Member: other.machine.self, Dead: s.rand.IntN(8) == 0})
			}
			continue
		}
		// A node may not have been heard of yet.
		if known[boot] != nil || s.rand.IntN(3) == 0 {
			listed = append(listed, Listed{Member: other.machine.self})
		}
	}
	if !n.met {
		contact := s.contact(n)
		if n.met = true; contact == nil && len(s.nodes) > 1 {
			s.split = true // it founds a cluster of its own
		}
		if contact != nil {
			listed = nil
			for _, other := range contact.machine.list() {
				if other.Boot != n.Boot {
					listed = append(listed, Listed{Member: other})
				}
			}
			s.do(contact, contact.machine.Gossip(s.now, View{Members: append(s.listedAt(contact), Listed{Member: n.machine.self}), Cleared: true}))
		}
	}
	s.do(n, n.machine.Gossip(s.now, View{Members: listed, Cleared: true}))
}

// contact returns the seed through which a starting node meets the cluster: one that is
// part of it, if there is any.
func (s *simulation) contact(n *simNode) *simNode {
	var first *simNode
	for _, boot := range s.boots() {
		other := s.nodes[boot]
		if other == n || s.apart(n.Boot, boot) || !s.awake(other) {
			continue
		}
		if other.met {
			return other
		}
		first = cmp.Or(first, other)
	}
	if first != nil {
		first.met = true
	}
	return first
}

// listedAt is what gossip has told a node so far.
func (s *simulation) listedAt(n *simNode) []Listed {
	var listed []Listed
	for _, boot := range n.machine.order {
		if x := n.machine.members[boot]; x.listed {
			listed = append(listed, Listed{Member: x.Member})
		}
	}
	return listed
}

func sortedLinks(links map[[2]uint64]*simLink) []*simLink {
	all := slices.Collect(maps.Values(links))
	slices.SortFunc(all, func(a, b *simLink) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	return all
}

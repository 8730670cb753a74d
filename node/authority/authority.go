// Package authority decides who decides: which node holds a partition, and how holding
// moves when nodes join, leave and die. It is a state machine without network and clock.
//
//	members, messages, streams, ticks ──> Machine ──> Effects
//
// Placement says who should hold a partition; holding says who does. For each partition a
// node is in one of these roles, and only one that is holding decides:
//
//	none ── nobody holds it ──> claiming ── all agree ──> holding
//	none ── handover received ───────────────────────────> holding
//	holding ── its copy is complete ──> frozen(to) ── accepted ──> none
//	                                    frozen(to) ── refused ──> holding
//	                                    frozen(to) ── to is out ──> none
//	holding ── a newer holder ──> none, and what it decided goes there to be merged
//	holding ── this process stood still ──> paused ── nobody is newer ──> holding
//
// Each time of holding has an epoch (counter, boot), compared in that order; last is the
// newest epoch that a node has heard of for a partition. There are two ways to come to
// hold. The planned one is the handover: the holder first makes the next holder's copy
// complete while it goes on deciding, then freezes the partition, sends what has changed
// and hands over epoch counter+1. It never goes back to deciding unless the other one
// refuses, so there are never two. The other way is the claim: only the node that its own
// placement names claims, only when last is out, and only with the consent of every member
// that is not out for it.
//
// A member is out once its stream to this node has ended and been read to the end, and its
// peer port refuses connections or another boot answers there, or it has said goodbye, or
// gossip calls it dead and it has been silent for a second. Nothing from it counts until a
// new hello. Whoever is out is not in this node's placement.
//
// The holder keeps a copy at the heir, the node that placement names without the holder. A
// partition has two slots for copies, so that the old heir's copy stays fresh until the new
// one's is complete: a complete copy is then always worth more than an incomplete one, and
// a claim needs one copy, the best. When it is complete, all others are told to drop theirs.
// After a handover the former holder has everything, so it serves as the first copy.
//
// Where this differs from the simplest reading of the design: a holder that hears of a
// newer epoch whose holder is out goes on in an epoch newer still, since otherwise nobody
// would follow it. A named member that gossip does not list counts as silent after three
// seconds without a stream from it, so that nobody waits for a ghost. Claims
// have even counters and handovers odd ones: in a split, a node could claim a partition in
// the very epoch in which it was being handed over to it, and the sender would take the
// claim for its answer. And each offer of a handover has an epoch of its own and gets one
// answer for ever: a node that is offered it again, on a new stream perhaps, says again what
// it said. If it took what it had refused, the sender, who goes on deciding once refused,
// would not be the only holder; if it said nothing, the sender would be frozen for ever. A
// sender that hears of a holder after the next one still waits for the next one's answer: it
// may have been passed on. And who has yielded takes no handover before what it owes was
// merged, since only one of the two has the base of that merge.
//
// test/model has handover and claim of one partition in Promela, and spin searches what three
// nodes may do with it: all of it for most pairs and threes of a join, a leave, a crash and a
// broken stream. It has no copies, splits, restarts and standstills: those, the schedules of
// this package's tests play at random.
package authority

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// How long things take, on the clock of the events.
const (
	silence    = time.Second            // without a message, for a member that gossip calls dead
	ghost      = 3 * time.Second        // without being listed and without a stream from it
	beat       = 250 * time.Millisecond // between heartbeats
	vacancy    = 50 * time.Millisecond  // without a holder, until it is claimed unasked
	doubt      = time.Second            // without becoming the holder, until the last one is asked for
	retry      = 20 * time.Millisecond  // at least, until a denied claim is tried again
	again      = 100 * time.Millisecond // until an unanswered question or a refused offer is repeated
	fetching   = time.Second            // for a copy that a claim needs
	patience   = 250 * time.Millisecond // for those who may have come while this process stood still
	merging    = time.Second            // for what another holder has decided
	remembered = 10 * time.Minute       // how long a member that is out is known
)

// sweep is how many ticks it takes to look at every partition.
const sweep = 5

// maxFrozen is how many partitions are being handed over at once: each waits for those
// before it in the stream.
const maxFrozen = 8

// Config says what a Machine works on.
type Config struct {
	Self       Member // State is Joining
	Partitions int
	Replicas   int // copies of each partition: 0 or 1
	// Place returns the ids that partitions belong to, by partition: by placement of the
	// given ids, and without one of them. "" is nobody.
	Place func(ids []string, without string) (owners, heirs []string)
	Rand  *rand.Rand
}

// A sink is one copy that a holder keeps up to date.
type sink struct {
	boot uint64
	done bool // complete
}

type partition struct {
	role  Role
	epoch Epoch // in which this node holds it
	last  Epoch // newest heard of

	to       uint64        // while frozen: the next holder, 0 while merging
	next     Epoch         // that it will have, a newer one with each offer
	offered  bool          // the handover was sent
	deadline time.Duration // of merging, of fetching

	sinks   [2]sink
	dropped bool   // others were told to drop their copies,
	spared  uint64 // all but this one

	copy Version // of what lies here, while it is not held
	pass uint64  // the boot whose chunks make it complete
	keep bool    // as the former holder, until told to drop it

	owed   bool   // something is stashed that the holder has to merge
	debtor uint64 // to whom it was sent
	debt   uint64 // number of what was stashed last

	since  time.Duration // when it was last given up, or found vacant
	after  time.Duration // when to claim or offer again
	wanted bool          // by a check
	claim  *claim
	fetch  uint64 // the boot whose copy is fetched
	route  Route
}

// Machine is the state of one node. Its methods are events; each returns what is to be
// done. It belongs to one goroutine at a time.
type Machine struct {
	config  Config
	self    Member
	cleared bool // by gossip, to become active
	now     time.Duration
	paused  bool
	halted  time.Duration // when that began
	beaten  time.Duration

	members map[uint64]*member
	order   []uint64          // their boots, sorted
	placed  map[string]uint64 // boots that partitions are placed on, by id
	owners  []uint64          // by partition, the boot that placement gives it to,
	heirs   []uint64          // and the one that it would without this node; 0 is nobody
	moved   bool              // placement has to be computed anew
	swept   int               // partitions that settleSome has come to

	parts    []partition
	frozen   int  // being handed over
	queued   bool // some wait for that,
	thawed   bool // and there is room again
	claims   []*claim
	claimed  uint64 // number of the last claim
	notReady string

	effects []Effect
	tell    bool                 // everybody all that this node knows
	held    []Holding            // to announce
	offers  map[uint64]*Handover // by receiver
	drops   map[uint64][]Holding // by the heir that is spared
	accepts map[uint64][]Holding // by sender
	refuses map[uint64][]Holding // by sender
}

// New returns a machine that has heard of nobody.
func New(c Config) *Machine {
	m := &Machine{
		config: c, self: c.Self, moved: true, members: map[uint64]*member{}, placed: map[string]uint64{},
		parts:  make([]partition, c.Partitions),
		offers: map[uint64]*Handover{}, drops: map[uint64][]Holding{},
		accepts: map[uint64][]Holding{}, refuses: map[uint64][]Holding{},
		notReady: "joining the cluster",
	}
	for i := range m.parts {
		m.parts[i].route.Partition = i
	}
	return m
}

// Tick lets time pass. It should come every 20 ms or so.
func (m *Machine) Tick(now time.Duration) []Effect {
	m.now = max(m.now, now)
	for _, boot := range m.order {
		m.judge(m.members[boot])
	}
	m.forget()
	if m.now-m.beaten >= beat {
		m.beaten = m.now
		m.broadcast(Beat{})
	}
	m.resume()
	m.settleSome()
	m.tendClaims()
	return m.finish()
}

// Leave makes this node hand over all it holds. Drained says when it has.
func (m *Machine) Leave(now time.Duration) []Effect {
	m.now = max(m.now, now)
	if m.self.State < Leaving {
		m.self.State = Leaving
		for i := range m.parts {
			if m.parts[i].role == Claiming {
				m.giveUp(i) // or nobody else could claim it
			}
		}
		m.moved = true
		m.broadcast(Announce{Members: m.list()})
	}
	return m.finish()
}

// Drained reports whether a leaving node holds nothing any more that another one could
// take, and no copy that another one still needs.
func (m *Machine) Drained() bool {
	if m.self.State < Leaving {
		return false
	}
	if len(m.placed) == 0 {
		return !m.joinersExist()
	}
	for i := range m.parts {
		if p := &m.parts[i]; p.role.holds() || p.keep || p.owed {
			return false
		}
	}
	return true
}

// joinersExist reports whether somebody is about to become active.
func (m *Machine) joinersExist() bool {
	for _, x := range m.members {
		if x.State == Joining && !x.out {
			return true
		}
	}
	return false
}

// Stopped says that this process has stood still for so long that others may have taken
// over: it decides nothing until every member that is not out has said hello again.
func (m *Machine) Stopped(now time.Duration) []Effect {
	m.now = max(m.now, now)
	m.paused, m.halted = true, m.now
	for i := range m.parts {
		p := &m.parts[i]
		m.untrack(i, 0)
		m.untrack(i, 1)
		switch {
		case p.role == Holds || p.role == Frozen && p.to == 0:
			m.setRole(i, Paused, p.epoch, Halted)
		case p.role == Frozen:
			p.offered = false
		case p.role == Claiming:
			m.giveUp(i)
		}
		p.debtor = 0
	}
	for _, x := range m.members {
		x.in, x.up, x.heard = false, false, m.now
	}
	m.emit(Reset{})
	m.moved = true
	return m.finish()
}

// resume goes on after Stopped with what no member knows to be newer.
func (m *Machine) resume() {
	alone := !slices.ContainsFunc(m.order, func(boot uint64) bool { return m.members[boot].in })
	if !m.paused || !m.metAll() || alone && m.now-m.halted < patience {
		return
	}
	m.paused = false
	for i := range m.parts {
		p := &m.parts[i]
		if p.role != Paused {
			continue
		}
		if p.last.After(p.epoch) && !m.isOut(p.last) {
			m.yield(i, p.last)
		} else {
			m.setRole(i, Holds, p.epoch, Resumed)
		}
	}
	m.moved = true
}

// NotReady says why this node is not ready for checks, or "". Once ready, a node stays it
// until it leaves.
func (m *Machine) NotReady() string { return m.notReady }

func (m *Machine) checkReady() {
	switch {
	case m.self.State >= Leaving:
		m.notReady = "leaving the cluster"
	case m.self.State == Active && m.notReady != "":
		m.notReady = m.waitsFor()
	case m.self.State == Joining:
		m.notReady = m.joinsWith()
	}
}

func (m *Machine) emit(e Effect) { m.effects = append(m.effects, e) }

func (m *Machine) send(to uint64, message Message) {
	if x := m.members[to]; x != nil && x.up {
		m.emit(Send{to, message})
	}
}

// broadcast tells everybody whose stream is open. All others hear it in the hello.
func (m *Machine) broadcast(message Message) {
	for _, boot := range m.order {
		if !m.members[boot].out {
			m.send(boot, message)
		}
	}
}

// finish settles what follows from an event and returns all effects.
func (m *Machine) finish() []Effect {
	for m.activate(); m.moved; m.activate() {
		m.place()
		m.resume()
		m.settleAll()
		m.tendClaims()
	}
	if m.thawed {
		m.offerQueued()
	}
	m.flush()
	m.checkReady()
	effects := m.effects
	m.effects = nil
	return effects
}

// flush sends what was gathered for many partitions at once.
func (m *Machine) flush() {
	for _, to := range sorted(m.accepts) {
		m.send(to, Accepted{m.accepts[to]})
	}
	for _, to := range sorted(m.refuses) {
		m.send(to, Refused{m.refuses[to]})
	}
	if len(m.held) > 0 {
		m.broadcast(Announce{Members: m.list(), Held: m.held})
	}
	for _, to := range sorted(m.offers) {
		m.send(to, *m.offers[to])
	}
	for _, heir := range sorted(m.drops) {
		for _, boot := range m.order {
			if boot != heir {
				m.send(boot, Drop{m.drops[heir]})
			}
		}
	}
	if m.tell {
		m.broadcast(m.hello())
	}
	m.held, m.tell = nil, false
	clear(m.accepts)
	clear(m.refuses)
	clear(m.offers)
	clear(m.drops)
}

func sorted[K cmp.Ordered, V any](all map[K]V) []K {
	keys := make([]K, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Package keeper carries out what authority decides: it gives the partitions of the store
// their roles, tells the other nodes, and moves buckets between them.
//
//	members, ticks ───────────────┐
//	streams from others ── Hear ──┤                  ┌──> roles of the store's partitions
//	                              ├──> Machine ── do ┼──> routes, which checks follow
//	acknowledgements ─────────────┤                  └──> outboxes ── Tell ──> streams to others
//	checks that found nobody ─────┘                            ^
//	                                       store: changes, copies, stashes
//
// One lock guards the machine and everything that follows from it, and an event is carried
// out whole while it is held: a partition has its role before anybody hears of it. The lock
// is never held while something is sent. A check takes it only when it was asked of a node
// that does not hold its partition.
//
// What a node tells another goes through an outbox: messages first, in their order, then
// buckets that were asked for, then changes for copies, then passes over whole partitions.
// Buckets are read when they are about to be sent, so an outbox holds none, and no more than
// a window of notes is sent before the other has dealt with them: whoever is slow slows
// down its own copies and nothing else. Before a handover, the last changes of its
// partitions go into the outbox as messages do, and with them the base of a merge: what a
// node that has fallen silent had spent by then, which must not count twice if it returns.
//
// A stream from another node is read to its end, or cut: nothing that was read from a
// stream counts after it was cut, or after this process stood still.
package keeper

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/members"
	"github.com/tokenring/tokenring/ring"
)

const (
	tickEvery = 20 * time.Millisecond
	// MaxGap is how long this process may stand still before it has to ask whether others
	// have taken over. It is the store's MaxGap.
	MaxGap = 500 * time.Millisecond
)

// Config says whose partitions are kept, and where.
type Config struct {
	ID       string
	Boot     uint64
	Replicas int           // copies of each partition: 0 or 1
	Buckets  *bucket.Store // Passive, with MaxGap and a shard for each partition
	OnState  func(State)   // called by one goroutine, for the first state and each new one
	Metrics  prometheus.Registerer
	Logger   *slog.Logger
}

// State is what others have to follow.
type State struct {
	Peers    []authority.Member // that streams should be open to
	Nodes    int                // that partitions are placed on
	Active   bool               // this node is part of the cluster, and says so
	NotReady string             // why no load balancer should send checks here, or ""
}

// Keeper keeps the partitions of one node. All its methods may be called at once.
type Keeper struct {
	config  Config
	buckets *bucket.Store
	start   time.Time
	metrics *metrics
	routes  []atomic.Pointer[authority.Route]
	changed atomic.Pointer[chan struct{}] // closed when a route or a role changes
	poked   chan struct{}                 // holds one: State may have changed

	mu       sync.Mutex // guards what follows; not held while anything is sent
	machine  *authority.Machine
	active   bool
	moved    bool                // a route or a role has changed in this event
	boxes    map[uint64]*outbox  // open streams to others
	hearings map[uint64]*hearing // open streams from others
	tracks   [][bucket.Slots]*track
	inPass   []bool               // by partition, a pass over the copy here has begun
	frozen   []time.Duration      // by partition, when it was frozen for a handover
	stash    *bucket.Store        // what is to be merged elsewhere
	bases    map[int]*bucket.Base // of merges, by partition,
	offered  map[int]*bucket.Base // and those that came before a handover
	news     news
	leaving  bool
	drained  chan struct{} // closed once, while leaving, everything was handed over
	closed   bool

	stop      chan struct{}
	running   sync.WaitGroup
	closeOnce sync.Once
}

// New returns a keeper that has heard of nobody.
func New(c Config) *Keeper {
	k := &Keeper{
		config: c, buckets: c.Buckets, start: time.Now(),
		routes: make([]atomic.Pointer[authority.Route], ring.Partitions),
		poked:  make(chan struct{}, 1),
		machine: authority.New(authority.Config{
			Self:       authority.Member{ID: c.ID, Boot: c.Boot, State: authority.Joining},
			Partitions: ring.Partitions, Replicas: c.Replicas,
			Place: placing(ring.NewPlacer()), Rand: rand.New(rand.NewPCG(c.Boot, rand.Uint64())),
		}),
		boxes: map[uint64]*outbox{}, hearings: map[uint64]*hearing{},
		tracks: make([][bucket.Slots]*track, ring.Partitions),
		inPass: make([]bool, ring.Partitions), frozen: make([]time.Duration, ring.Partitions),
		stash: bucket.New(bucket.Config{Shards: ring.Partitions, MaxKeys: c.Buckets.MaxKeys(), Passive: true}),
		bases: map[int]*bucket.Base{}, offered: map[int]*bucket.Base{}, drained: make(chan struct{}), stop: make(chan struct{}),
	}
	for i := range k.routes {
		k.routes[i].Store(&authority.Route{Partition: i})
	}
	signal := make(chan struct{})
	k.changed.Store(&signal)
	k.metrics = newMetrics(k)
	return k
}

// placing makes a placer answer by ids.
func placing(p *ring.Placer) func([]string, string) (owners, heirs []string) {
	ids := func(p *ring.Placement) []string {
		all := make([]string, ring.Partitions)
		for i := range all {
			if at := p.Owner(i); at >= 0 {
				all[i] = p.Members()[at]
			}
		}
		return all
	}
	return func(members []string, without string) ([]string, []string) {
		owners := ids(p.Place(members))
		return owners, ids(p.Without(without))
	}
}

// Start runs the clock of the machine, until Close.
func (k *Keeper) Start() {
	k.poke()
	k.running.Go(func() {
		tick := time.NewTicker(tickEvery)
		defer tick.Stop()
		for {
			select {
			case <-k.stop:
				return
			case <-tick.C:
				k.event(k.tick)
			}
		}
	})
	k.running.Go(func() {
		for {
			select {
			case <-k.stop:
				return
			case <-k.poked:
				k.config.OnState(k.state())
			}
		}
	})
}

// Close ends all streams and what Start began, and waits for that. It may be called twice.
func (k *Keeper) Close(context.Context) error {
	k.closeOnce.Do(func() {
		close(k.stop)
		k.mu.Lock()
		k.closed = true
		k.reset()
		k.mu.Unlock()
	})
	k.running.Wait()
	return nil
}

func (k *Keeper) now() time.Duration { return time.Since(k.start) }

// event lets the machine deal with an event and carries out what follows.
func (k *Keeper) event(f func() []authority.Effect) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.eventLocked(f)
}

func (k *Keeper) eventLocked(f func() []authority.Effect) {
	k.noticeStop()
	before := k.machine.NotReady()
	k.do(f())
	if k.moved {
		k.moved = false
		signal := make(chan struct{})
		close(*k.changed.Swap(&signal))
	}
	if k.machine.NotReady() != before {
		k.poke()
	}
	if k.leaving && k.machine.Drained() {
		select {
		case <-k.drained:
		default:
			close(k.drained)
		}
	}
}

// noticeStop tells the machine if this process has stood still, before it hears anything
// else. The store has decided nothing since, and goes on once the roles are right.
func (k *Keeper) noticeStop() {
	if k.buckets.Tick() {
		return
	}
	k.config.Logger.Warn("this process stood still: asking the others who decides", "longer_than", MaxGap)
	k.do(k.machine.Stopped(k.now()))
	k.buckets.Restart()
}

func (k *Keeper) tick() []authority.Effect {
	k.report()
	return k.machine.Tick(k.now())
}

func (k *Keeper) poke() {
	select {
	case k.poked <- struct{}{}:
	default:
	}
}

func (k *Keeper) state() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return State{Peers: k.machine.Peers(), Nodes: k.machine.Nodes(), Active: k.active, NotReady: k.machine.NotReady()}
}

// SetView hands over a new picture that gossip has of the cluster.
func (k *Keeper) SetView(v members.View) {
	self := v.Self()
	g := authority.View{Addr: self.Peer, Cleared: self.Cleared}
	for _, m := range v[1:] {
		g.Members = append(g.Members, authority.Listed{
			Member: authority.Member{Boot: m.Boot, ID: m.ID, Addr: m.Peer, State: stateOf(m.State)},
			Dead:   m.State == members.Dead,
		})
	}
	k.event(func() []authority.Effect { return k.machine.Gossip(k.now(), g) })
	k.poke()
}

// stateOf is the state that gossip gives a member. That of a dead one is not known.
func stateOf(s members.State) authority.State {
	switch s {
	case members.Active:
		return authority.Active
	case members.Leaving:
		return authority.Leaving
	}
	return authority.Joining
}

// Gone says that the peer port of a boot refuses connections, or that another boot answers
// there.
func (k *Keeper) Gone(boot uint64) {
	k.event(func() []authority.Effect { return k.machine.Gone(k.now(), boot) })
}

// Route returns where checks of a partition go.
func (k *Keeper) Route(partition int) authority.Route { return *k.routes[partition].Load() }

// Changed returns a channel that is closed when a route or a role changes.
func (k *Keeper) Changed() <-chan struct{} { return *k.changed.Load() }

// Missed says that a check was asked of a node that does not hold the partition, and the
// epoch that it named; of this node itself, with no epoch.
func (k *Keeper) Missed(partition int, named authority.Epoch) {
	k.event(func() []authority.Effect {
		if named == (authority.Epoch{}) {
			return k.machine.Wanted(partition)
		}
		return k.machine.Learn(partition, named)
	})
}

// NotReady says why no load balancer should send checks here, or "".
func (k *Keeper) NotReady() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.machine.NotReady()
}

// Leave hands everything over, and returns once others have it or ctx ends.
func (k *Keeper) Leave(ctx context.Context) error {
	k.event(func() []authority.Effect {
		k.leaving = true
		return k.machine.Leave(k.now())
	})
	select {
	case <-k.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Goodbye tells all others that this node ends, and waits until they have heard it.
func (k *Keeper) Goodbye(ctx context.Context) error {
	k.mu.Lock()
	var heard []<-chan struct{}
	for _, box := range k.boxes {
		done := make(chan struct{})
		box.push(parcel{note: Note{Message: authority.Goodbye{}}, heard: func() { close(done) }})
		heard = append(heard, done, box.ended)
	}
	k.mu.Unlock()
	for i := 0; i < len(heard); i += 2 {
		select {
		case <-heard[i]:
		case <-heard[i+1]:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// A Place is what this node knows of a partition.
type Place struct {
	authority.Place
	Buckets int // that lie here
}

// Places returns what this node knows of all partitions.
func (k *Keeper) Places() []Place {
	k.mu.Lock()
	defer k.mu.Unlock()
	places := make([]Place, ring.Partitions)
	for i := range places {
		places[i] = Place{k.machine.Place(i), k.buckets.Len(i)}
	}
	return places
}

// Counts returns what this node knows of all partitions together.
func (k *Keeper) Counts() authority.Counts {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.machine.Counts()
}

// Package members keeps a node's picture of the cluster, over hashicorp/memberlist.
//
//	memberlist ── callbacks ──> record ── poke ──> run ── View ──> OnView
//	seeds, members lost ──> rejoin ── Join ──> memberlist
//
// Memberlist calls back under its own lock, so a callback copies what it was told into
// the record and pokes a channel; it never blocks and never dials. (Reading Members()
// later instead would race: it hands out pointers that memberlist goes on writing to.)
// One goroutine reads the record, decides whether this node may become active, and hands
// each new picture on.
//
// A node is known by its id, which the operator gave it, and its boot, a random number
// of this run. Memberlist knows it by both together, so that a restart is a new member
// and never has to argue with the record of the old one.
//
//	joining ──> active ──> leaving ──> gone
//
// A node is cleared to become active once it has met the cluster (joined a seed or been
// found by somebody; at once if it has no seeds; alone, loudly, if none could be reached for
// five seconds) and no other boot that may live is listed under its id, by anybody it
// exchanged states with. One whose peer port refuses connections, or is answered by another
// boot, is gone. If that other boot answers there, two nodes were given one id, and this one
// ends: the younger one, or of two that join at the same time the one with the greater boot.
// Activate makes it active: whoever decides who holds what has a word in that too.
//
// Memberlist does not find back together after a split, so the node keeps asking its
// seeds and the members that it has lost.
package members

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// State is how far a member has come in its life. It only goes forward.
type State uint8

// The states of a member.
const (
	Joining State = iota + 1 // listed, but nothing is placed on it
	Active                   // partitions are placed on it
	Leaving                  // says goodbye; nothing is placed on it any more
	Dead                     // gone without a goodbye
)

var stateNames = [...]string{Joining: "joining", Active: "active", Leaving: "leaving", Dead: "dead"}

func (s State) String() string {
	if int(s) < len(stateNames) && stateNames[s] != "" {
		return stateNames[s]
	}
	return "unknown"
}

// A Member is one run of a node.
type Member struct {
	ID     string
	Boot   uint64
	State  State
	Peer   string // host:port of its peer port
	Gossip string // host:port of its gossip port
	Self   bool
	// Cleared says of this node that nothing in gossip speaks against its becoming active:
	// it has met the cluster, and no other boot of its id is left.
	Cleared bool
}

// A View is the picture of the cluster at one moment: this node first, then all others
// by id and boot. It never changes.
type View []Member

// Self returns this node.
func (v View) Self() Member { return v[0] }

// A Verdict is what is known of a boot after a look at its peer port.
type Verdict uint8

// The verdicts.
const (
	Unknown Verdict = iota // nothing answers, and nothing refuses
	Alive                  // it answers
	Gone                   // the port refuses connections, or another boot answers there
)

// A Prober finds out whether a boot answers on a peer port.
type Prober interface {
	Probe(ctx context.Context, addr string, boot uint64) Verdict
}

// Config says who the node is and where it finds the others.
type Config struct {
	ID          string
	Boot        uint64   // random number of this run
	Cluster     string   // nodes of another cluster are refused
	Fingerprint uint64   // of placement; nodes with another one are refused
	Bind        string   // host:port of the gossip port, TCP and UDP; port 0 takes any
	Advertise   string   // host that others reach this node at; "" finds one
	PeerPort    int      // port of this node's peer listener
	Seeds       []string // host:port; a DNS name stands for all its addresses
	Prober      Prober
	Logger      *slog.Logger
	OnView      func(View) // called by one goroutine, for the first picture and each new one
}

const (
	lonely     = 5 * time.Second // without an answer from any seed, then alone
	deadMemory = time.Hour       // how long a dead member is listed and asked for
	settle     = 200 * time.Millisecond
)

// Members is this node's place in the cluster.
type Members struct {
	config Config
	host   string // advertised address
	port   int    // of gossip
	seeds  []string
	record record
	failed chan error

	list      *memberlist.Memberlist
	cancel    context.CancelFunc
	running   sync.WaitGroup
	closeOnce sync.Once
	closeErr  error

	mu   sync.Mutex // guards what follows
	view View
}

// New returns members that have not joined yet.
func New(c Config) *Members {
	m := &Members{config: c, failed: make(chan error, 1)}
	m.record.init(meta{
		ID: c.ID, Boot: c.Boot, State: Joining, Cluster: c.Cluster, Fingerprint: c.Fingerprint,
		MinProtocol: MinProtocol, MaxProtocol: MaxProtocol,
	})
	return m
}

// Start opens the gossip port and joins the cluster. What goes wrong for good later is
// sent to Failed.
func (m *Members) Start(ctx context.Context) error {
	bind, port, err := splitPort(m.config.Bind)
	if err != nil {
		return fmt.Errorf("parse gossip address: %w", err)
	}
	if m.host, err = advertised(ctx, m.config.Advertise, bind); err != nil {
		return err
	}
	m.record.self.Peer = net.JoinHostPort(m.host, strconv.Itoa(m.config.PeerPort))
	if _, err := m.record.encode(memberlist.MetaMaxSize); err != nil {
		return err
	}
	c := m.settings()
	if c.BindAddr = bind; bind == "" {
		c.BindAddr = everywhere(m.host)
	}
	c.BindPort, c.AdvertisePort = port, port
	if m.list, err = memberlist.Create(c); err != nil {
		return fmt.Errorf("open gossip port %s: %w", m.config.Bind, err)
	}
	m.port = int(m.list.LocalNode().Port)
	if m.seeds = m.withoutSelf(m.config.Seeds); len(m.seeds) == 0 {
		m.record.meet()
	}
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.running.Go(func() { m.run(ctx) })
	m.running.Go(func() { m.rejoin(ctx) })
	return nil
}

// settings are memberlist's, tuned so that a silent node is known to all in about a
// second and a half. Awareness may double the probing interval of a busy node, no more.
func (m *Members) settings() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = m.record.name()
	c.AdvertiseAddr = m.host
	c.ProbeInterval = 300 * time.Millisecond
	c.ProbeTimeout = 120 * time.Millisecond
	c.GossipInterval = 50 * time.Millisecond
	c.SuspicionMult = 3
	c.SuspicionMaxTimeoutMult = 2
	c.AwarenessMaxMultiplier = 2
	c.GossipToTheDeadTime = 5 * time.Second
	c.PushPullInterval = 5 * time.Second
	c.TCPTimeout = 2 * time.Second
	c.Logger = bridge(m.config.Logger)
	c.Delegate = (*metaDelegate)(&m.record)
	c.Events = (*eventDelegate)(&m.record)
	c.Alive = (*admission)(&m.record)
	c.Merge = (*admission)(&m.record)
	return c
}

// Failed receives the error that makes it impossible to go on in this cluster: it
// refused the node, or another live node has its id.
func (m *Members) Failed() <-chan error { return m.failed }

// View returns the present picture.
func (m *Members) View() View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view
}

// Gossip returns the address of the gossip port.
func (m *Members) Gossip() string {
	return net.JoinHostPort(m.host, strconv.Itoa(m.port))
}

// Activate tells all others that this node is active. The View says when it is cleared to.
func (m *Members) Activate() { m.announce(Active) }

// Leaving tells all others that this node is about to go.
func (m *Members) Leaving() { m.announce(Leaving) }

// announce moves this node's state forward and tells the others.
func (m *Members) announce(s State) {
	if !m.record.advance(s) {
		return
	}
	m.running.Go(func() {
		if err := m.list.UpdateNode(time.Second); err != nil {
			m.config.Logger.Debug("state told to nobody yet", "state", s.String(), "error", err)
		}
		// Gossip can be lost, and nothing would repeat it for a while: two others hear it
		// over a connection, and gossip it on.
		told := 0
		for addr := range m.record.living() {
			if n, _ := m.list.Join([]string{addr}); n > 0 {
				told++
			}
			if told == 2 {
				return
			}
		}
	})
}

// Close says goodbye to the cluster and closes the gossip port. It may be called twice.
func (m *Members) Close(context.Context) error {
	if m.cancel == nil {
		return nil // never started
	}
	m.closeOnce.Do(func() {
		m.cancel()
		// The news of leaving must be out first: it is how the others tell a goodbye
		// from a death.
		m.running.Wait()
		if err := m.list.Leave(time.Second); err != nil {
			// The others are leaving too, or out of reach: they will find this node gone.
			m.config.Logger.Debug("goodbye heard by nobody", "error", err)
		}
		m.closeErr = m.list.Shutdown()
	})
	return m.closeErr
}

func (m *Members) fail(err error) {
	select {
	case m.failed <- err:
	default: // the first reason is the one that counts
	}
}

// run publishes every new picture and moves this node from joining to active.
func (m *Members) run(ctx context.Context) {
	alone := time.NewTimer(lonely)
	defer alone.Stop()
	retry := time.NewTicker(settle) // for what no event announces, such as a probe's answer
	defer retry.Stop()
	m.publish()
	var refused error // that was logged
	for {
		joining := retry.C
		if m.record.state() != Joining {
			joining = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-m.record.changed:
		case <-joining:
		case <-alone.C:
			if m.record.state() == Joining && !m.record.hasMet() {
				m.config.Logger.Warn("no seed could be reached: going on alone", "seeds", m.seeds, "after", lonely)
				m.record.meet()
			}
		}
		m.consider(ctx)
		m.publish()
		if err := m.record.lastRefusal(); err != nil && (refused == nil || err.Error() != refused.Error()) {
			m.config.Logger.Warn("a node is kept out", "error", err)
			refused = err
		}
	}
}

// consider clears a joining node to become active, or ends one whose id is taken.
func (m *Members) consider(ctx context.Context) {
	// In this order: what is heard of rivals is heard before the cluster counts as met.
	met := m.record.hasMet()
	self := m.record.view().Self()
	waiting := false
	for _, other := range m.record.rivals() {
		if yields(other, self) {
			continue
		}
		verdict := m.config.Prober.Probe(ctx, other.Peer, other.Boot)
		waiting = waiting || verdict != Gone
		if other.State != Leaving && verdict == Alive {
			m.fail(fmt.Errorf("id %q is taken by a running node at %s: every node needs an --id of its own", self.ID, other.Peer))
			return
		}
	}
	if self.State == Joining && !waiting && met {
		m.record.clear()
	}
}

// yields reports whether, of two boots with one id, the other has to end for this one:
// the one that came later does, and of two that came at the same time the greater boot.
func yields(other, self Member) bool {
	return other.State < self.State || other.State == self.State && other.Boot > self.Boot
}

func (m *Members) publish() {
	view := m.record.view()
	m.mu.Lock()
	before := m.view
	m.view = view
	m.mu.Unlock()
	if slices.Equal(before, view) {
		return
	}
	m.report(before, view)
	m.config.OnView(view)
}

// report logs what has become of the other members.
func (m *Members) report(before, now View) {
	states := map[uint64]State{}
	for _, b := range before {
		states[b.Boot] = b.State
	}
	for _, n := range now {
		if n.Self || states[n.Boot] == n.State {
			continue
		}
		level := slog.LevelInfo
		if n.State == Dead {
			level = slog.LevelWarn
		}
		m.config.Logger.Log(context.Background(), level, "member is "+n.State.String(), "member", n.ID, "addr", n.Peer)
	}
}

// jittered returns a time between d and 2d.
func jittered(d time.Duration) time.Duration { return d + rand.N(d) }
